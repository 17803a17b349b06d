package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/cloudless/cloudless/api"
	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/bucket"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/role"
	"github.com/cloudless/cloudless/internal/cli/secret"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/suggest"
)

// Commands for objects of every kind: get, rm and edit. If a kind has a command of its own, such as "workload ls", that
// one runs; the code here is for all other kinds.

// listCommands are the lists of kinds whose noun has no command "ls".
var listCommands = map[string]string{"Event": "events", "Login": "image logins", "Replica": "ps"}

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
	own := []string{kind.Noun(), args[at[0]]}
	if args[at[0]] == "get" && len(at) == 2 {
		own[1] = "ls"
		if list := listCommands[kind.Name]; list != "" {
			own = strings.Fields(list)
		}
	}
	last := own[len(own)-1]
	if found, _, err := root.Find(own); err != nil || found.Name() != last && !found.HasAlias(last) {
		return args
	}
	rest := slices.Concat(args[at[0]+1:at[1]], args[at[1]+1:])
	if !kind.Namespaced { // the list shows all objects anyway
		rest = slices.DeleteFunc(rest, func(arg string) bool { return arg == "-A" || arg == "--all-namespaces" })
	}
	return slices.Concat(args[:at[0]], own, rest)
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
	var s scope
	cmd := &cobra.Command{
		Use:   "get KIND [NAME]",
		Short: "List the objects of a kind, or show one of them",
		Long: "Get lists the objects of a kind, or shows the one with a name. It works for every kind: " + strings.Join(kindNames(), ", ") + ".\n" +
			"The plural of a kind works too.",
		Example: "  cloudless get nodes\n  cloudless get workload web -o yaml\n  cloudless get services -A",
		Args:    kindAnd("[NAME]", 0, 1),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			kind, _ := api.KindOf(args[0])
			if len(args) == 1 && kind.List != nil {
				return c.listObjects(ctx, cl, kind, s)
			}
			// A kind without a list, such as the cluster, has one object, which needs no name.
			return c.getObject(ctx, cl, kind, strings.Join(args[1:], ""))
		}),
		ValidArgsFunction: c.completeObjects(1),
	}
	s.register(cmd)
	return cmd
}

// columns are what a list shows of a kind beside names and age. Other kinds show their labels.
var columns = map[string]struct {
	headings []string
	row      func(client.Object) []string
}{
	"Configuration": {[]string{"AUTHOR", "COMMENT"}, func(o client.Object) []string {
		c := o.(*cloudlessv1.Configuration)
		return []string{authorOf(c), c.GetSpec().GetComment()}
	}},
	"Deployment": {[]string{"WORKLOAD", "REVISION", "CAUSE", "AUTHOR", "DURATION", "PHASE"}, func(o client.Object) []string {
		d := o.(*cloudlessv1.Deployment)
		return []string{
			d.GetSpec().GetWorkload(), strconv.FormatUint(d.GetSpec().GetRevision(), 10), d.GetSpec().GetCause(), d.GetSpec().GetAuthor(),
			deploymentDuration(d, time.Now()), d.GetStatus().GetPhase(),
		}
	}},
	"Role": {[]string{"GRANTS"}, func(o client.Object) []string { return []string{role.Rules(o.(*cloudlessv1.Role))} }},
	"RoleBinding": {[]string{"ROLE", "NAMESPACE", "FOR"}, func(o client.Object) []string {
		b := o.(*cloudlessv1.RoleBinding)
		return []string{b.GetSpec().GetRole(), cmp.Or(b.GetSpec().GetNamespace(), "all"), role.Subjects(b)}
	}},
	"Certificate": {[]string{"HOSTS", "SOURCE", "STATE", "EXPIRES", "PROBLEM"}, certificateRow},
	"Secret":      {secret.Headings, secret.Row},
	"Bucket":      {bucket.Headings, bucket.Row},
	"AccessKey":   {bucket.KeyHeadings, bucket.KeyRow},
	"Policy": {[]string{"MODE", "KINDS", "NAMESPACES", "RULES"}, func(o client.Object) []string {
		p := o.(*cloudlessv1.Policy)
		m := p.GetSpec().GetMatch()
		kinds, namespaces := "workload", "all"
		if len(m.GetKinds()) > 0 {
			kinds = strings.Join(m.GetKinds(), ",")
		}
		if len(m.GetNamespaces()) > 0 {
			namespaces = strings.Join(m.GetNamespaces(), ",")
		}
		if len(m.GetExceptNamespaces()) > 0 {
			namespaces += " but " + strings.Join(m.GetExceptNamespaces(), ",")
		}
		return []string{p.GetSpec().GetMode(), kinds, namespaces, strconv.Itoa(len(p.GetSpec().GetRules()))}
	}},
	"Route": {[]string{"URL", "TO", "NODES", "REQUESTS/S", "REASON"}, routeRow},
	"Revision": {[]string{"REVISION", "IMAGE"}, func(o client.Object) []string {
		r := o.(*cloudlessv1.Revision)
		return []string{strconv.FormatUint(r.GetSpec().GetNumber(), 10), r.GetSpec().GetWorkload().GetImage()}
	}},
	"": {[]string{"LABELS"}, func(o client.Object) []string { return []string{terminal.Pairs(o.GetMetadata().GetLabels())} }},
}

