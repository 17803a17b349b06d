package command

import (
	"net"

	"github.com/spf13/cobra"
)

// ExactArgs requires one argument for each of the given words.
func ExactArgs(words ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(words):
			return Usagef(cmd, "%s is missing: %s", words[len(args)], cmd.UseLine())
		case len(args) > len(words):
			return Usagef(cmd, "%q is too much: %s", args[len(words)], cmd.UseLine())
		}
		return nil
	}
}

// AtLeastOne requires at least one argument.
func AtLeastOne(word string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return Usagef(cmd, "%s is missing: %s", word, cmd.UseLine())
		}
		return nil
	}
}

// AtMostOne accepts one argument or none.
func AtMostOne(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return Usagef(cmd, "%q is too much: %s", args[1], cmd.UseLine())
	}
	return nil
}

// ForEach does something with every name, also after a failure. It returns the first error and shows the others.
func (e *Env) ForEach(names []string, do func(name string) error) error {
	var failed error
	for _, name := range names {
		switch err := do(name); {
		case err == nil:
		case failed == nil:
			failed = err
		default:
			e.complain(err)
		}
	}
	return failed
}

// CheckAddress refuses an address that is not host:port. What names the flag or argument.
func CheckAddress(cmd *cobra.Command, what, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil || port == "" {
		return Usagef(cmd, "%s %q is not of the form host:port, such as 192.0.2.1:7700", what, address)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return Usagef(cmd, "%s %q: there is no port %s: use 1 to 65535", what, address, port)
	}
	return nil
}
