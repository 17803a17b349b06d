package tour

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
)

// Guide talks to the person at the terminal.
type Guide struct {
	out io.Writer
	// keys has the lines that the person enters. It is nil without prompts.
	keys        chan struct{}
	step        int
	bold, plain string
}

func newGuide(out *os.File, in io.Reader, yes bool) *Guide {
	g := &Guide{out: out}
	if info, err := out.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		g.bold, g.plain = "\x1b[1m", "\x1b[0m"
	}
	if !yes {
		g.keys = make(chan struct{})
		// It runs until the process ends, because a read from a terminal cannot be interrupted.
		go func() {
			for lines := bufio.NewScanner(in); lines.Scan(); {
				g.keys <- struct{}{}
			}
			close(g.keys)
		}()
	}
	return g
}

// Begin describes the next step and waits for the person.
func (g *Guide) Begin(ctx context.Context, title, text string) error {
	g.step++
	fmt.Fprintf(g.out, "\n%s%d. %s%s\n%s\n", g.bold, g.step, title, g.plain, text)
	if g.keys == nil {
		return ctx.Err()
	}
	fmt.Fprint(g.out, "[Enter to continue, ctrl-C to quit] ")
	select {
	case <-ctx.Done():
		fmt.Fprintln(g.out)
		return ctx.Err()
	case <-g.keys:
		return nil
	}
}

// Say prints a line.
func (g *Guide) Say(format string, args ...any) { fmt.Fprintf(g.out, format+"\n", args...) }

// Command prints a command line and the machine that it runs on.
func (g *Guide) Command(where string, args []string) {
	fmt.Fprintf(g.out, "%s%s$ cloudless %s%s\n", g.bold, where, strings.Join(args, " "), g.plain)
}

// Output prints the output of a command, indented.
func (g *Guide) Output(text string) {
	for line := range strings.Lines(text) {
		fmt.Fprint(g.out, "  ", strings.TrimRight(line, "\n"), "\n")
	}
}
