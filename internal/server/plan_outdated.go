package server

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// fingerprint identifies a request together with everything that its plan shows and depends on: versions, digests,
// fields and steps. The values of variables before a change are left out: from the fingerprint, who may not see them
// could find out whether a guess is right. The version stands for them.
func fingerprint(wanted *wanted, plan *v1.Plan) string {
	hash := sha256.New()
	add := func(m proto.Message) {
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil { // only for text that is not UTF-8, which the guard has refused
			data = []byte(err.Error())
		}
		fmt.Fprintf(hash, "%d:", len(data))
		hash.Write(data)
	}
	for _, o := range wanted.objects {
		add(o.given())
	}
	fmt.Fprintf(hash, "prune %q in %q:", wanted.prune, wanted.namespace)
	add(&v1.Plan{Changes: withoutVariables(plan.GetChanges()), Preemptions: plan.GetPreemptions()})
	return hex.EncodeToString(hash.Sum(nil))
}

// withoutVariables returns changes without the fields that are variables.
func withoutVariables(changes []*v1.PlanChange) []*v1.PlanChange {
	isVariable := func(field *v1.FieldChange) bool { return spec.IsVariable(field.GetPath()) }
	all := slices.Clone(changes)
	for i, change := range all {
		if slices.ContainsFunc(change.GetFields(), isVariable) {
			all[i] = proto.CloneOf(change)
			all[i].Fields = slices.DeleteFunc(all[i].Fields, isVariable)
		}
	}
	return all
}

// plans remembers what the newest plans depended on, so that the refusal of an outdated plan can say what has changed
// since. Without the record only that sentence is missing.
type plans struct {
	mu    sync.Mutex
	known map[string]planRecord
	order []string // fingerprints, oldest first
}

// record is what plans remembers about one plan.
type planRecord struct {
	index   uint64 // of the state that the plan depends on
	nodes   int
	changes map[string]*v1.PlanChange // by title, without fields and replicas
}

// maxPlans is the number of plans that are remembered.
const maxPlans = 128

func newPlans() *plans { return &plans{known: map[string]planRecord{}} }

func (p *plans) remember(made *planned) {
	m := planRecord{index: made.base.Index(), nodes: made.base.Count(state.KindNode), changes: map[string]*v1.PlanChange{}}
	for _, c := range made.plan.GetChanges() {
		m.changes[changeTitle(c)] = &v1.PlanChange{Action: c.GetAction(), Version: c.GetVersion(), Image: c.GetImage(), Unplaced: c.GetUnplaced()}
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

// changeTitle is the kind and the name of a changed object for people, such as "workload default/web".
func changeTitle(c *v1.PlanChange) string {
	return title(state.Kind(strings.ToLower(c.GetKind())), &v1.Metadata{Namespace: c.GetNamespace(), Name: c.GetName()})
}

// outdated refuses to apply a plan that would be different now, and says why, as far as that is known.
func (p *plans) outdated(fingerprint string, now *planned) error {
	p.mu.Lock()
	before, known := p.known[fingerprint]
	p.mu.Unlock()
	why := "something that it rests on has changed since"
	if known {
		why = before.difference(now)
	}
	return core.Refuse(codes.Aborted, "the plan is outdated: %s; make the plan again and review it", why)
}

// difference says what has changed since, the nearest cause first.
func (m planRecord) difference(now *planned) string {
	var found []string
	for _, c := range now.plan.GetChanges() {
		title := changeTitle(c)
		was := m.changes[title]
		switch {
		case was == nil:
			found = append(found, fmt.Sprintf("%s did not exist", title))
		case was.GetVersion() == 0 && c.GetVersion() != 0:
			found = append(found, fmt.Sprintf("%s was created by somebody else", title))
		case was.GetVersion() != 0 && c.GetVersion() == 0:
			found = append(found, fmt.Sprintf("%s was deleted", title))
		case was.GetVersion() != c.GetVersion():
			found = append(found, fmt.Sprintf("%s was changed from version %d to %d", title, was.GetVersion(), c.GetVersion()))
		case was.GetImage() != c.GetImage():
			found = append(found, fmt.Sprintf("the image of %s is another one now: %s", title, c.GetImage()))
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

// maxCauses is how many causes one sentence lists.
const maxCauses = 3

func (m planRecord) changedNodes(snap *state.Snapshot) (found []string) {
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
