package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

func (c *cli) nodeLabelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "label NAME KEY=VALUE|KEY-...",
		Short: "Set and remove labels of a node",
		Long: "Label sets labels of a node, and removes those whose key is followed by a dash. Workloads select nodes by their\n" +
			"labels. Replicas that are pending for lack of a label are placed at once; running replicas stay where they are.\n" +
			"Labels survive a restart of the node's agent or machine. Those that begin with " + spec.OwnLabels + " belong to\n" +
			"the cluster and cannot be set.",
		Example: "  cloudless node label box1 disk=ssd\n  cloudless node label box1 disk=nvme old-",
		Args:    namesAnd("NAME", "KEY=VALUE or KEY-"),

		ValidArgsFunction: c.completeBy(objectNames("node"), false),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, cmd *cobra.Command, args []string) error {
			request := &cloudlessv1.UpdateNodeRequest{Name: args[0]}
			var set []string
			for _, word := range args[1:] {
				if key, removed := removal(word); removed {
					request.RemoveLabels = append(request.RemoveLabels, key)
				} else {
					set = append(set, word)
				}
			}
			var err error
			if request.Labels, err = command.ParsePairs("label", set, nil); err != nil {
				return command.Usagef(cmd, "%v", err)
			}
			return c.updateNode(ctx, cl, request, func(n *cloudlessv1.Node) string {
				return has("labels", terminal.Pairs(n.GetMetadata().GetLabels()))
			})
		}),
	}
}

// removal parses a word such as "disk-", which removes a label. Neither keys nor values end with a dash.
func removal(word string) (key string, removed bool) {
	key, removed = strings.CutSuffix(word, "-")
	return key, removed && key != "" && !strings.Contains(key, "=")
}

func (c *cli) nodeTaintCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "taint NAME KEY[=VALUE]:EFFECT|KEY[:EFFECT]-...",
		Short: "Keep workloads without a matching toleration off a node",
		Long: "Taint marks a node, so that only workloads that tolerate the taint use it. Effects are:\n\n" +
			"  NoSchedule        no new replicas are placed there\n" +
			"  PreferNoSchedule  new replicas are placed there only if no other node fits\n" +
			"  NoExecute         no new replicas are placed there, and running ones are evicted\n\n" +
			"A node has one taint for each key and effect. A dash after the key removes the taints with that key, and replicas\n" +
			"that were pending because of them are placed at once.",
		Example: "  cloudless node taint box1 gpu=only:NoSchedule\n  cloudless node taint box1 gpu-\n  cloudless node taint box1 gpu:NoSchedule-",
		Args:    namesAnd("NAME", "KEY=VALUE:EFFECT or KEY-"),

		ValidArgsFunction: c.completeBy(objectNames("node"), false),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, cmd *cobra.Command, args []string) error {
			request := &cloudlessv1.UpdateNodeRequest{Name: args[0]}
			for _, word := range args[1:] {
				if text, removed := strings.CutSuffix(word, "-"); removed && text != "" {
					request.RemoveTaints = append(request.RemoveTaints, parseTaintName(text))
					continue
				}
				taint, err := parseTaint(word)
				if err != nil {
					return command.Usagef(cmd, "%v", err)
				}
				request.Taints = append(request.Taints, taint)
			}
			if err := checkTaintWords(request); err != nil {
				return command.Usagef(cmd, "%w", err)
			}
			return c.updateNode(ctx, cl, request, func(n *cloudlessv1.Node) string {
				return has("taints", taints(n))
			})
		}),
	}
}

// checkTaintWords validates taints here rather than on the server, so that errors can quote the arguments.
func checkTaintWords(request *cloudlessv1.UpdateNodeRequest) error {
	check := func(word string, taint proto.Message) error {
		wrong, ok := errors.AsType[*spec.Error](spec.Validate(taint))
		if !ok || len(wrong.Violations) == 0 {
			return nil
		}
		first := wrong.Violations[0]
		return fmt.Errorf("taint %.64q: its %s %s", word, first.Field, first.Message)
	}
	for _, t := range request.GetTaints() {
		if err := check(spec.FormatTaint(t), t); err != nil {
			return err
		}
	}
	for _, t := range request.GetRemoveTaints() {
		word := t.GetKey()
		if t.GetEffect() != "" {
			word += ":" + t.GetEffect()
		}
		if err := check(word+"-", t); err != nil {
			return err
		}
	}
	return nil
}

