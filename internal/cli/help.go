package cli

import "github.com/spf13/cobra"

// helpCommand is cobra's, but for words that are no command: these are mistakes here as everywhere.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND...]",
		Short:   "Show help about a command",
		Example: "  cloudless help run\n  cloudless help workload scale",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			about, _, err := cmd.Root().Find(args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var all []string
			for _, below := range about.Commands() {
				if below.IsAvailableCommand() {
					all = append(all, below.Name())
				}
			}
			return all, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil {
				return usage(cmd.Root(), "%w", err)
			}
			if len(rest) > 0 && about.HasSubCommands() {
				return groupRun(about, rest)
			}
			return about.Help()
		},
	}
}
