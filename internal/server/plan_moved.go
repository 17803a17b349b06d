package server

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// fingerprint stands for a request and for all that its plan says and rests
// on: versions, digests, fields and steps.
func fingerprint(wish *wish, plan *v1.Plan) string {
	hash := sha256.New()
	add := func(m proto.Message) {
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil { // only text that is not UTF-8, which the guard has refused
			data = []byte(err.Error())
		}
		fmt.Fprintf(hash, "%d:", len(data))
		hash.Write(data)
	}
	for _, n := range wish.namespaces {
		add(n)
	}
	for _, w := range wish.workloads {
		add(w.workload)
	}
	fmt.Fprintf(hash, "prune %q in %q:", wish.prune, wish.namespace)
	add(&v1.Plan{Changes: plan.GetChanges(), Namespaces: plan.GetNamespaces(), Preemptions: plan.GetPreemptions()})
	return hex.EncodeToString(hash.Sum(nil))
}

// plans remembers what the newest plans rested on, so that the refusal of one
// can say what has changed since. Forgetting one costs that sentence only.
type plans struct {
	mu    sync.Mutex
	known map[string]memory
	order []string // of the fingerprints, oldest first
}

// memory is what is remembered of a plan.
type memory struct {
	index   uint64 // of the state that it rests on
	nodes   int
	changes map[string]*v1.PlanChange // by path, without fields and replicas
	// namespaces are the versions of the namespaces, by name.
	namespaces map[string]uint64
}

// maxPlans is how many plans are remembered.
const maxPlans = 128

func newPlans() *plans { return &plans{known: map[string]memory{}} }

func (p *plans) remember(made *planned) {
	m := memory{index: made.base.Index(), nodes: made.base.Count(state.KindNode), changes: map[string]*v1.PlanChange{}, namespaces: map[string]uint64{}}
	for _, n := range made.plan.GetNamespaces() {
		m.namespaces[n.GetName()] = n.GetVersion()
	}
	for _, c := range made.plan.GetChanges() {
		m.changes[pathOf(c)] = &v1.PlanChange{Action: c.GetAction(), Version: c.GetVersion(), Image: c.GetImage(), Unplaced: c.GetUnplaced()}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	key := made.plan.GetFingerprint()
	if _, again := p.known[key]; !again {
		p.order = append(p.order, key)
	}
	p.known[key] = m
	if len(p.order) > maxPlans {
		delete(p.known, p.order[0])
		p.order = p.order[1:]
	}
}

func pathOf(c *v1.PlanChange) string { return c.GetNamespace() + "/" + c.GetName() }

// movedOn refuses to carry out a plan that is not the one that would be made
// now, and says why as far as that is known.
func (p *plans) movedOn(fingerprint string, now *planned) error {
	p.mu.Lock()
	before, known := p.known[fingerprint]
	p.mu.Unlock()
	why := "something that it rests on has changed since"
	if known {
		why = before.difference(now)
	}
	return refuse(codes.Aborted, "the world has moved on since this plan was made: %s; make the plan again and look at it", why)
}

// difference is what has changed since, the nearest cause first.
func (m memory) difference(now *planned) string {
	found := m.namespaceDifference(now.plan)
	for _, c := range now.plan.GetChanges() {
		was, path := m.changes[pathOf(c)], pathOf(c)
		switch {
		case was == nil:
			found = append(found, fmt.Sprintf("workload %s was not there", path))
		case was.GetVersion() == 0 && c.GetVersion() != 0:
			found = append(found, fmt.Sprintf("workload %s was created by somebody else", path))
		case was.GetVersion() != 0 && c.GetVersion() == 0:
			found = append(found, fmt.Sprintf("workload %s was deleted", path))
		case was.GetVersion() != c.GetVersion():
			found = append(found, fmt.Sprintf("workload %s was changed from version %d to %d", path, was.GetVersion(), c.GetVersion()))
		case was.GetImage() != c.GetImage():
			found = append(found, fmt.Sprintf("the image of workload %s is another one now: %s", path, c.GetImage()))
		}
	}
	if len(now.plan.GetChanges()) < len(m.changes) {
		found = append(found, "a workload that was to be deleted is gone already")
	}
	if len(found) == 0 {
		found = m.changedNodes(now.base)
	}
	if len(found) == 0 {
		return "replicas of these or of other workloads have moved, so that room is elsewhere"
	}
	if more := len(found) - maxCauses; more > 0 {
		found = append(found[:maxCauses], fmt.Sprintf("%d more", more))
	}
	return strings.Join(found, ", ")
}

// maxCauses is how many causes one sentence can hold.
const maxCauses = 3

func (m memory) changedNodes(snap *state.Snapshot) (found []string) {
	for n := range snap.Nodes("") {
		if n.GetMetadata().GetVersion() > m.index {
			found = append(found, fmt.Sprintf("node %s has changed and is %s", n.GetMetadata().GetName(), n.GetStatus().GetState()))
		}
	}
	if len(found) == 0 && snap.Count(state.KindNode) < m.nodes {
		found = append(found, "a node is gone")
	}
	return found
}
