package command

import (
	"context"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/spec"
)

// Execute runs one command line and returns the exit code. It ends early when ctx does.
func (e *Env) Execute(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(listPlural(root, args))
	ctx, traced := e.trace(ctx, root, args)
	cmd, err := root.ExecuteContextC(ctx)
	traced(err)
	code := exitCode(err)
	if _, own := cmd.Annotations[OwnUsageCode]; own && isUsage(err) {
		code = ExitError
	}
	if code != exitOK {
		e.complain(err)
	}
	return code
}

// NewRoot is the program without its commands: the global flags, the groups of commands and the help.
func (e *Env) NewRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "cloudless",
		Short: "Turn your machines into one cloud",
		Long: "Cloudless turns machines into one cloud that you own.\n\n" +
			"Start with cloudless up, run something with cloudless run, and see it with cloudless ps.",
		Example:       "  cloudless up --detach\n  cloudless run ./hello --name web\n  cloudless logs -f web",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE:          groupRun,
		// The completion command of package cli replaces cobra's.
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := parseFormat(e.output); err != nil {
				return err
			}
			if e.server == "" {
				return nil
			}
			return CheckAddress(cmd, "--server", e.server)
		},
	}
	root.SetIn(e.Stdin)
	root.SetOut(e.Stdout)
	root.SetErr(e.Stderr)
	root.SetFlagErrorFunc(flagError)
	e.registerGlobalFlags(root)
	root.AddGroup(
		&cobra.Group{ID: GroupWorkloads, Title: "Workloads:"},
		&cobra.Group{ID: GroupCluster, Title: "Cluster:"},
		&cobra.Group{ID: GroupMachine, Title: "This machine:"},
	)
	root.SetHelpCommand(helpCommand())
	root.SetHelpCommandGroupID(GroupMachine)
	return root
}

func (e *Env) registerGlobalFlags(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.StringVar(&e.Config, "config", "", "client configuration `file` (default: $"+client.ConfigEnv+", else in the user's configuration folder)")
	flags.StringVar(&e.Context, "context", os.Getenv(ContextEnv), "`name` of the cluster's context (default: $"+ContextEnv+", else the current one)")
	flags.StringVar(&e.server, "server", "", "`address` of a server to use when none in the context answers (saved)")
	flags.String("token-file", "", "`file` with the API token, - for standard input (default: $"+TokenEnv+", else the context's)")
	e.tokenFile = flags.Lookup("token-file")
	flags.StringVarP(&e.Namespace, "namespace", "n", spec.DefaultNamespace, "`namespace` of workloads")
	flags.StringVarP(&e.output, "output", "o", "table", "`format` of the output: table, json or yaml")
	flags.BoolVar(&e.Stale, "stale", false, "allow stale reads from any server, even without a leader")
}

const (
	GroupWorkloads = "apps"
	GroupCluster   = "cluster"
	GroupMachine   = "machine"
)

// Add adds commands to a group of the root.
func Add(root *cobra.Command, group string, commands ...*cobra.Command) {
	for _, command := range commands {
		command.GroupID = group
		root.AddCommand(command)
	}
}

// Group is a command that only has subcommands.
func Group(use, short, example string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Example: example, Args: cobra.ArbitraryArgs, RunE: groupRun}
	cmd.AddCommand(commands...)
	return cmd
}

// groupRun shows the help of a command without its subcommand, or an error if the subcommand does not exist.
func groupRun(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	return unknownCommand(cmd, args[0])
}

func unknownCommand(cmd *cobra.Command, word string) error {
	return Usagef(cmd, "there is no command %q under %s%s", word, cmd.CommandPath(), didYouMeanCommand(cmd, word))
}

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
	// A word that is no flag was meant as a subcommand.
	noun.Commands()[i].Args = func(_ *cobra.Command, words []string) error {
		if len(words) > 0 {
			return unknownCommand(noun, words[0])
		}
		return nil
	}
	return slices.Concat(strings.Fields(noun.CommandPath())[1:], []string{"ls"}, rest)
}

// helpCommand is cobra's, except that an unknown command is an error.
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
				return Usagef(cmd.Root(), "%w", err)
			}
			if len(rest) > 0 && about.HasSubCommands() {
				return groupRun(about, rest)
			}
			return about.Help()
		},
	}
}

// OwnUsageCode marks commands in which exit code 2 has a meaning of its own, so that misuse is an error like others.
const OwnUsageCode = "own-usage-code"
