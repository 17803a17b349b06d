package command

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/systemd"
)

// ForGood marks an error that a restart cannot fix. The exit code tells systemd not to restart.
func ForGood(err error) error { return Exit(exitForGood, err) }

// usageError is a mistake in the command line.
type usageError struct {
	err     error
	command string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// Usagef is the error of a mistake in the command line. The exit code is 2, and the user sees where the help is.
func Usagef(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...), command: cmd.CommandPath()}
}

// Exit ends the program with a code. Without a reason it prints nothing.
func Exit(code int, why error) error { return &exitCodeError{code: code, why: why} }

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
		return ExitUsage
	}
	if errors.Is(err, context.Canceled) {
		return ExitInterrupted
	}
	return ExitError
}

func isUsage(err error) bool {
	_, ok := errors.AsType[*usageError](err)
	return ok
}

// complain shows an error on standard error.
func (e *Env) complain(err error) {
	if own, ok := errors.AsType[*exitCodeError](err); ok && own.why == nil {
		return
	}
	prefix := terminal.StyleFor(e.Stderr).Paint(terminal.Red, "cloudless:")
	if bad, ok := errors.AsType[*spec.Error](err); ok {
		// One line for each violation, with its place in the file.
		for line := range strings.Lines(bad.Error()) {
			e.Note("%s %s", prefix, strings.TrimRight(line, "\n"))
		}
		return
	}
	e.Note("%s %s%s", prefix, client.Message(err), e.tokenUsed(err))
	if misused, ok := errors.AsType[*usageError](err); ok {
		e.Note("See: %s --help", misused.command)
	}
}

// The exit codes. Exec has those of the command that it runs as well.
const (
	exitOK          = 0
	ExitError       = 1
	ExitUsage       = 2
	exitForGood     = systemd.ForGood // such as that of a server that was removed
	ExitInterrupted = 130             // as shells report SIGINT
)
