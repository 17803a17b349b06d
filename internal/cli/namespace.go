package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

func (c *cli) namespaceCommand() *cobra.Command {
	return c.nounCommand("namespace", "Show namespaces and set their quotas",
		"  cloudless namespace ls\n  cloudless namespace set shop --cpu 4 --memory 8Gi --replicas 20 --gpu 0\n  cloudless namespace get shop",
		c.namespaceListCommand(), c.namespaceGetCommand(), c.namespaceCreateCommand(), c.namespaceSetCommand(), c.namespaceRemoveCommand())
}

func (c *cli) namespaceListCommand() *cobra.Command {
	var labels string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List namespaces, what they use and their quotas",
		Long: "Ls lists the namespaces that were created, those that have workloads, and default. An amount such as 500m/4 is\n" +
			"the sum of the replicas' requests and the quota. Without a quota, the second part is missing.",
		Example: "  cloudless namespace ls\n  cloudless namespace ls -l team=shop -o json",
		Args:    command.ExactArgs(),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			all, err := client.AllPages(func(page *cloudlessv1.Page) ([]*cloudlessv1.Namespace, string, error) {
				answer, err := cl.Namespaces().ListNamespaces(ctx, &cloudlessv1.ListNamespacesRequest{Labels: labels, Page: page})
				return answer.GetItems(), answer.GetNext(), err
			})
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return command.PrintList(c.Env, all)
			}
			t := terminal.NewTable(c.Stdout, "NAME", "WORKLOADS", "REPLICAS", "PENDING", "CPU", "MEMORY", "DISK", "GPU", "AGE")
			for _, n := range all {
				cells := []string{n.GetMetadata().GetName(), fmt.Sprint(n.GetStatus().GetWorkloads())}
				rows := quotaRows(n)
				cells = append(cells, rows[quotaReplicas].share(), fmt.Sprint(n.GetStatus().GetPending()))
				for _, of := range []int{quotaCPU, quotaMemory, quotaDisk, quotaGPU} {
					cells = append(cells, rows[of].share())
				}
				t.Row(append(cells, command.Age(n.GetMetadata().GetCreateTime(), time.Now()))...)
			}
			return t.Flush()
		}),
	}
	selectorFlag(cmd, &labels, "team=shop")
	return cmd
}

// The rows of a quota.
const (
	quotaCPU = iota
	quotaMemory
	quotaDisk
	quotaBandwidth
	quotaGPU
	quotaReplicas
	quotaStorage
)

// quotaRow is one resource that a quota limits.
type quotaRow struct{ what, used, limit string }

// share is the used amount and the limit, if there is one.
func (r quotaRow) share() string {
	if r.limit == "" {
		return shortQuantity(r.used)
	}
	return shortQuantity(r.used) + "/" + shortQuantity(r.limit)
}

func quotaRows(n *cloudlessv1.Namespace) []quotaRow {
	q, s := n.GetSpec().GetQuota(), n.GetStatus()
	count := func(n *int64) string {
		if n == nil {
			return ""
		}
		return strconv.FormatInt(*n, 10)
	}
	var gpu, replicas *int64
	if q != nil {
		gpu, replicas = q.Gpu, q.Replicas
	}
	return []quotaRow{
		quotaCPU:       {"CPU", s.GetCpu(), q.GetCpu()},
		quotaMemory:    {"memory", shortQuantity(s.GetMemory()), shortQuantity(q.GetMemory())},
		quotaDisk:      {"disk", shortQuantity(s.GetDisk()), shortQuantity(q.GetDisk())},
		quotaBandwidth: {"bandwidth", s.GetBandwidth(), q.GetBandwidth()},
		quotaGPU:       {"GPU", strconv.FormatInt(s.GetGpu(), 10), count(gpu)},
		quotaReplicas:  {"replicas", strconv.FormatInt(s.GetReplicas(), 10), count(replicas)},
		quotaStorage:   {"storage", shortQuantity(s.GetStorage()), shortQuantity(q.GetStorage())},
	}
}

