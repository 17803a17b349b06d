package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// ForGood marks an error that every later start would end with, too, so that nobody starts it again by himself.
func ForGood(err error) error { return &exitCodeError{code: exitForGood, why: err} }

// usageError is a command line that cannot be understood.
type usageError struct {
	err     error
	command string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usage(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...), command: cmd.CommandPath()}
}

// exitCodeError ends the program with a code, without a word if there is no reason.
type exitCodeError struct {
	code int
	why  error
}

func (e *exitCodeError) Error() string {
	if e.why != nil {
		return e.why.Error()
	}
	return fmt.Sprintf("exit code %d", e.code)
}

func (e *exitCodeError) Unwrap() error { return e.why }

func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if own, ok := errors.AsType[*exitCodeError](err); ok {
		return own.code
	}
	if isUsage(err) {
		return exitUsage
	}
	if errors.Is(err, context.Canceled) {
		return exitInterrupted
	}
	return exitError
}

func isUsage(err error) bool {
	_, ok := errors.AsType[*usageError](err)
	return ok
}

// complain says on standard error what went wrong.
func (c *cli) complain(err error) {
	if own, ok := errors.AsType[*exitCodeError](err); ok && own.why == nil {
		return
	}
	who := terminal.StyleFor(c.Stderr).Paint(terminal.Red, "cloudless:")
	if bad, ok := errors.AsType[*spec.Error](err); ok {
		// One line for each violation, with its place in the file.
		for line := range strings.Lines(bad.Error()) {
			c.note("%s %s", who, strings.TrimRight(line, "\n"))
		}
		return
	}
	c.note("%s %s%s", who, client.Message(err), c.tokenUsed(err))
	if misused, ok := errors.AsType[*usageError](err); ok {
		c.note("See: %s --help", misused.command)
	}
}

// names makes sure that there is one argument for each of the given words.
func names(words ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(words):
			return usage(cmd, "%s is missing: %s", words[len(args)], cmd.UseLine())
		case len(args) > len(words):
			return usage(cmd, "%q is too much: %s", args[len(words)], cmd.UseLine())
		}
		return nil
	}
}
