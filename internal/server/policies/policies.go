// Package policies judges what callers write: by the policies of the cluster, by the built-in rules about what reaches
// beyond a workload's own container, and by the ceilings of its namespace.
//
// Everything that the nouns and plans write passes here, as a transaction that is not proposed yet. What the cluster's own
// loops write does not: they act on revisions that were admitted. Rules about nodes are evaluated where replicas are placed
// (control/placement). It must not know how transactions are built.
package policies

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/policy"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// WarningHeader is the header of an answer with what policies of mode "warn" say of the written object.
const WarningHeader = "cloudless-warning"

// Verdict is what is said of a transaction.
type Verdict struct {
	Findings []*v1.PolicyFinding
	// objects are those that the findings are about, for events.
	objects map[string]state.Object
}

// Change is an object that a caller changes.
type Change struct {
	Verb           string
	Before, Object state.Object // Before is nil for a new object
}

// Judge judges every object that a transaction creates, changes or deletes. Policies and namespaces count as the
// transaction leaves them.
func Judge(ctx context.Context, c *core.Core, base *state.Snapshot, b *state.Batch) *Verdict {
	return JudgeAll(ctx, c, base, b, changes(base, b))
}

// JudgeAll judges some changes as if they were those of the transaction.
func JudgeAll(ctx context.Context, c *core.Core, base *state.Snapshot, b *state.Batch, all iter.Seq[Change]) *Verdict {
	v := &Verdict{objects: map[string]state.Object{}}
	j := &judge{caller: core.Caller(ctx), now: c.Now(), base: base, batch: b}
	for change := range all {
		for _, f := range j.of(ctx, change) {
			v.Findings = append(v.Findings, f)
			v.objects[keyOf(f)] = change.Object
		}
	}
	return v
}

func keyOf(f *v1.PolicyFinding) string {
	return f.GetKind() + "/" + f.GetNamespace() + "/" + f.GetName()
}

// changes yields what a transaction changes, in its order. What a caller writes beside, such as revisions and events,
// is not judged.
func changes(base *state.Snapshot, b *state.Batch) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		for o := range state.Puts[state.Object](b) {
			kind := state.KindOf(o)
			if !policy.Judged(nounOf(o)) {
				continue
			}
			before := state.ByUID[state.Object](base, kind, o.GetMetadata().GetUid())
			verb, changed := verbOf(before, o)
			if changed && !yield(Change{verb, before, o}) {
				return
			}
		}
		for kind, uid := range b.Deleted() {
			before := state.ByUID[state.Object](base, kind, uid)
			if before != nil && policy.Judged(nounOf(before)) && !yield(Change{policy.Delete, before, before}) {
				return
			}
		}
	}
}

// verbOf says what is done with an object. What only the cluster writes, such as a status, is no change.
func verbOf(before, o state.Object) (verb string, changed bool) {
	m, was := o.GetMetadata(), before
	switch {
	case was == nil:
		return policy.Create, !ownedByAnother(o)
	case m.GetDeleteTime() != nil:
		return policy.Delete, was.GetMetadata().GetDeleteTime() == nil
	}
	same := maps.Equal(m.GetLabels(), was.GetMetadata().GetLabels()) && maps.Equal(m.GetAnnotations(), was.GetMetadata().GetAnnotations()) &&
		sameSpec(was, o)
	return policy.Update, !same && !ownedByAnother(o)
}

// ownedByAnother reports whether a workload runs for another one, which was judged: the job of a cron.
func ownedByAnother(o state.Object) bool {
	w, ok := o.(*v1.Workload)
	return ok && w.GetStatus().GetOwnerUid() != ""
}

func sameSpec(a, b state.Object) bool {
	field := a.ProtoReflect().Descriptor().Fields().ByName("spec")
	if field == nil || a.ProtoReflect().Descriptor() != b.ProtoReflect().Descriptor() {
		return proto.Equal(a, b)
	}
	return a.ProtoReflect().Get(field).Equal(b.ProtoReflect().Get(field))
}

func nounOf(o state.Object) string {
	return strings.ToLower(string(o.ProtoReflect().Descriptor().Name()))
}

// Refusal refuses a transaction that breaks enforced rules, all of them at once; nil if there are none.
func (v *Verdict) Refusal() error {
	var broken []spec.Violation
	several := len(v.objects) > 1
	for _, f := range policy.Sorted(v.Findings) {
		if f.GetMode() != policy.Enforce {
			continue
		}
		words := policy.Words(f)
		if several {
			words = title(f) + ": " + words
		}
		broken = append(broken, spec.Violation{Field: f.GetField(), Message: words})
	}
	if broken == nil {
		return nil
	}
	return &spec.Error{Violations: broken}
}

func title(f *v1.PolicyFinding) string {
	if f.GetNamespace() == "" {
		return f.GetKind() + " " + f.GetName()
	}
	return f.GetKind() + " " + f.GetNamespace() + "/" + f.GetName()
}

// Record adds an event for every finding that refuses nothing. It must be called once for each attempt to commit.
func (v *Verdict) Record(ctx context.Context, c *core.Core, b *state.Batch) {
	for _, f := range policy.Sorted(v.Findings) {
		about := v.objects[keyOf(f)]
		if f.GetMode() == policy.Enforce || about == nil {
			continue
		}
		severity := state.SeverityInfo
		if f.GetMode() == policy.Warn {
			severity = state.SeverityWarning
		}
		b.Create(state.NewEvent(state.NewUID(), c.Now(), about, severity, "PolicyBroken", policy.Words(f), c.Actor(ctx)))
	}
}

// Warnings are the sentences of mode "warn".
func (v *Verdict) Warnings() (all []string) {
	for _, f := range policy.Sorted(v.Findings) {
		if f.GetMode() == policy.Warn {
			all = append(all, policy.Words(f))
		}
	}
	return all
}

// Tell puts the warnings into the header of the answer.
func (v *Verdict) Tell(ctx context.Context) {
	if warnings := v.Warnings(); len(warnings) > 0 {
		pairs := metadata.MD{}
		for _, words := range warnings[:min(len(warnings), 16)] {
			pairs.Append(WarningHeader, printable(words))
		}
		_ = grpc.SetHeader(ctx, pairs) // outside of a call there is nobody to tell
	}
}

// printable makes a text fit for a header.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
	return text[:min(len(text), 1024)]
}

// Of returns the findings about one object.
func (v *Verdict) Of(kind, namespace, name string) []*v1.PolicyFinding {
	return policy.Sorted(slices.DeleteFunc(slices.Clone(v.Findings), func(f *v1.PolicyFinding) bool {
		return f.GetKind() != kind || f.GetNamespace() != namespace || f.GetName() != name
	}))
}
