package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

// errArrived ends the watching of a scene.
var errArrived = errors.New("all is as it was asked to be")

// awaitScene shows what was asked for until all of it runs or it is clear that it will not. It returns the workloads as
// they are then.
func (c *cli) awaitScene(ctx context.Context, cl *client.Client, w waiting, s *scene) ([]*cloudlessv1.Workload, error) {
	interrupted := ctx
	if w.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, w.timeout, errWaitedEnough)
		defer cancel()
	}
	view := c.newSceneView(s)
	err := c.watchScene(ctx, cl, s, view)
	view.close()
	switch {
	case err == nil:
	case interrupted.Err() != nil:
		return nil, c.stoppedWaiting(s.asked()...)
	case errors.Is(context.Cause(ctx), errWaitedEnough):
		return nil, s.late(w.timeout)
	default:
		return nil, err
	}
	var all []*cloudlessv1.Workload
	for _, a := range s.actors {
		if a.action != actionDelete {
			all = append(all, a.now)
		}
	}
	return all, view.summary(all)
}

// late names the first workload that has not arrived in time.
func (s *scene) late(timeout time.Duration) error {
	for _, a := range s.actors {
		meta := a.asked.GetMetadata()
		if there, _ := a.arrived(); !there {
			how := standing(a.now)
			if a.action == actionDelete {
				how = "it is still being removed"
			}
			return fmt.Errorf("workload %s is not there yet after %s: %s: the cluster goes on with it: see: %s", meta.GetName(), timeout, how, getHint(meta))
		}
	}
	return fmt.Errorf("not everything is there yet after %s: the cluster goes on with it: see: %s", timeout, psHint(s.asked()))
}

// seen is an update of one namespace.
type seen struct {
	namespace string
	client.Update
}

func (c *cli) watchScene(ctx context.Context, cl *client.Client, s *scene, view *sceneView) error {
	g, ctx := errgroup.WithContext(ctx)
	updates := make(chan seen)
	for namespace := range s.synced {
		only := ""
		if names := s.names(namespace); len(names) == 1 {
			only = names[0]
		}
		g.Go(func() error {
			return cl.Follow(ctx, namespace, only, func(u client.Update) error {
				select {
				case updates <- seen{namespace, u}:
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			})
		})
	}
	g.Go(func() error { return c.judgeScene(ctx, cl, s, view, updates) })
	if err := g.Wait(); !errors.Is(err, errArrived) {
		return err
	}
	return nil
}

// redraw is how often a tree is drawn, and a scene judged, at most.
const redraw = 100 * time.Millisecond

func (c *cli) judgeScene(ctx context.Context, cl *client.Client, s *scene, view *sceneView, updates <-chan seen) error {
	ticks := time.NewTicker(redraw)
	defer ticks.Stop()
	fresh := false      // something was seen since what is stuck was asked about
	var again time.Time // when to ask about it all the same; zero if not
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case u := <-updates:
			view.saw(s.see(u.namespace, u.Update), u.Update)
			if fresh = true; !u.Synced {
				continue // many may come at once: they are judged together
			}
		case <-ticks.C:
			s.awake += redraw
			view.draw()
		}
		switch j := s.judge(); {
		case j.err != nil:
			return j.err
		case j.broken != nil:
			return c.brokenError(ctx, cl, j.of, j.broken)
		case j.arrived:
			return errArrived
		case len(j.stuck) > 0 && (fresh || !again.IsZero() && time.Now().After(again)):
			fresh, again = false, time.Time{}
			offline, err := stuckError(ctx, cl, j.stuck)
			if err == nil {
				continue
			}
			if soon, listErr := backSoon(ctx, cl, offline, time.Now()); !soon || listErr != nil {
				return err
			}
			again = time.Now().Add(time.Second)
		}
	}
}

