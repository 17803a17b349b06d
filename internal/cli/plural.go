package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// listPlural turns a noun in the plural without a command, such as "nodes -o json", into its list: "node ls -o json".
// The aliases of nouns are their plurals.
func listPlural(root *cobra.Command, args []string) []string {
	noun, rest, err := root.Find(args)
	if err != nil || len(rest) > 0 && !strings.HasPrefix(rest[0], "-") || slices.Contains(rest, "--help") || slices.Contains(rest, "-h") {
		return args
	}
	plural := slices.ContainsFunc(noun.Aliases, func(alias string) bool { return slices.Contains(args, alias) })
	i := slices.IndexFunc(noun.Commands(), func(below *cobra.Command) bool { return below.Name() == "ls" })
	if !plural || i < 0 {
		return args
	}
	// What is no flag was meant as a command of the noun.
	noun.Commands()[i].Args = func(_ *cobra.Command, words []string) error {
		if len(words) > 0 {
			return unknownCommand(noun, words[0])
		}
		return nil
	}
	return slices.Concat(strings.Fields(noun.CommandPath())[1:], []string{"ls"}, rest)
}
