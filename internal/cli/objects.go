package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/cloudless/cloudless/api"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/suggest"
)

// Commands for objects of every kind: get, rm and edit. If a kind has a command of its own, such as "workload ls", that
// one runs; the code here is for all other kinds.

// ownCommands turns "get nodes" into "node ls", "get node n1" into "node get n1" and "rm node n1" into "node rm n1", if
// the kind has that command. It keeps the flags.
func ownCommands(root *cobra.Command, args []string) []string {
	at := words(root, args)
	if len(at) < 2 || args[at[0]] != "get" && args[at[0]] != "rm" {
		return args
	}
	kind, known := api.KindOf(args[at[1]])
	if !known {
		return args
	}
	verb := args[at[0]]
	if verb == "get" && len(at) == 2 {
		verb = "ls"
	}
	noun := strings.ToLower(kind.Name)
	if own, _, err := root.Find([]string{noun, verb}); err != nil || own.Name() != verb && !own.HasAlias(verb) {
		return args
	}
	return slices.Concat(args[:at[0]], []string{noun, verb}, args[at[0]+1:at[1]], args[at[1]+1:])
}

// words are the indexes of the arguments that are neither flags nor values of flags.
func words(root *cobra.Command, args []string) (at []int) {
	command := root
	for i := 0; i < len(args); i++ {
		if strings.HasPrefix(args[i], "-") {
			if takesNext(root, command, args[i]) {
				i++
			}
			continue
		}
		if at = append(at, i); len(at) == 1 {
			command, _, _ = root.Find(args[i : i+1]) // the root itself if there is none
		}
	}
	return at
}

// takesNext reports whether the value of a flag is the next argument.
func takesNext(root, command *cobra.Command, arg string) bool {
	name, _, hasValue := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	for _, flags := range []*pflag.FlagSet{root.PersistentFlags(), command.Flags()} {
		flag := flags.Lookup(name)
		if flag == nil && len(name) == 1 {
			flag = flags.ShorthandLookup(name)
		}
		if flag != nil {
			return !hasValue && flag.NoOptDefVal == ""
		}
	}
	return false
}

func (c *cli) getCommand() *cobra.Command {
	var labels string
	cmd := &cobra.Command{
		Use:   "get KIND [NAME]",
		Short: "List the objects of a kind, or show one of them",
		Long: "Get lists the objects of a kind, or shows the one with a name. It works for every kind: " + strings.Join(kindNames(), ", ") + ".\n" +
			"The plural of a kind works too.",
		Example: "  cloudless get nodes\n  cloudless get workload web -o yaml\n  cloudless get events",
		Args:    kindAnd("[NAME]", 0, 1),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			kind, _ := api.KindOf(args[0])
			if len(args) == 1 && kind.List != nil {
				return c.listObjects(ctx, cl, kind, labels)
			}
			// A kind without a list, such as the cluster, has one object, which needs no name.
			return c.getObject(ctx, cl, kind, strings.Join(args[1:], ""))
		}),
		ValidArgsFunction: c.completeObjects(1),
	}
	selectorFlag(cmd, &labels, "app=shop")
	return cmd
}

func (c *cli) listObjects(ctx context.Context, cl *client.Client, kind api.Kind, labels string) error {
	all, err := cl.Objects(kind).List(ctx, c.Namespace, labels)
	if err != nil {
		return err
	}
	if !c.ForPeople() {
		return command.PrintList(c.Env, all)
	}
	t := terminal.NewTable(c.Stdout, "NAME", "LABELS", "AGE")
	for _, o := range all {
		m := o.GetMetadata()
		t.Row(m.GetName(), terminal.Pairs(m.GetLabels()), command.Age(m.GetCreateTime(), time.Now()))
	}
	c.NoteEmpty(len(all), kind.Plural, !kind.Namespaced)
	return t.Flush()
}

func (c *cli) getObject(ctx context.Context, cl *client.Client, kind api.Kind, name string) error {
	object, err := cl.Objects(kind).Get(ctx, c.Namespace, name)
	if err != nil {
		return err
	}
	c.PreferYAML()
	return c.PrintObject(object)
}

func (c *cli) removeObjects(ctx context.Context, cl *client.Client, kind api.Kind, names []string) error {
	return c.ForEach(names, func(name string) error {
		removed, err := cl.Objects(kind).Delete(ctx, c.Namespace, name)
		if err != nil {
			return err
		}
		return c.PrintRemoved(strings.ToLower(kind.Name), name, removed, len(names) > 1)
	})
}

func (c *cli) rmCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rm KIND NAME...",
		Short:   "Remove objects of a kind",
		Example: "  cloudless rm workload web\n  cloudless rm tokens ci-1 ci-2",
		Args:    kindAnd("NAME...", 1, -1),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			kind, _ := api.KindOf(args[0])
			return c.removeObjects(ctx, cl, kind, args[1:])
		}),
		ValidArgsFunction: c.completeObjects(-1),
	}
}

func selectorFlag(cmd *cobra.Command, labels *string, example string) {
	cmd.Flags().StringVarP(labels, "selector", "l", "", "show only objects with these `labels`, such as "+example)
}

// kindAnd checks that the first argument is a kind, and that least to most names follow; most -1 means any number.
func kindAnd(what string, least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return command.Usagef(cmd, "KIND is missing: %s; the kinds are %s", cmd.UseLine(), strings.Join(kindNames(), ", "))
		case len(args)-1 < least:
			return command.Usagef(cmd, "%s is missing: %s", what, cmd.UseLine())
		case most >= 0 && len(args)-1 > most:
			return command.Usagef(cmd, "%q is too much: %s", args[most+1], cmd.UseLine())
		}
		if _, known := api.KindOf(args[0]); known {
			return nil
		}
		if near := suggest.To(args[0], slices.Values(kindNames())); near != "" {
			return command.Usagef(cmd, "there is no kind %q; did you mean %s?", args[0], near)
		}
		return command.Usagef(cmd, "there is no kind %q; the kinds are %s", args[0], strings.Join(kindNames(), ", "))
	}
}

// kindNames are the kinds as people write them.
func kindNames() []string {
	var all []string
	for _, kind := range api.Kinds() {
		all = append(all, strings.ToLower(kind.Name))
	}
	return all
}

// completeObjects completes a kind and then up to most names of its objects; most -1 means any number.
func (c *cli) completeObjects(most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return slices.DeleteFunc(kindNames(), func(name string) bool { return !strings.HasPrefix(name, typed) }), cobra.ShellCompDirectiveNoFileComp
		}
		kind, known := api.KindOf(args[0])
		if !known || most >= 0 && len(args) > most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.ask(cmd.Context(), objectNames(kind.Name), args[1:], typed), cobra.ShellCompDirectiveNoFileComp
	}
}

// editable reports whether files can hold objects of a kind.
func editable(kind api.Kind) bool {
	message, err := protoregistry.GlobalTypes.FindMessageByName(kind.Message.FullName())
	return err == nil && spec.ManifestOf(message.New().Interface()) != nil
}

func notEditable(kind api.Kind) error {
	return fmt.Errorf("a %s cannot be edited: only kinds that files can hold can be", strings.ToLower(kind.Name))
}
