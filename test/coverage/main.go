// Command coverage turns a coverage profile of all tests into a table of the hand-written code: one row per package
// and the total. It rewrites the profile without the code that does not count, so that go tool cover -html shows the
// same. It fails if the total is too low.
//
//	make coverage
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

const module = "github.com/cloudless/cloudless/"

func main() {
	err := run(os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "coverage:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("coverage", flag.ContinueOnError)
	flags.SetOutput(stderr)
	path := flags.String("profile", "build/coverage.txt", "the `file` to read, in the format of go test -coverprofile")
	least := flags.Float64("least", 0, "fail if the total is below this many `percent`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	all, err := readProfile(*path)
	if err != nil {
		return err
	}
	all, err = handWritten(all, os.DirFS("."))
	if err != nil {
		return err
	}
	if err := writeProfile(*path, all); err != nil {
		return err
	}
	rows, total := summarize(all)
	if err := printTable(stdout, append(rows, total)); err != nil {
		return err
	}
	if total.percent() < *least {
		return fmt.Errorf("the tests reach %.1f %% of the hand-written code; at least %g %% is required", total.percent(), *least)
	}
	return nil
}
