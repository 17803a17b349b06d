package cli

import (
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
)

// oneOrMore makes sure that there is at least one argument.
func oneOrMore(word string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usage(cmd, "%s is missing: %s", word, cmd.UseLine())
		}
		return nil
	}
}

// forEach does something with every name. A failure with one keeps no other from it: the first is returned, the others
// are told.
func (c *cli) forEach(names []string, do func(name string) error) error {
	var failed error
	for _, name := range names {
		switch err := do(name); {
		case err == nil:
		case failed == nil:
			failed = err
		default:
			c.complain(err)
		}
	}
	return failed
}

// printRemoved shows what was removed, one of several if there are.
func (c *cli) printRemoved(noun, name string, object proto.Message, several bool) error {
	switch {
	case c.forPeople():
		return c.printf("%s %s removed\n", noun, name)
	case several:
		return c.printItem(object)
	}
	return c.printObject(object)
}
