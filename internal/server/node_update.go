package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
)

// maxNodeLabels and maxTaints limit what one node adds to the state and to every placement
// decision.
const (
	maxNodeLabels = 64
	maxTaints     = 64
)

// nodeBuilder writes what operators set about a node: labels, annotations, taints, price, bandwidth and availability.
// The agent sends such settings only when the node joins, so that a restart never overwrites them.
type nodeBuilder struct {
	collection *collection[*v1.Node]
	given      *v1.Node
	// drain is how to drain the node, if the caller has said so.
	drain *v1.DrainNodeRequest
}

func (b *nodeBuilder) wanted() *v1.Node { return b.given }

// create refuses: only a machine that joins becomes a node.
func (b *nodeBuilder) create(context.Context, *transaction) (*v1.Node, error) {
	return nil, core.Refuse(codes.NotFound, "node %s does not exist, and a file cannot create it: a machine becomes a node with: cloudless join", b.given.GetMetadata().GetName())
}

// update also sets the state that follows from the settings, so that nothing is placed in between.
func (b *nodeBuilder) update(ctx context.Context, tx *transaction, old *v1.Node) (*v1.Node, error) {
	if err := b.sameSubnets(old); err != nil {
		return nil, err
	}
	now := b.settled(ctx, old)
	now.Spec.Drain = placement.DrainOf(b.collection.Now(), tx.base, old, now, b.drain)
	edited, moved := nodeEdits(old, now), availabilityChange(old, now)
	if len(edited) == 0 && moved == "" {
		return old, nil
	}
	if err := checkNodeSize(now); err != nil {
		return nil, err
	}
	b.collection.nodes.Settle(now)
	tx.batch.Update(now, old.GetMetadata().GetVersion())
	if len(edited) > 0 {
		tx.batch.Create(b.collection.Event(ctx, now, "Updated", strings.Join(edited, "; ")))
	}
	if moved != "" {
		tx.batch.Create(b.collection.Event(ctx, now, moved, availabilityMessage(old, now)))
	}
	return now, nil
}

func (b *nodeBuilder) describe(_ *transaction, old, now *v1.Node, change *v1.PlanChange) {
	if change.GetAction() != spec.ActionUnchanged {
		change.Fields = fieldChanges(spec.DiffObject(settingsOf(old), settingsOf(now)))
	}
}

// settingsOf is a node with only the settings of operators.
func settingsOf(n *v1.Node) *v1.Node {
	return &v1.Node{Metadata: n.GetMetadata(), Spec: spec.NodeSettings(n.GetSpec())}
}

// settled is the node with the given settings.
func (b *nodeBuilder) settled(ctx context.Context, old *v1.Node) *v1.Node {
	now, given := proto.CloneOf(old), b.given.GetSpec()
	if now.Spec == nil {
		now.Spec = &v1.NodeSpec{}
	}
	now.Metadata.Labels = maps.Clone(b.given.GetMetadata().GetLabels())
	now.Metadata.Annotations = maps.Clone(b.given.GetMetadata().GetAnnotations())
	now.Spec.Taints = b.taints(old.GetSpec().GetTaints())
	now.Spec.Price, now.Spec.Bandwidth = given.GetPrice(), given.GetBandwidth()
	if n, err := spec.ParseBandwidth(given.GetBandwidth()); err == nil {
		now.Spec.Bandwidth = spec.FormatBandwidth(n)
	}
	if now.Spec.Availability, now.Spec.AvailabilityReason = given.GetAvailability(), given.GetAvailabilityReason(); given.GetAvailability() == "" {
		now.Spec.AvailabilityReason, now.Spec.AvailabilityBy = "", ""
	}
	if now.GetSpec().GetAvailability() != "" && availabilityChange(old, now) != "" {
		now.Spec.AvailabilityBy = b.collection.Actor(ctx)
	}
	return now
}

// taints are the given ones, sorted. A taint that stays the same keeps its time: replicas that tolerate it for a while
// must not get that time again.
func (b *nodeBuilder) taints(before []*v1.Taint) []*v1.Taint {
	var all []*v1.Taint
	now := timestamppb.New(b.collection.Now())
	for _, given := range b.given.GetSpec().GetTaints() {
		made := &v1.Taint{Key: given.GetKey(), Value: given.GetValue(), Effect: given.GetEffect(), Time: now}
		if at := slices.IndexFunc(before, func(t *v1.Taint) bool { return equalTaints(t, given) }); at >= 0 {
			made = before[at]
		}
		all = append(all, made)
	}
	slices.SortFunc(all, func(a, b *v1.Taint) int { return strings.Compare(spec.FormatTaint(a), spec.FormatTaint(b)) })
	return all
}