// parseTaint parses KEY[=VALUE]:EFFECT.
func parseTaint(word string) (*cloudlessv1.Taint, error) {
	at := strings.LastIndexByte(word, ':')
	if at < 0 {
		return nil, fmt.Errorf("taint %.64q has no effect: write %.64s:NoSchedule, or PreferNoSchedule or NoExecute; to take it away, %.64s-",
			word, word, strings.Split(word, "=")[0])
	}
	key, value, _ := strings.Cut(word[:at], "=")
	if key == "" {
		return nil, fmt.Errorf("taint %.64q has no key: write KEY=VALUE:EFFECT", word)
	}
	return &cloudlessv1.Taint{Key: key, Value: value, Effect: word[at+1:]}, nil
}

// parseTaintName parses KEY, KEY:EFFECT or the whole taint.
func parseTaintName(text string) *cloudlessv1.TaintName {
	text, effect, _ := strings.Cut(text, ":")
	key, _, _ := strings.Cut(text, "=")
	return &cloudlessv1.TaintName{Key: key, Effect: effect}
}

func (c *cli) nodeSetCommand() *cobra.Command {
	var price int64
	var bandwidth, region, zone string
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Set a node's price, region, zone and bandwidth",
		Long: "Set gives the scheduler facts that a node cannot find out itself. Of otherwise equal nodes the scheduler prefers\n" +
			"the cheaper one. Region and zone are labels, and replicas are spread over them. Running replicas stay where they are.",
		Example: "  cloudless node set box1 --price 40\n  cloudless node set box1 --region eu --zone eu-1 --bandwidth 1G\n  cloudless node set box1 --bandwidth auto",
		Args:    command.ExactArgs("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, cmd *cobra.Command, args []string) error {
			request := &cloudlessv1.UpdateNodeRequest{Name: args[0]}
			given := cmd.Flags().Changed
			if given("price") {
				request.Price = &price
			}
			if given("bandwidth") {
				if bandwidth == "auto" {
					bandwidth = ""
				}
				request.Bandwidth = &bandwidth
			}
			for key, value := range map[string]string{spec.LabelRegion: region, spec.LabelZone: zone} {
				switch {
				case !given(key):
				case value == "":
					request.RemoveLabels = append(request.RemoveLabels, key)
				default:
					if request.Labels == nil {
						request.Labels = map[string]string{}
					}
					request.Labels[key] = value
				}
			}
			slices.Sort(request.RemoveLabels)
			if len(request.Labels)+len(request.RemoveLabels) == 0 && request.Price == nil && request.Bandwidth == nil {
				return command.Usagef(cmd, "there is nothing to set: give a flag such as --price 40")
			}
			return c.updateNode(ctx, cl, request, describeSettings)
		}),
	}
	cmd.Flags().Int64Var(&price, "price", 0, "price as a whole `number`, in the same unit for all nodes; 0 for free")
	cmd.Flags().StringVar(&bandwidth, "bandwidth", "", "bandwidth of its link in `bits` per second, such as 1G; auto to detect it")
	cmd.Flags().StringVar(&region, "region", "", "`name` of its region; empty to remove it")
	cmd.Flags().StringVar(&zone, "zone", "", "`name` of its zone; empty to remove it")
	return cmd
}

func describeSettings(n *cloudlessv1.Node) string {
	all := []string{fmt.Sprintf("price %d", n.GetSpec().GetPrice())}
	for _, one := range []struct{ what, value string }{
		{"region", n.GetMetadata().GetLabels()[spec.LabelRegion]},
		{"zone", n.GetMetadata().GetLabels()[spec.LabelZone]},
		{"bandwidth", spec.LinkOf(n)},
	} {
		if one.value != "" {
			all = append(all, one.what+" "+one.value)
		}
	}
	return "has " + strings.Join(all, ", ")
}

// updateNode changes a node and prints the result, so that mistakes are visible.
func (c *cli) updateNode(ctx context.Context, cl *client.Client, request *cloudlessv1.UpdateNodeRequest, describe func(*cloudlessv1.Node) string) error {
	node, err := cl.Nodes().UpdateNode(ctx, request)
	if err != nil {
		return err
	}
	if !c.ForPeople() {
		return c.PrintObject(node)
	}
	return c.Printf("node %s %s\n", node.GetMetadata().GetName(), describe(node))
}

func has(what, list string) string {
	if list == "" {
		return "has no " + what
	}
	return "has the " + what + " " + list
}

// taints lists the taints of a node.
func taints(n *cloudlessv1.Node) string {
	var all []string
	for _, t := range n.GetSpec().GetTaints() {
		all = append(all, spec.FormatTaint(t))
	}
	return strings.Join(all, ", ")
}

// namesAnd requires one name and at least one argument after it.
func namesAnd(name, rest string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for i, word := range []string{name, rest} {
			if len(args) <= i {
				return command.Usagef(cmd, "%s is missing: %s", word, cmd.UseLine())
			}
		}
		return nil
	}
}
