package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Reference is the documentation page about the command line, generated from the commands.
func Reference() string {
	root := newCLI(Options{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard}).rootCommand()
	var b strings.Builder
	b.WriteString("# Command line\n\n`make docs` generates this page from the code. `cloudless COMMAND --help` shows the same text.\n\n")
	b.WriteString("Flags of every command:\n\n")
	writeFlags(&b, root.PersistentFlags())
	for _, group := range root.Groups() {
		fmt.Fprintf(&b, "## %s\n\n", strings.TrimSuffix(group.Title, ":"))
		for _, cmd := range root.Commands() {
			if cmd.GroupID == group.ID {
				writeCommand(&b, cmd)
			}
		}
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

func writeCommand(b *strings.Builder, cmd *cobra.Command) {
	if cmd.Hidden || cmd.Name() == "help" {
		return
	}
	fmt.Fprintf(b, "### %s\n\n%s.\n\n", cmd.CommandPath(), cmd.Short)
	if cmd.Long != "" {
		fmt.Fprintf(b, "%s\n\n", markdown(strings.Join(strings.Fields(cmd.Long), " ")))
	}
	if !cmd.HasSubCommands() || cmd.LocalNonPersistentFlags().HasFlags() { // cloudless server is both
		writeUse(b, cmd)
	}
	for _, child := range cmd.Commands() {
		writeCommand(b, child)
	}
}

// writeUse writes the usage of a command that does something itself.
func writeUse(b *strings.Builder, cmd *cobra.Command) {
	fmt.Fprintf(b, "```text\n%s\n```\n\n", cmd.UseLine())
	if len(cmd.Aliases) > 0 {
		fmt.Fprintf(b, "Also: `%s`.\n\n", strings.Join(cmd.Aliases, "`, `"))
	}
	writeFlags(b, cmd.LocalNonPersistentFlags())
	b.WriteString("Examples:\n\n```text\n")
	for line := range strings.Lines(cmd.Example) {
		b.WriteString(strings.TrimPrefix(line, "  "))
	}
	b.WriteString("\n```\n\n")
}

func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	var rows []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		value, about := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if value != "" {
			name += " " + value
		}
		if given := givenDefault(f); given != "" && !strings.Contains(about, "(default") {
			about += " (default: " + given + ")"
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s |\n", name, markdown(about)))
	})
	if len(rows) == 0 {
		return
	}
	b.WriteString("| flag | is |\n| --- | --- |\n" + strings.Join(rows, "") + "\n")
}

// givenDefault is the default of a flag, the same for every user who runs the generator.
func givenDefault(f *pflag.Flag) string {
	switch {
	case f.Name == "data-dir":
		return "/var/lib/cloudless for root, else .local/share/cloudless in the home folder"
	case f.DefValue == "false" || f.DefValue == "0" || f.DefValue == "0s" || f.DefValue == "[]":
		return ""
	}
	return f.DefValue
}

// markdown escapes a text for a table cell.
func markdown(s string) string {
	return strings.NewReplacer("|", "\\|", "<", "&lt;", "\n", " ").Replace(s)
}
