package command

import (
	"iter"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/internal/suggest"
)

// DidYouMean is the end of an error about a name that does not exist: the nearest existing name, or else another hint.
func DidYouMean(name string, among iter.Seq[string], otherwise string) string {
	if near := suggest.To(name, among); near != "" {
		return "; did you mean " + near + "?"
	}
	return "; " + otherwise
}

// didYouMeanCommand is the same for a command: one of another noun, the equivalent of another tool's command, or the
// nearest one.
func didYouMeanCommand(cmd *cobra.Command, word string) string {
	var all, elsewhere []string
	for _, below := range cmd.Commands() {
		if below.Hidden {
			continue
		}
		all = append(append(all, below.Name()), below.Aliases...)
		if slices.Contains(below.SuggestFor, word) {
			elsewhere = append(elsewhere, below.CommandPath())
		}
		for _, deeper := range below.Commands() {
			if deeper.Name() == word || slices.Contains(deeper.Aliases, word) || slices.Contains(deeper.SuggestFor, word) {
				elsewhere = append(elsewhere, deeper.CommandPath())
			}
		}
	}
	near := suggest.To(word, slices.Values(all))
	switch {
	case len(elsewhere) > 0:
		return ": did you mean " + strings.Join(elsewhere, " or ") + "?"
	case near != "":
		return ": did you mean " + near + "?"
	}
	return ""
}
