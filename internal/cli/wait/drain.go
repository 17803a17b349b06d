package wait

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/phrase"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// exitUndrained is the exit code of a drain that did not empty the node in time.
const exitUndrained = 3

// ForDrain shows the replicas of a draining node until none is left, then the data of the object store that is moved. A timeout of 0 is no limit.
func ForDrain(ctx context.Context, e *command.Env, cl *client.Client, node *cloudlessv1.Node, timeout time.Duration) error {
	interrupted := ctx
	ctx, cancel := limit(ctx, timeout)
	defer cancel()
	name := node.GetMetadata().GetName()
	d := newDraining(e, node)
	err := cl.FollowReplicasOn(ctx, name, d.see)
	d.close()
	if !errors.Is(err, errDone) {
		return d.stopped(interrupted, ctx, err, func() error { return undrained(interrupted, cl, name, timeout) })
	}
	data, err := d.waitForData(ctx, cl)
	if err != nil {
		return d.stopped(interrupted, ctx, err, func() error {
			return fmt.Errorf("node %s is not empty after %s: %s; the node keeps draining until: cloudless node uncordon %s", name, timeout, data, name)
		})
	}
	return d.done(interrupted, cl, data)
}

// stopped is the outcome of a wait that has ended too early. late says what is left after the timeout.
func (d *draining) stopped(interrupted, limited context.Context, err error, late func() error) error {
	name := d.node.GetMetadata().GetName()
	switch {
	case interrupted.Err() != nil:
		d.env.Note("Stopped waiting. The drain of node %s goes on; end it with: cloudless node uncordon %s", name, name)
		return command.Exit(command.ExitInterrupted, nil)
	case errors.Is(context.Cause(limited), errWaitedEnough):
		return command.Exit(exitUndrained, late())
	default:
		return err
	}
}

// draining shows the replicas that leave a node.
type draining struct {
	env   *command.Env
	node  *cloudlessv1.Node
	began time.Time
	// waits is what each replica waited for at the start, by name.
	waits map[string]string
	// live and said are by uid: the replicas that are left, and the last line about each.
	live   map[string]*cloudlessv1.Replica
	said   map[string]string
	synced bool
	// finished are the replicas, by path, whose work ended while the node drained.
	finished map[string]bool
	// screen is the terminal, nil if there is none.
	screen *terminal.Canvas
}

func newDraining(e *command.Env, node *cloudlessv1.Node) *draining {
	d := &draining{env: e, node: node, began: time.Now(), waits: map[string]string{}, said: map[string]string{}, finished: map[string]bool{}}
	for _, r := range node.GetStatus().GetDeparting() {
		d.waits[r.GetReplica()] = r.GetReason()
	}
	if f, ok := e.Stderr.(*os.File); ok && terminal.IsTerminal(f) {
		d.screen = terminal.NewCanvas(f, false)
	}
	return d
}

// see takes an update. It returns errDone when no replica is left.
func (d *draining) see(u client.Update) error {
	switch r := u.Replica; {
	case u.Reset:
		d.live, d.synced = map[string]*cloudlessv1.Replica{}, false
	case u.Synced:
		d.synced = true
	case r != nil:
		uid := r.GetMetadata().GetUid()
		_, known := d.live[uid]
		if ended := u.Removed || spec.Ended(r.GetStatus().GetPhase()); !ended {
			d.live[uid] = r
		} else if delete(d.live, uid); !known {
			return nil // it was gone before
		}
		if phase := r.GetStatus().GetPhase(); phase == spec.PhaseCompleted || phase == spec.PhaseFailed {
			d.finished[phrase.Path(r.GetMetadata())] = true
		}
		d.say(uid, d.line(r, u.Removed))
	}
	d.draw()
	if d.synced && len(d.live) == 0 {
		return errDone
	}
	return nil
}

// line says in a few words how far a replica is.
func (d *draining) line(r *cloudlessv1.Replica, removed bool) string {
	what := cmp.Or(d.waits[r.GetMetadata().GetName()], "it waits for its replacement")
	switch {
	case removed || spec.Ended(r.GetStatus().GetPhase()):
		what = "it is gone"
	case r.GetSpec().GetDesired() == spec.DesiredStopped:
		what = "it leaves"
	}
	return terminal.Plain(r.GetMetadata().GetName() + ": " + what)
}

// say prints a line about a replica, unless there is a screen that shows all of them.
func (d *draining) say(uid, line string) {
	if d.screen != nil || !d.env.ForPeople() || d.said[uid] == line {
		return
	}
	d.said[uid] = line
	_ = d.env.Printf("%s\n", line)
}

func (d *draining) draw() {
	if d.screen == nil || !d.synced {
		return
	}
	total := int(d.node.GetSpec().GetDrain().GetReplicas())
	lines := []string{fmt.Sprintf("node %s: %d of %s left", d.node.GetMetadata().GetName(), len(d.live), spec.Count(max(total, len(d.live)), "replica"))}
	for _, uid := range slices.Sorted(maps.Keys(d.live)) {
		lines = append(lines, "  "+d.line(d.live[uid], false))
	}
	_ = d.screen.Draw(lines)
}

func (d *draining) close() {
	if d.screen != nil {
		_ = d.screen.Draw(nil)
	}
}

