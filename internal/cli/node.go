package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

func (c *cli) nodeCommand() *cobra.Command {
	return c.nounCommand("node", "Show, label, drain and remove the nodes of the cluster", "  cloudless node ls\n  cloudless node get box1\n  cloudless node label box1 disk=ssd\n  cloudless node drain box1 --reason \"new disk\"\n  cloudless node rm box1",
		c.nodeListCommand(), c.nodeGetCommand(), c.nodeLabelCommand(), c.nodeTaintCommand(), c.nodeSetCommand(), c.nodeCordonCommand(), c.nodeDrainCommand(), c.nodeUncordonCommand(), c.nodeRemoveCommand())
}

func (c *cli) nodeListCommand() *cobra.Command {
	var labels string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List nodes",
		Example: "  cloudless node ls\n  cloudless node ls -l disk=ssd -o yaml",
		Args:    command.ExactArgs(),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			nodes, err := command.ListNodes(ctx, cl, labels)
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return command.PrintList(c.Env, nodes)
			}
			t := terminal.NewTable(c.Stdout, "NAME", "STATE", "CPU", "MEMORY", "DISK", "RELIABILITY", "SEEN", "VERSION", "AGE", "REASON")
			for _, node := range nodes {
				status := node.GetStatus()
				used, has := status.GetUsage(), status.GetCapacity()
				t.Row(node.GetMetadata().GetName(), status.GetState(),
					share(used.GetCpu(), has.GetCpu()), share(used.GetMemory(), has.GetMemory()), share(used.GetDisk(), has.GetDisk()),
					reliability(status.GetReliability()), command.Age(status.GetLastSeen(), time.Now()), status.GetInfo().GetVersion(), command.Age(node.GetMetadata().GetCreateTime(), time.Now()), nodeReason(status))
			}
			return t.Flush()
		}),
	}
	selectorFlag(cmd, &labels, "disk=ssd")
	return cmd
}

func (c *cli) nodeRemoveCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove nodes for good",
		Long: "Rm ends a node's membership at once: it revokes the node's certificate, and other nodes replace its replicas. The\n" +
			"machine stops its replicas as soon as a server tells it about the removal, at the latest when it reconnects. The\n" +
			"last node, and a node with replicas, need --force. The machine becomes a node again with cloudless join and a new\n" +
			"token, or with cloudless up if it is a server.",
		Example: "  cloudless node rm box1\n  cloudless node rm box1 --force",
		Args:    command.AtLeastOne("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			return c.ForEach(args, func(name string) error {
				removed, err := cl.Nodes().DeleteNode(ctx, &cloudlessv1.DeleteNodeRequest{Name: name, Force: force})
				if err != nil {
					return err
				}
				return c.PrintRemoved("node", name, removed, len(args) > 1)
			})
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "remove even the last node, or a node with replicas; these count as lost")
	return cmd
}

// share is the used amount and the capacity.
func share(used, has string) string {
	if used == "" || has == "" {
		return shortQuantity(has)
	}
	return shortQuantity(used) + "/" + shortQuantity(has)
}

// shortQuantity is a quantity with few digits.
func shortQuantity(quantity string) string {
	n, err := spec.ParseBytes(quantity)
	if err != nil || n < 10<<10 {
		return quantity // a number of CPUs, or short already
	}
	return spec.HumanBytes(n)
}

// nodeReason is the reason for the node's state, or else its conditions that are wrong.
func nodeReason(status *cloudlessv1.NodeStatus) string {
	if status.GetReason() != "" {
		return status.GetReason()
	}
	var pressure []string
	for _, condition := range status.GetConditions() {
		if condition.GetStatus() && (strings.HasSuffix(condition.GetType(), "Pressure") || condition.GetType() == "ClockSkewed") {
			pressure = append(pressure, condition.GetType())
		}
	}
	return strings.Join(pressure, ", ")
}

func (c *cli) nodeGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "get NAME",
		Short:   "Show one node and what runs on it",
		Example: "  cloudless node get box1\n  cloudless node get box1 -o json",
		Args:    command.ExactArgs("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			node, err := cl.Nodes().GetNode(ctx, &cloudlessv1.GetNodeRequest{Name: args[0]})
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return c.PrintObject(node)
			}
			replicas, err := command.ListReplicas(ctx, cl, &cloudlessv1.ListReplicasRequest{Node: args[0]})
			if err != nil {
				return err
			}
			return c.describeNode(node, replicas)
		}),
	}
}

