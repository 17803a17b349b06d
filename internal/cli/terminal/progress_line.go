package terminal

import (
	"fmt"
	"io"
	"os"
	"sync"
)

// ProgressLine is one line on a terminal that is overwritten until the work is done. Elsewhere it shows nothing.
type ProgressLine struct {
	out *os.File // nil if nothing is shown

	mu   sync.Mutex
	last string
}

func NewProgressLine(out io.Writer) *ProgressLine {
	if f, ok := out.(*os.File); ok && IsTerminal(f) {
		return &ProgressLine{out: f}
	}
	return &ProgressLine{}
}

// Shown reports whether there is a terminal to show the line on.
func (p *ProgressLine) Shown() bool { return p.out != nil }

func (p *ProgressLine) Show(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out == nil || text == p.last {
		return
	}
	p.last = text
	p.draw()
}

// draw writes the line. The caller holds p.mu.
func (p *ProgressLine) draw() {
	text := Plain(p.last)
	if width, ok := terminalWidth(p.out); ok && width > 1 {
		text = abbreviate(text, width-1)
	}
	fmt.Fprintf(p.out, "\r\x1b[K%s", text)
}

// Beside wraps a writer to the same terminal, such as a log, that writes whole lines: they go above the progress line.
func (p *ProgressLine) Beside(out io.Writer) io.Writer {
	if p.out == nil {
		return out
	}
	return &besideLine{ProgressLine: p, out: out}
}

type besideLine struct {
	*ProgressLine
	out io.Writer
}

func (b *besideLine) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last == "" {
		return b.out.Write(data)
	}
	fmt.Fprint(b.ProgressLine.out, "\r\x1b[K")
	n, err := b.out.Write(data)
	b.draw()
	return n, err
}

// Clear erases the line, so that the next text begins at the margin.
func (p *ProgressLine) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out != nil && p.last != "" {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.last = ""
	}
}
