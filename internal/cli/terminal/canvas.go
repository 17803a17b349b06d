package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// The escape sequences that are used here. Every terminal since the VT100 knows them, except for the alternate screen:
// terminals without one ignore it.
const (
	clearLine       = "\x1b[K"
	clearBelow      = "\x1b[J"
	cursorHome      = "\x1b[H"
	hideCursor      = "\x1b[?25l"
	showCursor      = "\x1b[?25h"
	alternateScreen = "\x1b[?1049h"
	mainScreen      = "\x1b[?1049l"
)

// Canvas draws lines over those that it drew before.
type Canvas struct {
	out  io.Writer
	Size func() (width, height int)
	// fullScreen means that the canvas owns the whole screen.
	fullScreen bool
	drawn      int
}

// NewCanvas draws on a terminal: over its own lines, or over the full screen.
func NewCanvas(screen *os.File, fullScreen bool) *Canvas {
	return &Canvas{out: screen, Size: func() (int, int) { return screenSize(screen) }, fullScreen: fullScreen}
}

// EnterFullScreen shows an empty screen instead of what the terminal shows, until LeaveFullScreen.
func EnterFullScreen(screen io.Writer) error {
	_, err := io.WriteString(screen, alternateScreen+hideCursor+cursorHome+clearBelow)
	return err
}

// LeaveFullScreen shows again what the terminal showed before.
func LeaveFullScreen(screen io.Writer) { _, _ = io.WriteString(screen, showCursor+mainScreen) }

// Draw shows as many lines as fit. It draws them in one write, so that nothing flickers.
func (c *Canvas) Draw(lines []string) error {
	width, height := c.Size()
	room := max(height-1, 1) // the last line would scroll
	if len(lines) > room {
		left := len(lines) - room + 1
		lines = append(lines[:room-1:room-1], fmt.Sprintf("and %d more", left))
	}
	var b strings.Builder
	switch {
	case c.fullScreen:
		b.WriteString(cursorHome)
	case c.drawn > 0:
		fmt.Fprintf(&b, "\x1b[%dA\r", c.drawn)
	}
	for _, line := range lines {
		b.WriteString(cut(string(HarmlessLine([]byte(line))), width))
		b.WriteString(clearLine + "\r\n")
	}
	b.WriteString(clearBelow)
	c.drawn = len(lines)
	_, err := io.WriteString(c.out, b.String())
	return err
}

// screenSize falls back to 80 by 24.
func screenSize(screen *os.File) (width, height int) {
	width, height, err := term.GetSize(int(screen.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}

func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func terminalWidth(out any) (int, bool) {
	f, ok := out.(*os.File)
	if !ok || !IsTerminal(f) {
		return 0, false
	}
	width, _, err := term.GetSize(int(f.Fd()))
	return width, err == nil && width > 0
}
