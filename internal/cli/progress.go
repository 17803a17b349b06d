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
	text = plain(text)
	if width, ok := terminalWidth(p.out); ok && width > 1 {
		text = abbreviate(text, width-1)
	}
	fmt.Fprintf(p.out, "\r\x1b[K%s", text)
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