func (c *cli) describeNode(node *cloudlessv1.Node, replicas []*cloudlessv1.Replica) error {
	status, info := node.GetStatus(), node.GetStatus().GetInfo()
	f := terminal.NewFacts(c.Stdout)
	f.Add("Name", node.GetMetadata().GetName())
	f.Add("Uid", node.GetMetadata().GetUid())
	f.Add("Labels", terminal.Pairs(node.GetMetadata().GetLabels()))
	f.Add("Taints", taints(node))
	f.Add("State", status.GetState())
	f.Add("Reason", status.GetReason())
	f.Add("Desired", desiredState(node))
	if price := node.GetSpec().GetPrice(); price != 0 {
		f.Add("Price", fmt.Sprint(price))
	}
	if info.GetBattery() {
		f.Add("Power", "battery")
	}
	f.Add("System", strings.TrimSpace(fmt.Sprintf("%s %s %s", info.GetOs(), info.GetArch(), info.GetKernel())))
	f.Add("Version", info.GetVersion())
	for _, driver := range status.GetDrivers() {
		f.Add("Driver", strings.TrimSpace(driver.GetName()+" "+driver.GetVersion()))
		for _, missing := range driver.GetMissing() {
			f.Add("Cannot", missing)
		}
	}
	f.Add("Subnets", strings.Trim(node.GetSpec().GetSubnetV4()+", "+node.GetSpec().GetSubnetV6(), ", "))
	for _, link := range status.GetInterfaces() {
		if link.GetUp() && len(link.GetAddresses()) > 0 {
			f.Add("Interface", link.GetName()+" "+strings.Join(link.GetAddresses(), ", "))
		}
	}
	f.Add("Seen", ago(status))
	f.Add("Reliability", reliability(status.GetReliability()))
	if err := f.Flush(); err != nil {
		return err
	}
	if err := c.Printf("\n"); err != nil {
		return err
	}
	if err := c.nodeTables(node); err != nil {
		return err
	}
	if err := c.departingTable(status.GetDeparting()); err != nil || len(replicas) == 0 {
		return err
	}
	if err := c.Printf("\n"); err != nil {
		return err
	}
	return c.replicaTable(true, replicas).Flush()
}

// desiredState is the state that an operator wants for a node, if the node is not in that state.
func desiredState(node *cloudlessv1.Node) string {
	desired, reason := node.GetSpec().GetAvailability(), node.GetSpec().GetAvailabilityReason()
	switch {
	case desired == "" || desired == node.GetStatus().GetState():
		return ""
	case reason == "":
		return desired + " as soon as it is in service"
	}
	return desired + " as soon as it is in service: " + reason
}