// brokenError says why a replica does not run: how it ended, and its last word.
func (c *cli) brokenError(ctx context.Context, cl *client.Client, a *actor, r *cloudlessv1.Replica) error {
	name, status := a.asked.GetMetadata().GetName(), r.GetStatus()
	reason := replicaReason(r)
	if reason == "" {
		reason = "the cluster gives no reason"
	}
	if exit := status.GetLastExit(); exit == nil {
		return fmt.Errorf("workload %s cannot be started: replica %s on %s: %s: see: %s",
			name, r.GetMetadata().GetName(), r.GetSpec().GetNode(), terminal.Plain(reason), getHint(a.asked.GetMetadata()))
	}
	last := ""
	if line := lastLine(ctx, cl, r); line != "" {
		last = fmt.Sprintf(", its last line is %q", line)
	}
	again := ""
	if n := a.failures[r.GetMetadata().GetUid()]; n > 1 {
		again = fmt.Sprintf(" (%d times)", n)
	}
	return fmt.Errorf("workload %s does not stay up: replica %s on %s: %s%s%s: see its output with: %s",
		name, r.GetMetadata().GetName(), r.GetSpec().GetNode(), clause(terminal.Plain(reason)), again, last, logsHint(a.asked.GetMetadata()))
}

// clause is a sentence about a replica as it stands within another one.
func clause(sentence string) string {
	if rest, ok := strings.CutPrefix(sentence, "It "); ok {
		sentence = "it " + rest
	}
	return strings.TrimSuffix(sentence, ".")
}

// logPatience is how long the last line of a replica may take, which is only a help.
const logPatience = 3 * time.Second

func lastLine(ctx context.Context, cl *client.Client, r *cloudlessv1.Replica) string {
	ctx, cancel := context.WithTimeout(ctx, logPatience)
	defer cancel()
	last := ""
	for line, err := range cl.Logs(ctx, &cloudlessv1.LogsRequest{
		Namespace: r.GetMetadata().GetNamespace(), Workload: r.GetSpec().GetWorkload(), Replica: r.GetMetadata().GetName(), Tail: proto.Int32(1),
	}) {
		if err != nil {
			break
		}
		if text := terminal.Plain(string(line.Line)); text != "" {
			last = value(text)
		}
	}
	return last
}

// stuckError says which workloads have no place, node by node. It is nil when one of them may still come: that may
// make room for the others. offline are the names of nodes that could have had room.
func stuckError(ctx context.Context, cl *client.Client, stuck []*actor) (offline []string, err error) {
	var why []string
	var waiting []*cloudlessv1.Workload
	for _, a := range stuck {
		waiting = append(waiting, a.asked)
		meta := a.asked.GetMetadata()
		if a.action == actionDelete {
			return nil, nil
		}
		w, err := cl.Workloads().GetWorkload(ctx, &cloudlessv1.GetWorkloadRequest{Namespace: meta.GetNamespace(), Name: meta.GetName()})
		if err != nil {
			return nil, err
		}
		reasons, quota := w.GetStatus().GetUnplaced(), w.GetStatus().GetQuota()
		if len(reasons) == 0 && quota == "" {
			if none, err := noNodes(ctx, cl); err != nil || !none {
				return nil, err
			}
		}
		for _, r := range reasons {
			if strings.HasPrefix(r.GetReason(), "is offline") {
				offline = append(offline, r.GetNode())
			}
		}
		what := "has no place"
		if w.GetStatus().GetOutdated() > 0 {
			what = "has no place for what is new"
		}
		why = append(why, fmt.Sprintf("workload %s %s, %s%s", meta.GetName(), what, counts(w.GetStatus()), noPlace(quota, reasons)))
	}
	return offline, fmt.Errorf("%s: the cluster goes on as soon as there is room: see: %s", strings.Join(why, "; "), psHint(waiting))
}

// backSoon reports whether one of the nodes is offline for a moment only: most are back soon.
func backSoon(ctx context.Context, cl *client.Client, offline []string, now time.Time) (bool, error) {
	if len(offline) == 0 {
		return false, nil
	}
	nodes, err := listNodes(ctx, cl, "")
	return slices.ContainsFunc(nodes, func(n *cloudlessv1.Node) bool {
		return slices.Contains(offline, n.GetMetadata().GetName()) && now.Sub(n.GetStatus().GetLastSeen().AsTime()) < awayFor
	}), err
}

func noNodes(ctx context.Context, cl *client.Client) (bool, error) {
	answer, err := cl.Nodes().ListNodes(ctx, &cloudlessv1.ListNodesRequest{Page: &cloudlessv1.Page{Size: 1}})
	return err == nil && len(answer.GetItems()) == 0, err
}