func (c *cli) namespaceGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "get NAME",
		Short:   "Show one namespace, its quota and its usage",
		Example: "  cloudless namespace get shop\n  cloudless namespace get shop -o yaml",
		Args:    command.ExactArgs("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			n, err := cl.Namespaces().GetNamespace(ctx, &cloudlessv1.GetNamespaceRequest{Name: args[0]})
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return c.PrintObject(n)
			}
			return c.showNamespace(n)
		}),
	}
}

func (c *cli) describeNamespace(ctx context.Context, cl *client.Client, name string) error {
	n, err := cl.Namespaces().GetNamespace(ctx, &cloudlessv1.GetNamespaceRequest{Name: name})
	if err != nil {
		return err
	}
	if !c.ForPeople() {
		return c.PrintObject(n)
	}
	if err := c.showNamespace(n); err != nil {
		return err
	}
	return c.eventsAbout(ctx, cl, "Namespace", name)
}

func (c *cli) showNamespace(n *cloudlessv1.Namespace) error {
	f := terminal.NewFacts(c.Stdout)
	f.Add("Name", n.GetMetadata().GetName())
	f.Add("Uid", n.GetMetadata().GetUid())
	f.Add("Labels", terminal.Pairs(n.GetMetadata().GetLabels()))
	f.Add("Workloads", fmt.Sprint(n.GetStatus().GetWorkloads()))
	f.Add("Pending", fmt.Sprint(n.GetStatus().GetPending()))
	if s := n.GetSpec(); s != nil && s.MaxPriority != nil {
		f.Add("Max priority", fmt.Sprint(s.GetMaxPriority()))
	}
	f.Add("Profile", n.GetSpec().GetProfile())
	if d := n.GetSpec().GetDefaultRequests(); d != nil {
		f.Add("Default requests", strings.Trim("CPU "+d.GetCpu()+", memory "+d.GetMemory(), ", "))
	}
	f.Add("Over quota", strings.Join(n.GetStatus().GetOver(), ", "))
	f.Add("Age", command.Age(n.GetMetadata().GetCreateTime(), time.Now()))
	if err := f.Flush(); err != nil {
		return err
	}
	if err := c.Printf("\n"); err != nil {
		return err
	}
	t := terminal.NewTable(c.Stdout, "RESOURCE", "USED", "QUOTA")
	for _, row := range quotaRows(n) {
		limit := shortQuantity(row.limit)
		if limit == "" {
			limit = unlimited
		}
		if row.used == "" { // such as what buckets hold while no server leads their names
			row.used = "unknown"
		}
		t.Row(row.what, shortQuantity(row.used), limit)
	}
	return t.Flush()
}

// unlimited is the value of a quota flag that lifts the limit.
const unlimited = "unlimited"

// The flags that change a quota.
var (
	quotaAmounts = map[string]string{
		"cpu":       "most `CPU` for all replicas together, such as 4 or 500m; unlimited for no limit",
		"memory":    "most `memory`, such as 8Gi",
		"disk":      "most `disk`, such as 100Gi",
		"bandwidth": "most `bandwidth` in bits per second, such as 1G",
		"storage":   "most `bytes` in all of its buckets together, such as 1Ti",
	}
	quotaCounts = map[string]string{
		"gpu":      "most `GPUs`; 0 for none",
		"replicas": "most `replicas` that may have a node at once",
	}
)

func quotaFlags(cmd *cobra.Command) {
	cmd.Flags().String("max-priority", "", "highest `priority` that its workloads may have, 0 to 1000")
	cmd.Flags().String("profile", "", "most that its workloads may name as their security `profile`, and what others have: restricted, default or privileged")
	cmd.Flags().String("default-cpu", "", "`CPU` that counts for a replica of a workload without a request of its own")
	cmd.Flags().String("default-memory", "", "`memory` that counts for a replica of a workload without a request of its own")
	for _, flags := range []map[string]string{quotaAmounts, quotaCounts} {
		for name, help := range flags {
			cmd.Flags().String(name, "", help)
		}
	}
}

