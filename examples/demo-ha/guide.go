package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
)

// guide talks to the person at the terminal.
type guide struct {
	out io.Writer
	// keys has the lines that the person enters. It is nil without prompts.
	keys        chan struct{}
	step        int
	bold, plain string
}

func newGuide(out *os.File, in io.Reader, yes bool) *guide {
	g := &guide{out: out}
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

// begin describes the next step and waits for the person.
func (g *guide) begin(ctx context.Context, title, text string) error {
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

func (g *guide) say(format string, args ...any) { fmt.Fprintf(g.out, format+"\n", args...) }

// command prints a command line and the machine that it runs on.
func (g *guide) command(where string, args []string) {
	fmt.Fprintf(g.out, "%s%s$ cloudless %s%s\n", g.bold, where, strings.Join(args, " "), g.plain)
}

// output prints the output of a command, indented.
func (g *guide) output(text string) {
	for line := range strings.Lines(text) {
		fmt.Fprint(g.out, "  ", strings.TrimRight(line, "\n"), "\n")
	}
}