func (c *cli) nodeTables(node *cloudlessv1.Node) error {
	status := node.GetStatus()
	t := terminal.NewTable(c.Stdout, "RESOURCE", "CAPACITY", "ALLOCATABLE", "REQUESTED", "USED")
	has, may, asked, used := status.GetCapacity(), status.GetAllocatable(), status.GetRequested(), status.GetUsage()
	t.Row("CPU", has.GetCpu(), may.GetCpu(), asked.GetCpu(), used.GetCpu())
	t.Row("memory", shortQuantity(has.GetMemory()), shortQuantity(may.GetMemory()), shortQuantity(asked.GetMemory()), shortQuantity(used.GetMemory()))
	t.Row("disk", shortQuantity(has.GetDisk()), shortQuantity(may.GetDisk()), shortQuantity(asked.GetDisk()), shortQuantity(used.GetDisk()))
	if link := spec.LinkOf(node); link != "" {
		t.Row("bandwidth", link, may.GetBandwidth(), asked.GetBandwidth(), "")
	}
	if has.GetGpu() > 0 {
		t.Row("GPU", strings.TrimSpace(fmt.Sprint(has.GetGpu(), " ", gpuModels(status))), fmt.Sprint(may.GetGpu()), fmt.Sprint(asked.GetGpu()), "")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if err := c.reliabilityTable(status.GetReliability()); err != nil || len(status.GetConditions()) == 0 {
		return err
	}
	if err := c.Printf("\n"); err != nil {
		return err
	}
	t = terminal.NewTable(c.Stdout, "CONDITION", "STATUS", "FOR", "REASON")
	for _, condition := range status.GetConditions() {
		word := "no"
		if condition.GetStatus() {
			word = "yes"
		}
		t.Row(condition.GetType(), word, command.Age(condition.GetChangeTime(), time.Now()), condition.GetReason())
	}
	return t.Flush()
}

// departingTable shows what the replicas of a draining node wait for.
func (c *cli) departingTable(departing []*cloudlessv1.DepartingReplica) error {
	if len(departing) == 0 {
		return nil
	}
	if err := c.Printf("\n"); err != nil {
		return err
	}
	t := terminal.NewTable(c.Stdout, "DEPARTING", "BECAUSE")
	for _, r := range departing {
		t.Row(r.GetReplica(), r.GetReason())
	}
	return t.Flush()
}

// gpuModels are the distinct models of the node's GPUs.
func gpuModels(status *cloudlessv1.NodeStatus) string {
	models := []string{status.GetCapacity().GetGpuModel()}
	if models[0] == "" {
		models = models[:0]
		for _, gpu := range status.GetGpus() {
			models = append(models, gpu.GetModel())
		}
		slices.Sort(models)
		models = slices.Compact(models)
	}
	return strings.Join(models, ", ")
}

func ago(status *cloudlessv1.NodeStatus) string {
	if status.GetLastSeen() == nil {
		return ""
	}
	return command.Age(status.GetLastSeen(), time.Now()) + " ago"
}

func (c *cli) nodeCordonCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "cordon NAME",
		Short: "Place no new replicas on a node",
		Long: "Cordon keeps the scheduler from placing new replicas on a node. Running replicas keep running, and are restarted\n" +
			"there when they end. The node stays cordoned until cloudless node uncordon, even if its agent or machine restarts.",
		Example: "  cloudless node cordon box1\n  cloudless node cordon box1 --reason \"new disk on Friday\"",
		Args:    command.ExactArgs("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			node, err := cl.Nodes().CordonNode(ctx, &cloudlessv1.CordonNodeRequest{Name: args[0], Reason: reason})
			return c.nodeChanged(node, err, spec.NodeCordoned)
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "`text` to show as the reason")
	return cmd
}

func (c *cli) nodeUncordonCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "uncordon NAME",
		Short:   "Place replicas on a cordoned or drained node again",
		Long:    "Uncordon lets the scheduler place replicas on a node again, and ends its drain. Replicas on other nodes stay there.",
		Example: "  cloudless node uncordon box1",
		Args:    command.ExactArgs("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			node, err := cl.Nodes().UncordonNode(ctx, &cloudlessv1.UncordonNodeRequest{Name: args[0]})
			return c.nodeChanged(node, err, "uncordoned")
		}),
	}
}

// nodeChanged prints what was done to a node, and its state.
func (c *cli) nodeChanged(node *cloudlessv1.Node, err error, what string) error {
	if err != nil {
		return err
	}
	if !c.ForPeople() {
		return c.PrintObject(node)
	}
	return c.Printf("node %s %s; it is %s\n", node.GetMetadata().GetName(), what, node.GetStatus().GetState())
}

// reliability is a score out of a hundred, empty if there is none yet.
func reliability(r *cloudlessv1.Reliability) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf("%d/100", r.GetScore())
}

// reliabilityTable shows the components of a score.
func (c *cli) reliabilityTable(r *cloudlessv1.Reliability) error {
	if r == nil {
		return nil
	}
	if err := c.Printf("\n"); err != nil {
		return err
	}
	t := terminal.NewTable(c.Stdout, "RELIABILITY", "WEIGHT", "SCORE", "BECAUSE")
	for _, one := range []struct {
		name, weight string
		part         *cloudlessv1.ReliabilityPart
	}{
		{"uptime", "30 %", r.GetUptime()},
		{"response time", "20 %", r.GetResponseTime()},
		{"success rate", "20 %", r.GetSuccessRate()},
		{"capacity", "15 %", r.GetCapacity()},
		{"stability", "15 %", r.GetStability()},
	} {
		t.Row(one.name, one.weight, fmt.Sprint(one.part.GetScore()), one.part.GetBasis())
	}
	return t.Flush()
}