// changeNamespace sets the fields of a namespace whose flags are given, and reports whether any is.
func changeNamespace(cmd *cobra.Command, to *cloudlessv1.NamespaceSpec) (changed bool, err error) {
	if to.Quota == nil {
		to.Quota = &cloudlessv1.Quota{}
	}
	if changed, err = changeQuota(cmd, to.Quota); err != nil {
		return false, err
	}
	if text, given := givenFlag(cmd, "max-priority"); given {
		changed, to.MaxPriority = true, nil
		if n, err := strconv.ParseInt(text, 10, 32); err == nil {
			to.MaxPriority = proto.Int32(int32(n))
		} else if text != unlimited {
			return false, command.Usagef(cmd, "--max-priority %q is not a number: write one from 0 to 1000, or %s for no ceiling", text, unlimited)
		}
	}
	if text, given := givenFlag(cmd, "profile"); given {
		if changed = true; text == unlimited {
			text = ""
		}
		to.Profile = text
	}
	for flag, field := range map[string]func(*cloudlessv1.ResourceAmounts) *string{
		"default-cpu":    func(a *cloudlessv1.ResourceAmounts) *string { return &a.Cpu },
		"default-memory": func(a *cloudlessv1.ResourceAmounts) *string { return &a.Memory },
	} {
		if text, given := givenFlag(cmd, flag); given {
			if changed = true; to.DefaultRequests == nil {
				to.DefaultRequests = &cloudlessv1.ResourceAmounts{}
			}
			*field(to.DefaultRequests) = text
		}
	}
	return changed, nil
}

// changeQuota sets the fields of a quota whose flags are given, and reports whether any is.
func changeQuota(cmd *cobra.Command, to *cloudlessv1.Quota) (changed bool, err error) {
	amounts := map[string]*string{"cpu": &to.Cpu, "memory": &to.Memory, "disk": &to.Disk, "bandwidth": &to.Bandwidth, "storage": &to.Storage}
	for name, field := range amounts {
		text, given := givenFlag(cmd, name)
		switch {
		case !given:
			continue
		case text == "":
			return false, command.Usagef(cmd, "--%s needs an amount: 0 for none at all, %s for no limit", name, unlimited)
		case text == unlimited:
			text = ""
		}
		*field, changed = text, true
	}
	for name, field := range map[string]**int64{"gpu": &to.Gpu, "replicas": &to.Replicas} {
		text, given := givenFlag(cmd, name)
		if !given {
			continue
		}
		if changed = true; text == unlimited {
			*field = nil
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return false, command.Usagef(cmd, "--%s %q is not a number: write one such as 20, 0 for none at all, or %s for no limit", name, text, unlimited)
		}
		*field = &n
	}
	return changed, nil
}

func givenFlag(cmd *cobra.Command, name string) (text string, given bool) {
	return cmd.Flags().Lookup(name).Value.String(), cmd.Flags().Changed(name)
}

func (c *cli) namespaceCreateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a namespace",
		Long: "Create creates a namespace, with a quota if the flags give one. This is optional: a namespace also comes into\n" +
			"being with its first workload, without limits.",
		Example: "  cloudless namespace create shop --cpu 4 --memory 8Gi --replicas 20\n" +
			"  cloudless namespace create shop --max-priority 200 --profile restricted",
		Args: command.ExactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n := &cloudlessv1.Namespace{
				Metadata: &cloudlessv1.Metadata{Name: args[0]}, Spec: &cloudlessv1.NamespaceSpec{Quota: &cloudlessv1.Quota{}},
			}
			if _, err := changeNamespace(cmd, n.GetSpec()); err != nil {
				return err
			}
			return c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				made, err := cl.Namespaces().CreateNamespace(ctx, &cloudlessv1.CreateNamespaceRequest{Namespace: n})
				if err != nil {
					return err
				}
				return c.namespaceChanged(made, "created")
			})(cmd, args)
		},
	}
	quotaFlags(cmd)
	return cmd
}