// equalTaints reports whether two taints differ at most in their times.
func equalTaints(a, b *v1.Taint) bool { return spec.SameTaint(a, b) && a.GetValue() == b.GetValue() }

// sameSubnets refuses other address ranges than those that the cluster has assigned. A file may leave them out.
func (b *nodeBuilder) sameSubnets(old *v1.Node) error {
	given, is := b.given.GetSpec(), old.GetSpec()
	for _, one := range []struct{ field, given, is string }{
		{"spec.subnetV4", given.GetSubnetV4(), is.GetSubnetV4()}, {"spec.subnetV6", given.GetSubnetV6(), is.GetSubnetV6()},
	} {
		if one.given != "" && one.given != one.is {
			return &spec.Error{Violations: []spec.Violation{{Field: one.field, Message: "is assigned by the cluster and cannot be changed; leave it out"}}}
		}
	}
	return nil
}

// UpdateNode changes some settings and keeps the others.
func (s *nodeService) UpdateNode(ctx context.Context, request *v1.UpdateNodeRequest) (*v1.Node, error) {
	return s.changeSettings(ctx, request, func(n *v1.Node) {
		for _, key := range request.GetRemoveLabels() {
			delete(n.GetMetadata().GetLabels(), key)
		}
		if n.Metadata.Labels == nil {
			n.Metadata.Labels = map[string]string{}
		}
		maps.Copy(n.Metadata.Labels, request.GetLabels())
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t *v1.Taint) bool {
			return slices.ContainsFunc(request.GetTaints(), func(o *v1.Taint) bool { return spec.SameTaint(o, t) }) ||
				slices.ContainsFunc(request.GetRemoveTaints(), func(name *v1.TaintName) bool {
					return name.GetKey() == t.GetKey() && (name.GetEffect() == "" || name.GetEffect() == t.GetEffect())
				})
		})
		n.Spec.Taints = append(n.Spec.Taints, request.GetTaints()...)
		if request.Price != nil {
			n.Spec.Price = request.GetPrice()
		}
		if request.Bandwidth != nil {
			n.Spec.Bandwidth = request.GetBandwidth()
		}
	})
}

func (s *nodeService) CordonNode(ctx context.Context, request *v1.CordonNodeRequest) (*v1.Node, error) {
	return s.changeSettings(ctx, request, func(n *v1.Node) {
		if n.Spec.Availability != spec.AvailabilityCordoned || request.GetReason() != "" {
			n.Spec.Availability, n.Spec.AvailabilityReason = spec.AvailabilityCordoned, request.GetReason()
		}
	})
}

func (s *nodeService) DrainNode(ctx context.Context, request *v1.DrainNodeRequest) (*v1.Node, error) {
	return s.changeNamed(ctx, "", request.GetName(), request.GetVersion(), func(tx *transaction, old *v1.Node) (*v1.Node, error) {
		given := proto.CloneOf(old)
		if given.Spec == nil {
			given.Spec = &v1.NodeSpec{}
		}
		if given.Spec.Availability != spec.AvailabilityDraining || request.GetReason() != "" {
			given.Spec.Availability, given.Spec.AvailabilityReason = spec.AvailabilityDraining, request.GetReason()
		}
		now, err := (&nodeBuilder{collection: s.collection, given: given, drain: request}).update(ctx, tx, old)
		if err == nil && !request.GetForce() {
			err = s.checkDrainable(tx, now)
		}
		return now, err
	})
}

// checkDrainable refuses a drain that would have to go below minAvailable, or stop a service for lack of another node.
func (s *nodeService) checkDrainable(tx *transaction, n *v1.Node) error {
	workloads := map[string]bool{}
	for r := range tx.base.ReplicasOn(n.GetMetadata().GetUid()) {
		workloads[r.GetSpec().GetWorkloadUid()] = true
	}
	now, fork := s.Now(), tx.base.Fork()
	if _, _, err := s.placement.Forecast(now, fork, tx.batch.Transaction(now), slices.Sorted(maps.Keys(workloads))); err != nil {
		return err
	}
	reasons, help := s.placement.Undrainable(tx.base, fork.Snapshot(), n)
	if len(reasons) == 0 {
		return nil
	}
	return core.Refuse(codes.FailedPrecondition, "node %s cannot be drained: %s; add a machine, %s, or drain it all the same with --force",
		n.GetMetadata().GetName(), strings.Join(reasons, "; "), help)
}

