package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestReferenceNamesEveryFlag of every command, also of those that have others below them.
func TestReferenceNamesEveryFlag(t *testing.T) {
	page := Reference()
	var look func(cmd *cobra.Command)
	look = func(cmd *cobra.Command) {
		if cmd.Hidden || cmd.Name() == "help" {
			return
		}
		_, section, _ := strings.Cut(page, "### "+cmd.CommandPath()+"\n")
		section, _, _ = strings.Cut(section, "\n### ")
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(section, "--"+f.Name) {
				t.Errorf("the page does not name --%s of %s", f.Name, cmd.CommandPath())
			}
		})
		for _, child := range cmd.Commands() {
			look(child)
		}
	}
	for _, cmd := range newCLI(Options{}).rootCommand().Commands() {
		look(cmd)
	}
}
