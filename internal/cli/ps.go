package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/phrase"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// scope are the flags that select workloads and replicas.
type scope struct {
	everywhere bool
	labels     string
}

func (s *scope) register(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&s.everywhere, "all-namespaces", "A", false, "show all namespaces")
	selectorFlag(cmd, &s.labels, "app=web,tier!=test")
}

func (s *scope) selection(c *cli) *cloudlessv1.Selection {
	if s.everywhere {
		return &cloudlessv1.Selection{Labels: s.labels}
	}
	return &cloudlessv1.Selection{Namespace: c.Namespace, Labels: s.labels}
}

// scopedTable is a table that begins with the namespace if it shows all namespaces.
type scopedTable struct {
	*terminal.Table
	everywhere bool
}

func (c *cli) newScopedTable(everywhere bool, headings ...string) scopedTable {
	if everywhere {
		headings = append([]string{"NAMESPACE"}, headings...)
	}
	return scopedTable{terminal.NewTable(c.Stdout, headings...), everywhere}
}

func (t scopedTable) row(of *cloudlessv1.Metadata, cells ...string) {
	if t.everywhere {
		cells = append([]string{of.GetNamespace()}, cells...)
	}
	t.Row(cells...)
}

func (c *cli) psCommand() *cobra.Command {
	var s scope
	var ended, watch bool
	var node string
	cmd := &cobra.Command{
		Use:     "ps [WORKLOAD]",
		Short:   "List running replicas",
		Example: "  cloudless ps\n  cloudless ps web --all\n  cloudless ps -w",
		Args: func(cmd *cobra.Command, args []string) error {
			if ended && watch {
				return command.Usagef(cmd, "--all and --watch exclude each other: a watch shows replicas as they end")
			}
			return command.AtMostOne(cmd, args)
		},
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			workload := strings.Join(args, "")
			published := publishedPorts(ctx, cl, s.selection(c))
			if watch {
				return command.Interruptible(ctx, c.watchReplicas(ctx, cl, &s, workload, node, published))
			}
			replicas, err := command.ListReplicas(ctx, cl, &cloudlessv1.ListReplicasRequest{
				Selection: s.selection(c), Workload: workload, Node: node, Ended: ended,
			})
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return command.PrintList(c.Env, replicas)
			}
			c.NoteEmpty(len(replicas), "replicas that run", s.everywhere)
			if err := c.replicaTableWith(s.everywhere, replicas, published).Flush(); err != nil {
				return err
			}
			c.noteScale(ctx, cl, workload)
			return nil
		}),
	}
	s.register(cmd)
	cmd.Flags().BoolVarP(&ended, "all", "a", false, "include replicas that have ended")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "keep showing changes")
	cmd.Flags().StringVar(&node, "node", "", "show only replicas on this `node`")
	return cmd
}

// noteScale says why an autoscaled workload has the replicas that it has.
func (c *cli) noteScale(ctx context.Context, cl *client.Client, name string) {
	if name == "" {
		return
	}
	w, err := cl.Workloads().GetWorkload(ctx, &cloudlessv1.GetWorkloadRequest{Namespace: c.Namespace, Name: name})
	if reason := w.GetStatus().GetScale().GetReason(); err == nil && reason != "" {
		c.Note("%s has %s: %s", name, spec.Count(int(spec.Replicas(w)), "replica"), reason)
	}
}

// portsOf returns the published ports of a replica, none if it has ended. A nil portsOf hides the column.
type portsOf func(*cloudlessv1.Replica) string

// publishedPorts fetches the ports of all workloads once, and the revisions of a workload when a replica has another
// revision: a newer one, or one that is being replaced.
func publishedPorts(ctx context.Context, cl *client.Client, selection *cloudlessv1.Selection) portsOf {
	known := map[string]string{} // by revision
	asked := false
	return func(r *cloudlessv1.Replica) string {
		if phrase.Ended(r) {
			return ""
		}
		if !asked {
			asked = true
			workloads, _ := client.AllPages(func(page *cloudlessv1.Page) ([]*cloudlessv1.Workload, string, error) {
				answer, err := cl.Workloads().ListWorkloads(ctx, &cloudlessv1.ListWorkloadsRequest{Selection: &cloudlessv1.Selection{Namespace: selection.GetNamespace()}, Page: page})
				return answer.GetItems(), answer.GetNext(), err
			})
			for _, w := range workloads {
				known[w.GetStatus().GetRevisionUid()] = published(w.GetSpec().GetPorts())
			}
		}
		uid := r.GetSpec().GetRevisionUid()
		if _, found := known[uid]; !found {
			known[uid] = "" // in case the workload is gone already
			revisions, _ := listRevisions(ctx, cl, r.GetMetadata().GetNamespace(), r.GetSpec().GetWorkload())
			for _, revision := range revisions {
				known[revision.GetMetadata().GetUid()] = published(revision.GetSpec().GetWorkload().GetPorts())
			}
		}
		return known[uid]
	}
}