func (c *cli) listObjects(ctx context.Context, cl *client.Client, kind api.Kind, s scope) error {
	selection := s.selection(c)
	all, err := cl.Objects(kind).List(ctx, selection.GetNamespace(), selection.GetLabels())
	if err != nil {
		return err
	}
	if !c.ForPeople() {
		return command.PrintList(c.Env, all)
	}
	shown, known := columns[kind.Name]
	if !known {
		shown = columns[""]
	}
	everywhere := s.everywhere && kind.Namespaced
	t := c.newScopedTable(everywhere, slices.Concat([]string{"NAME"}, shown.headings, []string{"AGE"})...)
	for _, o := range all {
		m := o.GetMetadata()
		t.row(m, slices.Concat([]string{m.GetName()}, shown.row(o), []string{command.Age(m.GetCreateTime(), time.Now())})...)
	}
	c.NoteEmpty(len(all), kind.Plural, everywhere || !kind.Namespaced)
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
		return c.PrintRemoved(kind.Noun(), name, removed, len(names) > 1)
	})
}

func (c *cli) rmCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rm KIND NAME...",
		Short:   "Remove objects of a kind",
		Example: "  cloudless rm workload web\n  cloudless rm tokens ci-1 ci-2",
		Args:    kindAnd("NAME...", 1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, _ := api.KindOf(args[0])
			if kind.Delete == nil {
				return fixed(kind, "removed")
			}
			return c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
				return c.removeObjects(ctx, cl, kind, args[1:])
			})(cmd, args)
		},
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
		case len(args)-1 < least && !isSingle(args[0]):
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

// isSingle reports whether a kind has one object, which needs no name.
func isSingle(word string) bool {
	kind, known := api.KindOf(word)
	return known && kind.List == nil
}

// kindNames are the kinds as people write them.
func kindNames() []string {
	var all []string
	for _, kind := range api.Kinds() {
		all = append(all, kind.Noun())
	}
	return all
}

// matchingKinds are the kinds that begin with the typed text.
func matchingKinds(typed string) []string {
	return slices.DeleteFunc(kindNames(), func(name string) bool { return !strings.HasPrefix(name, typed) })
}

// completeObjects completes a kind and then up to most names of its objects; most -1 means any number.
func (c *cli) completeObjects(most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return matchingKinds(typed), cobra.ShellCompDirectiveNoFileComp
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

// insteadOf says why objects of a kind cannot be edited or removed, and what to do instead.
var insteadOf = map[string]map[string]string{
	"edited": {
		"AccessKey":     "what it may do never changes; make another with: cloudless bucket key BUCKET, and remove it with: cloudless bucket key rm KEY",
		"Certificate":   "it is what its authority has signed; replace it with: cloudless certificate add NAME --cert FILE --key FILE --update",
		"Configuration": "a version never changes; make the next one with: cloudless edit cluster",
		"Deployment":    "it records how a revision was rolled out; steer it with: cloudless rollout, or change its workload with: cloudless edit workload NAME",
		"Endpoint":      "it follows a replica or was registered; register it again with: cloudless endpoint register SERVICE NAME ADDRESS",
		"Event":         "it records what has happened",
		"Image":         "its digest stands for its content; push another one with: cloudless image push",
		"Login":         "its password cannot be read; replace it with: cloudless image login HOST",
		"Replica":       "it follows its workload; change that with: cloudless edit workload NAME",
		"Revision":      "it records what a workload was; change that with: cloudless edit workload NAME",
		"Secret":        "its value cannot be read; give it another one with: cloudless secret set NAME, or change who may use it with --keep",
		"Server":        "it reports its own settings; change the flags of cloudless server on its machine and restart it",
		"Token":         "its rights never change; create another with: cloudless token create, and revoke it with: cloudless token rm NAME",
	},
	"removed": {
		"Cluster":       "it ends with its machines; end it on each of them with: cloudless down --purge",
		"Configuration": "the cluster keeps old versions for a while; go back to one with: cloudless cluster config rollback VERSION",
		"Deployment":    "the cluster removes old ones itself, and all of them with: cloudless workload rm NAME",
		"Endpoint":      "its name is unique only in its service; deregister it with: cloudless endpoint deregister SERVICE NAME",
		"Event":         "the cluster removes old ones itself; change when with: cloudless cluster config set retention.events=DURATION",
		"Replica":       "its workload would create another; change that with: cloudless workload scale NAME REPLICAS, or cloudless workload restart NAME",
		"Revision":      "the cluster removes old ones itself, and all of them with: cloudless workload rm NAME",
	},
}

// fixed refuses to edit or remove objects of a kind.
func fixed(kind api.Kind, verb string) error {
	return fmt.Errorf("%s cannot be %s: %s", kind.OneNoun(), verb, cmp.Or(insteadOf[verb][kind.Name], "the cluster has no call for that"))
}
