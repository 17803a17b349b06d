package cli

import (
	"fmt"
	"io"
	"os"
	"sync"
)

// progress is one line on a terminal that is written over until the work is done. Elsewhere it shows nothing.
type progress struct {
	out *os.File // nil if nothing is shown

	mu   sync.Mutex
	last string
}

func newProgress(out io.Writer) *progress {
	if f, ok := out.(*os.File); ok && isTerminal(f) {
		return &progress{out: f}
	}
	return &progress{}
}

func (p *progress) show(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out == nil || text == p.last {
		return
	}
	p.last = text
	p.draw()
}

// draw writes the line. The caller holds p.mu.
func (p *progress) draw() {
	text := plain(p.last)
	if width, ok := terminalWidth(p.out); ok && width > 1 {
		text = abbreviate(text, width-1)
	}
	fmt.Fprintf(p.out, "\r\x1b[K%s", text)
}

// beside is for what is written to the same terminal, such as a log, in whole
// lines: the line makes way for it and is drawn again below.
func (p *progress) beside(out io.Writer) io.Writer {
	if p.out == nil {
		return out
	}
	return &besideProgress{progress: p, out: out}
}

type besideProgress struct {
	*progress
	out io.Writer
}

func (b *besideProgress) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last == "" {
		return b.out.Write(data)
	}
	fmt.Fprint(b.progress.out, "\r\x1b[K")
	n, err := b.out.Write(data)
	b.draw()
	return n, err
}

// clear takes the line away, so that what follows begins at the margin.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out != nil && p.last != "" {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.last = ""
	}
}