// published lists the node's ports and the replica's ports behind them, such as 8080:80.
func published(ports []*cloudlessv1.Port) string {
	var all []string
	for _, p := range ports {
		if p.GetPublish() == 0 {
			continue
		}
		text := fmt.Sprintf("%d:%d", p.GetPublish(), p.GetPort())
		if p.GetProtocol() == "udp" {
			text += "/udp"
		}
		all = append(all, text)
	}
	return strings.Join(all, ",")
}

func (c *cli) replicaTable(namespaces bool, replicas []*cloudlessv1.Replica) scopedTable {
	return c.replicaTableWith(namespaces, replicas, nil)
}

func (c *cli) replicaTableWith(namespaces bool, replicas []*cloudlessv1.Replica, ports portsOf) scopedTable {
	headings := []string{"NAME", "WORKLOAD", "NODE", "PHASE", "REV", "RESTARTS", "AGE", "ADDRESS", "PORTS", "REASON"}
	if ports == nil {
		headings = slices.DeleteFunc(headings, func(h string) bool { return h == "PORTS" })
	}
	t := c.newScopedTable(namespaces, headings...)
	for _, replica := range replicas {
		t.row(replica.GetMetadata(), replicaRow(replica, time.Now(), ports)...)
	}
	return t
}

func replicaRow(r *cloudlessv1.Replica, now time.Time, ports portsOf) []string {
	row := []string{
		r.GetMetadata().GetName(),
		r.GetSpec().GetWorkload(),
		r.GetSpec().GetNode(),
		phrase.ReplicaPhase(r),
		strconv.FormatUint(r.GetSpec().GetRevision(), 10),
		strconv.Itoa(int(r.GetStatus().GetRestarts())),
		command.Age(r.GetMetadata().GetCreateTime(), now),
		strings.Join(r.GetStatus().GetAddresses(), ","),
	}
	if ports != nil {
		row = append(row, ports(r))
	}
	return append(row, phrase.ReplicaReason(r))
}

// watchReplicas shows the rows of ps, and then a row for every change.
func (c *cli) watchReplicas(ctx context.Context, cl *client.Client, s *scope, workload, node string, ports portsOf) error {
	stream, err := cl.Workloads().WatchReplicas(ctx, &cloudlessv1.WatchReplicasRequest{Selection: s.selection(c), Workload: workload})
	if err != nil {
		return err
	}
	rows := c.replicaTableWith(s.everywhere, nil, ports)
	show := func(change *cloudlessv1.ReplicaChange) error {
		if !c.ForPeople() {
			return c.PrintItem(change)
		}
		row := replicaRow(change.GetReplica(), time.Now(), ports)
		if change.GetChange() == "removed" {
			row[len(row)-1] = "removed"
		}
		rows.row(change.GetReplica().GetMetadata(), row...)
		return nil
	}
	changes := watchedChanges{shown: map[string]bool{}}
	for {
		change, err := stream.Recv()
		if err != nil {
			return errors.Join(rows.Flush(), err)
		}
		if node != "" && change.GetReplica() != nil && change.GetReplica().GetSpec().GetNode() != node {
			continue
		}
		due, isDue := changes.add(change)
		for _, change := range due {
			err = errors.Join(err, show(change))
		}
		if isDue && c.ForPeople() {
			err = errors.Join(err, rows.Flush())
		}
		if err != nil {
			return err
		}
	}
}

// watchedChanges collects the initial state of a watch until it is complete, and drops replicas that ended before.
type watchedChanges struct {
	synced bool
	first  []*cloudlessv1.ReplicaChange
	shown  map[string]bool // by uid
}

// add takes a change, and returns the changes to show now and whether to show any.
func (w *watchedChanges) add(change *cloudlessv1.ReplicaChange) (due []*cloudlessv1.ReplicaChange, isDue bool) {
	replica := change.GetReplica()
	uid := replica.GetMetadata().GetUid()
	switch {
	case change.GetChange() == "synced" && !w.synced:
		w.synced = true
		slices.SortStableFunc(w.first, func(a, b *cloudlessv1.ReplicaChange) int {
			return command.CompareReplicas(a.GetReplica(), b.GetReplica())
		})
		return w.first, true
	case replica == nil:
		return nil, false
	case !w.shown[uid] && (phrase.Ended(replica) || change.GetChange() == "removed"):
		return nil, false
	}
	w.shown[uid] = true
	if !w.synced {
		w.first = append(w.first, change)
		return nil, false
	}
	return []*cloudlessv1.ReplicaChange{change}, true
}