func (s *nodeService) UncordonNode(ctx context.Context, request *v1.UncordonNodeRequest) (*v1.Node, error) {
	return s.changeSettings(ctx, request, func(n *v1.Node) { n.Spec.Availability = "" })
}

// changeSettings changes the settings of a node through its builder.
func (s *nodeService) changeSettings(ctx context.Context, request interface {
	GetName() string
	GetVersion() uint64
}, change func(*v1.Node),
) (*v1.Node, error) {
	return s.changeNamed(ctx, "", request.GetName(), request.GetVersion(), func(tx *transaction, old *v1.Node) (*v1.Node, error) {
		given := proto.CloneOf(old)
		if given.Spec == nil {
			given.Spec = &v1.NodeSpec{}
		}
		change(given)
		return (&nodeBuilder{collection: s.collection, given: given}).update(ctx, tx, old)
	})
}

// nodeEdits describe for an event which settings differ, apart from the availability.
func nodeEdits(old, now *v1.Node) (all []string) {
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	eachEntry("label", old.GetMetadata().GetLabels(), now.GetMetadata().GetLabels(), add)
	eachEntry("annotation", old.GetMetadata().GetAnnotations(), now.GetMetadata().GetAnnotations(), add)
	was, is := old.GetSpec(), now.GetSpec()
	for _, t := range was.GetTaints() {
		if !slices.ContainsFunc(is.GetTaints(), func(o *v1.Taint) bool { return spec.SameTaint(o, t) }) {
			add("taint %s removed", spec.FormatTaint(t))
		}
	}
	for _, t := range is.GetTaints() {
		if !slices.ContainsFunc(was.GetTaints(), func(o *v1.Taint) bool { return equalTaints(o, t) }) {
			add("taint %s", spec.FormatTaint(t))
		}
	}
	if was.GetPrice() != is.GetPrice() {
		add("price %d instead of %d", is.GetPrice(), was.GetPrice())
	}
	switch {
	case was.GetBandwidth() == is.GetBandwidth():
	case is.GetBandwidth() == "":
		add("bandwidth as the machine says")
	default:
		add("bandwidth %s", is.GetBandwidth())
	}
	return all
}

// eachEntry describes the differences of two maps, the removed entries first.
func eachEntry(noun string, before, after map[string]string, add func(string, ...any)) {
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if _, kept := after[key]; !kept {
			add("%s %s removed", noun, key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(after)) {
		switch old, had := before[key]; {
		case had && old == after[key]:
		case had:
			add("%s %s=%s instead of %s", noun, key, after[key], old)
		default:
			add("%s %s=%s", noun, key, after[key])
		}
	}
}

// availabilityChange is the reason of the event about a changed availability, empty if it is the same.
func availabilityChange(old, now *v1.Node) string {
	was, is := old.GetSpec(), now.GetSpec()
	switch {
	case was.GetAvailability() == is.GetAvailability() && was.GetAvailabilityReason() == is.GetAvailabilityReason() &&
		proto.Equal(was.GetDrain(), is.GetDrain()):
		return ""
	case is.GetAvailability() == "":
		return "Uncordoned"
	case is.GetAvailability() == spec.AvailabilityDraining:
		return "Draining"
	}
	return "Cordoned"
}

func availabilityMessage(old, now *v1.Node) string {
	if now.GetSpec().GetAvailability() == "" {
		return "was " + old.GetSpec().GetAvailability()
	}
	means := "nothing new is placed on it; what runs there stays"
	if now.GetSpec().GetAvailability() == spec.AvailabilityDraining {
		means = "nothing new is placed on it; what runs there moves to other nodes"
	}
	return cmp.Or(now.GetSpec().GetAvailabilityReason(), means)
}

// checkNodeSize refuses a node with too many labels or taints.
func checkNodeSize(n *v1.Node) error {
	name := n.GetMetadata().GetName()
	if count := len(n.GetMetadata().GetLabels()); count > maxNodeLabels {
		return core.Refuse(codes.FailedPrecondition, "node %s would have %d labels, and a node has at most %d; remove some first: cloudless node label %s KEY-", name, count, maxNodeLabels, name)
	}
	if count := len(n.GetSpec().GetTaints()); count > maxTaints {
		return core.Refuse(codes.FailedPrecondition, "node %s would have %d taints, and a node has at most %d; remove some first: cloudless node taint %s KEY-", name, count, maxTaints, name)
	}
	return nil
}
