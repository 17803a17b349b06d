package server

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Namespaces in a plan. They are part of the same transaction as the workloads,
// so that these are forecast and placed under the quotas that come with them.

// wishNamespaces checks what a request asks for and brings it into canonical form.
func wishNamespaces(given []*v1.Namespace) ([]*v1.Namespace, error) {
	var all []*v1.Namespace
	seen := map[string]bool{}
	for i, one := range given {
		err := spec.ValidateNamespace(one)
		if broken, ok := errors.AsType[*spec.Error](err); ok {
			for j := range broken.Violations {
				broken.Violations[j].Field = fmt.Sprintf("namespaces[%d].%s", i, broken.Violations[j].Field)
			}
		}
		if err != nil {
			return nil, err
		}
		n := acceptNamespace(proto.CloneOf(one))
		if name := n.GetMetadata().GetName(); seen[name] {
			return nil, refuse(codes.InvalidArgument, "namespace %s is given twice; leave one of them out", name)
		}
		seen[n.GetMetadata().GetName()] = true
		all = append(all, n)
	}
	return all, nil
}

// planNamespace adds one wanted namespace to the plan and to its transaction.
func (s *Server) planNamespace(ctx context.Context, p *planned, wanted *v1.Namespace) error {
	old := p.base.NamespaceByName(wanted.GetMetadata().GetName())
	n, action, err := s.applyNamespace(ctx, p.base, p.batch, wanted)
	if err != nil {
		return err
	}
	change := &v1.PlanNamespace{
		Name: wanted.GetMetadata().GetName(), Action: action, Version: old.GetMetadata().GetVersion(),
		Over: s.placement.Used(p.base, wanted).GetOver(),
	}
	if action != actionUnchanged {
		change.Fields = fieldChanges(spec.DiffNamespace(old, wanted))
	}
	p.plan.Namespaces = append(p.plan.Namespaces, change)
	p.namespaces = append(p.namespaces, n.GetMetadata().GetUid())
	return nil
}

// waiting are the uids of the workloads with replicas that have no node, in the
// namespaces that a plan changes, by namespace.
func (p *planned) waiting() map[string][]string {
	changed := map[string]bool{}
	for _, n := range p.plan.GetNamespaces() {
		changed[n.GetName()] = n.GetAction() != actionUnchanged
	}
	all := map[string][]string{}
	if len(changed) == 0 {
		return all
	}
	for r := range p.base.ReplicasOn("") {
		name, uid := r.GetMetadata().GetNamespace(), r.GetSpec().GetWorkloadUid()
		if changed[name] && !rollout.Ended(r.GetStatus().GetPhase()) && !slices.Contains(all[name], uid) {
			all[name] = append(all[name], uid)
		}
	}
	return all
}

// woken counts the replicas that had no node before and have one then.
func woken(outcomes []*v1.PlanChange) (n int32) {
	for _, o := range outcomes {
		for _, step := range o.GetReplicas() {
			if step.GetAction() == actionCreate && step.GetReplica() != "" {
				n++
			}
		}
	}
	return n
}

// proposeNamespaces lets a plan be carried out only if the namespaces that it
// leaves alone are still as they were.
func (p *planned) proposeNamespaces(b *state.Batch, kept *v1.Plan) {
	for i, change := range p.plan.GetNamespaces() {
		if change.GetAction() == actionUnchanged {
			b.Check(state.KindNamespace, p.namespaces[i], change.GetVersion())
		}
		kept.Namespaces = append(kept.Namespaces, &v1.PlanNamespace{Name: change.GetName(), Action: change.GetAction(), Version: change.GetVersion()})
	}
}

// planNamespaces are the namespaces of a plan as they are now.
func (s *Server) planNamespaces(snap *state.Snapshot, plan *v1.Plan) []*v1.Namespace {
	var all []*v1.Namespace
	for _, change := range plan.GetNamespaces() {
		if n := snap.NamespaceByName(change.GetName()); n != nil {
			all = append(all, s.presentNamespace(snap, n))
		}
	}
	return all
}

// mayChangeNamespaces refuses a plan that changes quotas to those who may not do
// so by other calls either.
func mayChangeNamespaces(ctx context.Context, plan *v1.Plan) error {
	roles := permissions[v1.NamespaceService_ApplyNamespace_FullMethodName]
	for _, change := range plan.GetNamespaces() {
		if p := caller(ctx); change.GetAction() != actionUnchanged && !slices.Contains(roles, p.Role) {
			return &forbidden{principal: p, what: change.GetAction() + " namespace " + change.GetName(), roles: roles}
		}
	}
	return nil
}

// namespaceDifference is what has become of the namespaces of a plan since it was
// made.
func (m memory) namespaceDifference(now *v1.Plan) (found []string) {
	for _, c := range now.GetNamespaces() {
		if was, known := m.namespaces[c.GetName()]; known && was != c.GetVersion() {
			found = append(found, fmt.Sprintf("namespace %s was changed by somebody else", c.GetName()))
		}
	}
	return found
}