// done says that the node is empty, and what became of its data.
func (d *draining) done(ctx context.Context, cl *client.Client, data string) error {
	name := d.node.GetMetadata().GetName()
	if !d.env.ForPeople() {
		node, err := cl.Nodes().GetNode(ctx, &cloudlessv1.GetNodeRequest{Name: name})
		if err != nil {
			return err
		}
		return d.env.PrintObject(node)
	}
	became, err := d.became(ctx, cl)
	if err != nil {
		return err
	}
	if data != "" {
		became += ", " + data
	}
	return d.env.Printf("node %s is drained in %s: %s\n", name, spec.FormatDuration(time.Since(d.began).Round(time.Second)), became)
}

// settlePatience limits the wait for the cluster to look for places for what has left.
const settlePatience = 5 * time.Second

// became says what became of the replicas that have left: a forced drain stops them even if no other node takes them.
func (d *draining) became(ctx context.Context, cl *client.Client) (string, error) {
	left := map[*cloudlessv1.Workload]int{}
	byPath := map[string]*cloudlessv1.Workload{}
	var order []*cloudlessv1.Workload
	for _, r := range d.node.GetStatus().GetDeparting() {
		meta := &cloudlessv1.Metadata{Namespace: r.GetNamespace(), Name: r.GetWorkload()}
		w := byPath[phrase.Path(meta)]
		if w == nil {
			w = &cloudlessv1.Workload{Metadata: meta}
			byPath[phrase.Path(meta)], order = w, append(order, w)
		}
		if !d.finished[phrase.Path(&cloudlessv1.Metadata{Namespace: r.GetNamespace(), Name: r.GetReplica()})] {
			left[w]++
		}
	}
	moved, stopped := 0, 0
	var homeless []*cloudlessv1.Workload
	unplaced := 0
	for _, w := range order {
		now, pending, err := unplacedOf(ctx, cl, w.GetMetadata())
		if err != nil {
			return "", err
		}
		switch pending = min(pending, left[w]); {
		case now == nil || phrase.KindOf(now) == spec.KindDaemon:
			stopped += left[w]
			continue
		case pending > 0:
			homeless = append(homeless, w)
			unplaced += pending
		}
		moved += left[w] - pending
	}
	var parts []string
	for _, part := range []struct {
		count int
		what  string
	}{{moved, "moved"}, {len(d.finished), "finished"}, {stopped, "stopped for good"}} {
		if part.count > 0 {
			parts = append(parts, spec.Count(part.count, "replica")+" "+part.what)
		}
	}
	switch {
	case unplaced == 1:
		parts = append(parts, "1 replica has no place: see: "+phrase.ExplainHint(homeless))
	case unplaced > 1:
		parts = append(parts, fmt.Sprintf("%d replicas have no place: see: %s", unplaced, phrase.ExplainHint(homeless)))
	case len(parts) == 0:
		return "it has no replicas", nil
	}
	return strings.Join(parts, ", "), nil
}

// unplacedOf waits until the cluster has tried to replace all replicas of a workload, and returns the workload and how many
// of them no node takes. The workload is nil if it does not exist any more.
func unplacedOf(ctx context.Context, cl *client.Client, m *cloudlessv1.Metadata) (w *cloudlessv1.Workload, unplaced int, err error) {
	soon, cancel := limit(ctx, settlePatience)
	defer cancel()
	_, err = cl.WaitWorkload(soon, m.GetNamespace(), m.GetName(), func(now *cloudlessv1.Workload) (bool, error) {
		w = now
		status := now.GetStatus()
		return status.GetRunning()+status.GetPending()+status.GetFailed() >= status.GetDesired() || phrase.KindOf(now) == spec.KindJob, nil
	})
	if err != nil && !errors.Is(context.Cause(soon), errWaitedEnough) {
		return nil, 0, err
	}
	if w.GetStatus().GetPending() == 0 {
		return w, 0, nil
	}
	all, err := client.AllPages(func(page *cloudlessv1.Page) ([]*cloudlessv1.Replica, string, error) {
		answer, err := cl.Workloads().ListReplicas(ctx, &cloudlessv1.ListReplicasRequest{
			Selection: &cloudlessv1.Selection{Namespace: m.GetNamespace()}, Workload: m.GetName(), Page: page,
		})
		return answer.GetItems(), answer.GetNext(), err
	})
	for _, r := range all {
		if r.GetSpec().GetNode() == "" && r.GetStatus().GetPhase() == spec.PhasePending {
			unplaced++
		}
	}
	return w, unplaced, err
}

// undrained says what is left on a node after the timeout, why, and what helps.
func undrained(ctx context.Context, cl *client.Client, name string, timeout time.Duration) error {
	node, err := cl.Nodes().GetNode(ctx, &cloudlessv1.GetNodeRequest{Name: name})
	if err != nil {
		return err
	}
	left := node.GetStatus().GetDeparting()
	var reasons []string
	blocked := false
	for _, r := range left {
		reasons = append(reasons, fmt.Sprintf("%s: %s", r.GetReplica(), r.GetReason()))
		blocked = blocked || r.GetBlocked()
	}
	text := fmt.Sprintf("node %s is not empty after %s: %s left: %s", name, timeout, spec.Count(len(left), "replica"), strings.Join(reasons, "; "))
	if blocked {
		text += "; add a machine, lower minAvailable, or drain it with --force"
	}
	return fmt.Errorf("%s; the node keeps draining until: cloudless node uncordon %s", text, name)
}
