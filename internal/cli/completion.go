package cli

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/api"
	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
)

func (c *cli) completionCommand() *cobra.Command {
	shells := map[string]func(*cobra.Command, io.Writer) error{
		"bash": func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, true) },
		"zsh":  func(root *cobra.Command, w io.Writer) error { return root.GenZshCompletion(w) },
		"fish": func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) },
	}
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a script that completes commands, flags and names in your shell",
		Long: "Completion prints a script for your shell. The tab key then completes commands, flags and contexts. It asks the\n" +
			"cluster for the names of workloads, nodes, images and tokens.",
		Example: "  source <(cloudless completion bash)\n" +
			"  cloudless completion bash > /etc/bash_completion.d/cloudless\n" +
			"  cloudless completion zsh > \"${fpath[1]}/_cloudless\"\n" +
			"  cloudless completion fish > ~/.config/fish/completions/cloudless.fish",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := command.ExactArgs("SHELL")(cmd, args); err != nil {
				return err
			}
			if shells[args[0]] == nil {
				return command.Usagef(cmd, "shell %q is not known: use bash, zsh or fish", args[0])
			}
			return nil
		},
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			return shells[args[0]](cmd.Root(), c.Stdout)
		},
	}
}

// completionTime limits how long the tab key waits for the cluster. After that, nothing is offered. Tests wait longer.
var completionTime = time.Second

// lister lists the names of one kind.
type lister func(ctx context.Context, c *cli, cl *client.Client) ([]string, error)

// completeNames makes arguments and flags complete: arguments of a noun's commands by that noun, those of other
// commands by the table here.
func (c *cli) completeNames(root *cobra.Command) {
	for _, group := range root.Commands() {
		_, noun := api.KindOf(group.Name())
		for _, cmd := range group.Commands() {
			if noun && cmd.ValidArgsFunction == nil && strings.Contains(cmd.Use, " NAME") {
				cmd.ValidArgsFunction = c.completeBy(objectNames(group.Name()), strings.Contains(cmd.Use, "..."))
			}
			if group.Name() == "context" && strings.Contains(cmd.Use, " NAME") {
				cmd.ValidArgsFunction = c.completeContexts
			}
		}
		switch group.Name() {
		case "ps", "logs", "exec", "forward", "stats", "explain":
			if group.ValidArgsFunction == nil {
				group.ValidArgsFunction = c.completeBy(objectNames("workload"), false)
			}
		case "cp":
			group.ValidArgsFunction = c.completeCopy
		}
	}
	c.completeFlags(root)
}

// completeFlags sets the completion of flags by their names, for a command and all below it.
func (c *cli) completeFlags(cmd *cobra.Command) {
	for name, complete := range map[string]cobra.CompletionFunc{
		"context":   c.completeContexts,
		"namespace": c.completeBy(objectNames("namespace"), true),
		"node":      c.completeBy(objectNames("node"), true),
		"replica":   c.completeBy(objectNames("replica"), true),
		"for":       c.completeBy(objectNames("workload"), true),
		"output":    cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp),
		"role":      cobra.FixedCompletions([]string{"node", "server", "admin", "operator", "viewer"}, cobra.ShellCompDirectiveNoFileComp),
		"restart":   cobra.FixedCompletions([]string{"always", "on-failure", "never"}, cobra.ShellCompDirectiveNoFileComp),
		"log-level": cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp),
	} {
		if cmd.LocalNonPersistentFlags().Lookup(name) != nil || cmd.PersistentFlags().Lookup(name) != nil {
			_ = cmd.RegisterFlagCompletionFunc(name, complete) // fails where the command has its own
		}
	}
	for _, below := range cmd.Commands() {
		c.completeFlags(below)
	}
}

// completeBy completes the first argument, or every argument, with names from the cluster.
func (c *cli) completeBy(list lister, every bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && !every {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return c.ask(cmd.Context(), list, args, typed), cobra.ShellCompDirectiveNoFileComp
	}
}

// ask lists the names that begin with the typed text and are not among the arguments yet.
func (c *cli) ask(ctx context.Context, list lister, have []string, typed string) []string {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	if c.TokenFromStdin() {
		return nil // standard input belongs to the shell
	}
	cl, err := c.Dial(ctx)
	if err != nil {
		return nil
	}
	defer cl.Close()
	all, err := list(ctx, c, cl)
	if err != nil {
		return nil
	}
	all = slices.DeleteFunc(all, func(name string) bool {
		return !strings.HasPrefix(name, typed) || slices.Contains(have, name)
	})
	slices.Sort(all)
	return slices.Compact(all)
}

func (c *cli) completeContexts(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	path, err := c.ConfigPath()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	config, err := client.LoadConfig(path)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.Collect(config.Names()), cobra.ShellCompDirectiveNoFileComp
}

// completeCopy offers local files, and workloads with a colon.
func (c *cli) completeCopy(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 1 || strings.ContainsAny(typed, ":/.") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	workloads := c.ask(cmd.Context(), objectNames("workload"), nil, typed)
	for i := range workloads {
		workloads[i] += ":/"
	}
	return workloads, cobra.ShellCompDirectiveNoSpace
}

// completeDescribed offers workloads, and objects of other kinds as KIND/NAME.
func (c *cli) completeDescribed(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	word, name, qualified := strings.Cut(typed, "/")
	if kind, known := api.KindOf(word); known && qualified {
		names := c.ask(cmd.Context(), objectNames(kind.Name), nil, name)
		for i := range names {
			names[i] = word + "/" + names[i]
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	if workloads := c.ask(cmd.Context(), objectNames("workload"), nil, typed); len(workloads) > 0 {
		return workloads, cobra.ShellCompDirectiveNoFileComp
	}
	kinds := matchingKinds(typed)
	for i := range kinds {
		kinds[i] += "/"
	}
	return kinds, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}

// objectNames lists the names of a kind, in the current namespace if the kind is namespaced.
func objectNames(kind string) lister {
	return func(ctx context.Context, c *cli, cl *client.Client) ([]string, error) {
		known, _ := api.KindOf(kind)
		all, err := cl.Objects(known).List(ctx, c.Namespace, "")
		return namesOf(all), err
	}
}

func namesOf[T interface{ GetMetadata() *cloudlessv1.Metadata }](objects []T) []string {
	var all []string
	for _, o := range objects {
		all = append(all, o.GetMetadata().GetName())
	}
	return all
}
