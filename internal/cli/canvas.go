package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// The words of terminals that are used here; every one since the VT100 knows them, except for the other screen, which
// those that do not know it pass over.
const (
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
	cursorHome  = "\x1b[H"
	hideCursor  = "\x1b[?25l"
	showCursor  = "\x1b[?25h"
	otherScreen = "\x1b[?1049h"
	firstScreen = "\x1b[?1049l"
)

// canvas draws lines over those that it drew before.
type canvas struct {
	out  io.Writer
	size func() (width, height int)
	// whole means that the screen is the canvas's alone.
	whole bool
	drawn int
}

// draw shows as many lines as there is room for, in one write, so that nothing flickers.
func (c *canvas) draw(lines []string) error {
	width, height := c.size()
	room := max(height-1, 1) // the last line would scroll
	if len(lines) > room {
		left := len(lines) - room + 1
		lines = append(lines[:room-1:room-1], fmt.Sprintf("and %d more", left))
	}
	var b strings.Builder
	switch {
	case c.whole:
		b.WriteString(cursorHome)
	case c.drawn > 0:
		fmt.Fprintf(&b, "\x1b[%dA\r", c.drawn)
	}
	for _, line := range lines {
		b.WriteString(cut(line, width))
		b.WriteString(clearLine + "\r\n")
	}
	b.WriteString(clearBelow)
	c.drawn = len(lines)
	_, err := io.WriteString(c.out, b.String())
	return err
}

// cut shortens a line to a width. Colours take no width; where one is cut off, it is ended.
func cut(line string, width int) string {
	seen, coloured := 0, false
	for i := 0; i < len(line); {
		if strings.HasPrefix(line[i:], "\x1b[") {
			end := strings.IndexByte(line[i:], 'm')
			if end < 0 {
				return line[:i]
			}
			coloured = line[i:i+end+1] != colourOff
			i += end + 1
			continue
		}
		if seen == width {
			if coloured {
				return line[:i] + colourOff
			}
			return line[:i]
		}
		_, size := utf8.DecodeRuneInString(line[i:])
		i += size
		seen++
	}
	return line
}

// screenSize falls back to what terminals once had.
func screenSize(screen *os.File) (width, height int) {
	width, height, err := term.GetSize(int(screen.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}

const colourOff = "\x1b[0m"

// style is what a terminal can show.
type style struct {
	colours bool
	unicode bool
}

// styleOf judges by the environment, as programs have long done.
func styleOf(getenv func(string) string) style {
	kind := getenv("TERM")
	locale := getenv("LANG")
	for _, name := range []string{"LC_CTYPE", "LC_ALL"} { // the later one counts
		if value := getenv(name); value != "" {
			locale = value
		}
	}
	locale = strings.ToLower(locale)
	return style{
		colours: getenv("NO_COLOR") == "" && kind != "" && kind != "dumb",
		unicode: kind != "dumb" && kind != "linux" && (strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")),
	}
}

func (s style) paint(code, text string) string {
	if !s.colours || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + colourOff
}

// sparks are the heights of a plot, the lowest first.
func (s style) sparks() []rune {
	if s.unicode {
		return []rune("▁▂▃▄▅▆▇█")
	}
	return []rune("_.-:=+*#")
}

// spark is a plot of the newest values, of a width, against the most that they can be.
func (s style) spark(values []float64, most float64, width int) string {
	levels := s.sparks()
	out := make([]rune, 0, width)
	for range width - len(values) {
		out = append(out, ' ')
	}
	for _, v := range values[max(0, len(values)-width):] {
		level := 0
		if most > 0 {
			level = int(v / most * float64(len(levels)))
		}
		out = append(out, levels[min(max(level, 0), len(levels)-1)])
	}
	return string(out)
}

// bar is how much of something is used, coloured by how little is left.
func (s style) bar(part float64, width int) string {
	full, empty := "█", "░"
	if !s.unicode {
		full, empty = "#", "."
	}
	part = min(max(part, 0), 1)
	n := int(part*float64(width) + 0.5)
	code := "32" // green
	switch {
	case part >= 0.9:
		code = "31"
	case part >= 0.7:
		code = "33"
	}
	return s.paint(code, strings.Repeat(full, n)) + strings.Repeat(empty, width-n)
}

// keys reads what is pressed on a terminal until it is stopped, and calls hand for each.
func keys(terminal *os.File, hand func(key byte)) (stop func(), err error) {
	wake, waker, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() { _ = wake.Close() }()
		fds := []unix.PollFd{
			{Fd: int32(terminal.Fd()), Events: unix.POLLIN},
			{Fd: int32(wake.Fd()), Events: unix.POLLIN},
		}
		var buffer [64]byte
		for {
			if _, err := unix.Poll(fds, -1); err != nil {
				if err == unix.EINTR { //nolint:errorlint // the kernel's own value
					continue
				}
				return
			}
			if fds[1].Revents != 0 {
				return
			}
			n, err := unix.Read(int(terminal.Fd()), buffer[:])
			if err != nil || n == 0 {
				return
			}
			for _, key := range buffer[:n] {
				hand(key)
			}
		}
	}()
	return func() {
		_ = waker.Close()
		<-ended
	}, nil
}
