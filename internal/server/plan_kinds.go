package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/policy"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/policies"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// plannable is a collection of any kind, as plans use it.
type plannable interface {
	// message is an empty object of the kind.
	message() proto.Message
	prepareObject(ctx context.Context, given proto.Message, rank int, p *preparation) (planObject, error)
	// manifest returns an object as it is now; nil if there is none.
	manifest(snap *state.Snapshot, namespace, name string) *v1.Manifest
	// prune adds the deletion of the objects that a request prunes. given are the titles of the objects in the request.
	prune(ctx context.Context, p *planned, wanted *wanted, given map[string]bool)
}

// planObject is a wanted object of any kind.
type planObject interface {
	// title is the kind and the name for people, such as "workload default/web".
	title() string
	// rank is the position of the kind among the others.
	rank() int
	given() proto.Message
	plan(ctx context.Context, p *planned) error
}

// planKinds are the kinds that plans can hold, in the order in which plans list them.
type planKinds []plannable

// named finds a kind such as "Workload"; nil if there is none.
func (k planKinds) named(kind string) plannable {
	i := slices.IndexFunc(k, func(one plannable) bool { return nameOf(one) == kind })
	if i < 0 {
		return nil
	}
	return k[i]
}

func nameOf(kind plannable) string { return string(kind.message().ProtoReflect().Descriptor().Name()) }

// prepare checks and prepares one object of a request.
func (k planKinds) prepare(ctx context.Context, index int, manifest *v1.Manifest, p *preparation) (planObject, error) {
	given, field := spec.ObjectIn(manifest)
	if given == nil {
		return nil, core.Refuse(codes.InvalidArgument, "objects[%d] is empty: give a workload or another object", index)
	}
	if err := spec.Validate(given); err != nil {
		if broken, ok := errors.AsType[*spec.Error](err); ok {
			for i := range broken.Violations {
				broken.Violations[i].Field = fmt.Sprintf("objects[%d].%s.%s", index, field, broken.Violations[i].Field)
			}
		}
		return nil, err
	}
	for rank, kind := range k {
		if kind.message().ProtoReflect().Descriptor() == given.ProtoReflect().Descriptor() {
			return kind.prepareObject(ctx, given, rank, p)
		}
	}
	return nil, core.Refuse(codes.InvalidArgument, "objects[%d]: a plan cannot hold a %s", index, field)
}

func (c *collection[T]) message() proto.Message { return *new(T) }

func (c *collection[T]) prepareObject(ctx context.Context, given proto.Message, rank int, p *preparation) (planObject, error) {
	b, err := c.prepare(ctx, given.(T), p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", title(c.kind, given.(T).GetMetadata()), err)
	}
	return &collected[T]{collection: c, builder: b, order: rank}, nil
}

func (c *collection[T]) manifest(snap *state.Snapshot, namespace, name string) *v1.Manifest {
	found := c.find(snap, namespace, name)
	if found == *new(T) {
		return nil
	}
	return spec.ManifestOf(c.present(snap, found))
}

// prune deletes only objects in a namespace: labels of one namespace say nothing about what the others share.
func (c *collection[T]) prune(ctx context.Context, p *planned, wanted *wanted, given map[string]bool) {
	if !c.declared.Namespaced || c.declared.Delete == nil {
		return
	}
	for old := range c.all(p.base, wanted.namespace, "") {
		m := old.GetMetadata()
		if m.GetDeleteTime() != nil || given[title(c.kind, m)] || !wanted.prune.Matches(m.GetLabels()) {
			continue
		}
		change := &v1.PlanChange{Action: spec.ActionDelete, Version: m.GetVersion()}
		if c.prunable == nil || c.prunable(p.base, old, change) {
			c.remove(ctx, p.transaction, old)
			p.add(c.kind, old, change)
		}
	}
}

// collected is a wanted object of a collection.
type collected[T object] struct {
	collection *collection[T]
	builder    builder[T]
	order      int
}

func (o *collected[T]) title() string {
	return title(o.collection.kind, o.builder.wanted().GetMetadata())
}
func (o *collected[T]) rank() int            { return o.order }
func (o *collected[T]) given() proto.Message { return o.builder.wanted() }

func (o *collected[T]) plan(ctx context.Context, p *planned) error {
	old := o.collection.stored(p.base, o.builder.wanted())
	now, action, err := o.collection.build(ctx, p.transaction, o.builder)
	if err != nil {
		return err
	}
	change := &v1.PlanChange{Action: action, Version: old.GetMetadata().GetVersion()}
	o.builder.describe(p.transaction, old, now, change)
	p.add(o.collection.kind, now, change)
	return nil
}

// judge adds to the plan what policies say of its objects, also of those that it does not change: these stay as they are,
// whatever policies say, but their authors see what would refuse the next change.
func (p *planned) judge(ctx context.Context, c *core.Core) {
	p.verdict = policies.Judge(ctx, c, p.base, p.batch)
	kept := policies.JudgeAll(ctx, c, p.base, p.batch, func(yield func(policies.Change) bool) {
		for i, o := range p.objects {
			stored := state.ByUID[state.Object](p.base, o.kind, o.uid)
			if p.plan.GetChanges()[i].GetAction() == spec.ActionUnchanged && stored != nil && !yield(policies.Change{Verb: policy.Update, Before: stored, Object: stored}) {
				return
			}
		}
	})
	for _, change := range p.plan.GetChanges() {
		from := p.verdict
		if change.GetAction() == spec.ActionUnchanged {
			from = kept
		}
		change.Findings = from.Of(strings.ToLower(change.GetKind()), change.GetNamespace(), change.GetName())
	}
}

// title is an object's kind and name for people, such as "workload default/web".
func title(kind state.Kind, m *v1.Metadata) string {
	if m.GetNamespace() == "" {
		return string(kind) + " " + m.GetName()
	}
	return string(kind) + " " + m.GetNamespace() + "/" + m.GetName()
}
