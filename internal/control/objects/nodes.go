package objects

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/names"
	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	// nodesEvery is how often nodes are looked at without a change.
	nodesEvery = time.Minute
	// gatherChanges lets several changes of nodes count as one.
	gatherChanges = time.Second
	// compareArrived is how long after its arrival a node is compared: it may have been away, or restored.
	compareArrived = time.Minute
)

// followNodes notices nodes that come and go, gives new ones a number, and forgets removed ones.
func (l *Loops) followNodes(ctx context.Context, t *term) {
	standings := map[string]string{}
	for {
		changed := l.o.Disks.Changed() // before Nodes, so that no change is missed
		nodes := l.o.Disks.Nodes()
		arrived, moved := t.observe(nodes)
		for _, uid := range arrived {
			t.compareAt(uid, time.Now().Add(compareArrived))
		}
		if now := describe(nodes); moved || !maps.Equal(now, standings) {
			standings = now
			wake(t.repair)
			wake(t.scrub)
		}
		err := l.register(ctx, nodes)
		l.note(ctx, "nodes could not be registered for the object store; trying again", err)
		err = l.forgetRemoved(ctx, t)
		l.note(ctx, "a removed node could not be forgotten by the object store; trying again", err)
		if !rest(ctx, changed, nodesEvery) || sleep.For(ctx, gatherChanges) != nil {
			return
		}
	}
}

// describe is what of nodes matters for repairs.
func describe(nodes []object.Node) map[string]string {
	all := make(map[string]string, len(nodes))
	for _, n := range nodes {
		all[n.UID] = fmt.Sprint(n.Connected, n.Draining, n.Problem != "")
	}
	return all
}

// register gives numbers to nodes that have none.
func (l *Loops) register(ctx context.Context, nodes []object.Node) error {
	numbers, err := l.numbers(ctx)
	if err != nil {
		return err
	}
	var ops []*objectv1.Operation
	for _, n := range nodes {
		if numbers[n.UID] == 0 && !l.o.Removed(n.UID) {
			ops = append(ops, &objectv1.Operation{What: &objectv1.Operation_RegisterNode{
				RegisterNode: &objectv1.RegisterNode{Uid: n.UID},
			}})
		}
	}
	if len(ops) == 0 {
		return nil
	}
	_, err = l.propose(ctx, ops...)
	return err
}

func (l *Loops) numbers(ctx context.Context) (numbers map[string]uint32, err error) {
	err = l.read(ctx, func(view *names.View) (err error) {
		numbers, err = view.Nodes()
		return err
	})
	return numbers, err
}

// forgetRemoved takes removed nodes away from their chunks, step by step. What they had counts as short then, and is
// copied from others at once.
func (l *Loops) forgetRemoved(ctx context.Context, t *term) error {
	numbers, err := l.numbers(ctx)
	if err != nil {
		return err
	}
	for _, uid := range slices.Sorted(maps.Keys(numbers)) {
		for left := l.o.Removed(uid); left; {
			results, err := l.propose(ctx, &objectv1.Operation{What: &objectv1.Operation_ForgetNode{
				ForgetNode: &objectv1.ForgetNode{Uid: uid},
			}})
			if err != nil {
				return err
			}
			left = results[0].GetRefused() == names.RefusedNotEmpty
			wake(t.repair)
		}
	}
	return nil
}