func (c *cli) namespaceSetCommand() *cobra.Command {
	var lift bool
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Change the quota and the ceilings of a namespace",
		Long: "Set changes the given limits and keeps the others. 0 allows nothing, and unlimited lifts a limit. A\n" +
			"lower quota stops no running replica: new replicas are pending until there is room. After a higher quota, pending\n" +
			"replicas are placed at once.",
		Example: "  cloudless namespace set shop --cpu 4 --memory 8Gi --replicas 20 --gpu 0\n" +
			"  cloudless namespace set shop --replicas unlimited\n  cloudless namespace set shop --unlimited",
		Args: command.ExactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			changed, err := changeNamespace(cmd, &cloudlessv1.NamespaceSpec{})
			if err != nil {
				return err
			}
			if !changed && !lift {
				return command.Usagef(cmd, "nothing is given to change: %s --cpu 4", cmd.CommandPath()+" "+args[0])
			}
			return c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				answer, err := setNamespace(ctx, cl, args[0], func(to *cloudlessv1.NamespaceSpec) {
					if lift {
						to.Quota = nil
					}
					_, _ = changeNamespace(cmd, to) // the flags were checked above
				})
				if err != nil {
					return err
				}
				return c.namespaceChanged(answer.GetNamespace(), answer.GetResult())
			})(cmd, args)
		},
	}
	quotaFlags(cmd)
	cmd.Flags().BoolVar(&lift, "unlimited", false, "lift all limits, except the given ones")
	return cmd
}

// maxSets limits the attempts to change a quota that another user changes at the same time.
const maxSets = 10

// setNamespace changes a namespace, and retries if another user has changed it meanwhile.
func setNamespace(ctx context.Context, cl *client.Client, name string, change func(*cloudlessv1.NamespaceSpec)) (*cloudlessv1.ApplyNamespaceResponse, error) {
	for try := 1; ; try++ {
		n, err := cl.Namespaces().GetNamespace(ctx, &cloudlessv1.GetNamespaceRequest{Name: name})
		switch {
		case status.Code(err) == codes.NotFound:
			n = &cloudlessv1.Namespace{Metadata: &cloudlessv1.Metadata{Name: name}}
		case err != nil:
			return nil, err
		}
		if n.Status = nil; n.Spec == nil {
			n.Spec = &cloudlessv1.NamespaceSpec{}
		}
		change(n.Spec)
		if n.GetMetadata().GetUid() == "" { // the namespace was not created yet
			made, err := cl.Namespaces().CreateNamespace(ctx, &cloudlessv1.CreateNamespaceRequest{Namespace: n})
			if status.Code(err) == codes.AlreadyExists && try < maxSets {
				continue
			}
			return &cloudlessv1.ApplyNamespaceResponse{Namespace: made, Result: "created"}, err
		}
		answer, err := cl.Namespaces().ApplyNamespace(ctx, &cloudlessv1.ApplyNamespaceRequest{Namespace: n})
		if status.Code(err) != codes.Aborted || try == maxSets {
			return answer, err
		}
	}
}

func (c *cli) namespaceRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rm NAME...",
		Aliases: []string{"remove", "delete"},
		Short:   "Remove namespaces that have no workloads",
		Example: "  cloudless namespace rm shop",
		Args:    command.AtLeastOne("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			return c.ForEach(args, func(name string) error {
				removed, err := cl.Namespaces().DeleteNamespace(ctx, &cloudlessv1.DeleteNamespaceRequest{Name: name})
				if err != nil {
					return err
				}
				return c.PrintRemoved("namespace", name, removed, len(args) > 1)
			})
		}),
	}
}

// namespaceChanged shows a changed namespace, and warns if it exceeds its quota.
func (c *cli) namespaceChanged(n *cloudlessv1.Namespace, what string) error {
	if !c.ForPeople() {
		return c.PrintObject(n)
	}
	if err := c.Printf("namespace %s %s\n", n.GetMetadata().GetName(), what); err != nil {
		return err
	}
	if over := n.GetStatus().GetOver(); len(over) > 0 {
		c.Note("%s", overQuota(n.GetMetadata().GetName(), over))
	}
	return nil
}

// overQuota is the warning about an exceeded quota.
func overQuota(name string, over []string) string {
	return terminal.Plain(fmt.Sprintf("namespace %s has more than its quota: %s: nothing that runs is stopped, and new replicas wait", name, strings.Join(over, ", ")))
}
