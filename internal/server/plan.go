package server

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/cloudless/cloudless/api"
	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"

	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/policies"
)

// planService is the PlanService. A plan is the transaction that ApplyPlan would propose, built on a fork of the state,
// and what the loop of replicas does with it there. The same code shows a plan and applies it.
//
// The transaction creates no replicas. Only the loop places replicas: two writers could promise the same room twice.
// The loop arrives at what the plan showed because it decides by the same function on the same state.
type planService struct {
	v1.UnsafePlanServiceServer
	*Server
}

func (s *planService) MakePlan(ctx context.Context, request *v1.PlanRequest) (*v1.Plan, error) {
	done, err := s.planning.Take(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	wanted, err := s.prepareAll(ctx, request)
	if err != nil {
		return nil, err
	}
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	p, err := s.plan(ctx, wanted, snap)
	if err != nil {
		return nil, err
	}
	s.plans.remember(p)
	return p.plan, nil
}

func (s *planService) ApplyPlan(ctx context.Context, request *v1.ApplyPlanRequest) (*v1.ApplyPlanResponse, error) {
	receipt, err := core.NewReceipt(ctx, v1.PlanService_ApplyPlan_FullMethodName, request.GetIdempotencyKey(), request)
	if err != nil {
		return nil, err
	}
	done, err := receipt.Find(s.Store.Snapshot())
	if err != nil {
		return nil, err
	}
	if done != nil {
		return s.repeatedPlan(done, request.GetFingerprint())
	}
	end, err := s.applying.Take(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	wanted, err := s.prepareAll(ctx, request.GetRequest())
	if err != nil {
		return nil, err
	}
	var p *planned
	snap, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) (err error) {
		if done, err = receipt.Find(snap); done != nil || err != nil {
			return err
		}
		if p, err = s.plan(ctx, wanted, snap); err != nil {
			return err
		}
		if p.plan.GetFingerprint() != request.GetFingerprint() {
			return s.plans.outdated(request.GetFingerprint(), p)
		}
		if err := s.mayApply(ctx, p); err != nil {
			return err
		}
		if err := p.verdict.Refusal(); err != nil {
			return err
		}
		if err := p.propose(b, receipt); err != nil || p.batch.Len() == 0 {
			return err
		}
		p.verdict.Record(ctx, s.Core, b)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if done != nil { // by the same call at the same time
		return s.repeatedPlan(done, request.GetFingerprint())
	}
	return s.applied(snap, p.plan), nil
}

// mayApply refuses a plan with changes that its caller could not make one by one either.
func (s *Server) mayApply(ctx context.Context, p *planned) error {
	for _, change := range p.plan.GetChanges() {
		if change.GetAction() == spec.ActionUnchanged {
			continue
		}
		kind := strings.ToLower(change.GetKind())
		if err := s.Require(ctx, change.GetAction(), kind, change.GetNamespace(), fmt.Sprintf("%s %s %s", change.GetAction(), kind, change.GetName())); err != nil {
			return err
		}
	}
	return nil
}

// applied is the answer about a plan that was applied.
func (s *Server) applied(snap *state.Snapshot, plan *v1.Plan) *v1.ApplyPlanResponse {
	answer := &v1.ApplyPlanResponse{Plan: plan, Objects: s.planObjects(snap, plan)}
	for _, w := range spec.WorkloadsIn(answer.GetObjects()) {
		if d := snap.Deployment(w.GetStatus().GetDeploymentUid()); d != nil {
			answer.Deployments = append(answer.Deployments, s.presentDeployment(snap, d))
		}
	}
	return answer
}

// planObjects returns the objects of a plan as they are now.
func (s *Server) planObjects(snap *state.Snapshot, plan *v1.Plan) []*v1.Manifest {
	var all []*v1.Manifest
	for _, change := range plan.GetChanges() {
		kind := s.kinds.named(change.GetKind())
		if kind == nil || change.GetAction() == spec.ActionDelete {
			continue
		}
		if manifest := kind.manifest(snap, change.GetNamespace(), change.GetName()); manifest != nil {
			all = append(all, manifest)
		}
	}
	return all
}

// repeatedPlan answers a repeated call from its receipt, which keeps the action for each object.
func (s *Server) repeatedPlan(done *statev1.Receipt, fingerprint string) (*v1.ApplyPlanResponse, error) {
	data, err := base64.StdEncoding.DecodeString(done.GetMetadata().GetAnnotations()[core.ResultOf])
	if err != nil {
		return nil, fmt.Errorf("read the receipt of a plan: %w", err)
	}
	plan := &v1.Plan{}
	if err := proto.Unmarshal(data, plan); err != nil {
		return nil, fmt.Errorf("read the receipt of a plan: %w", err)
	}
	plan.Fingerprint = fingerprint
	snap := s.Store.Snapshot()
	return s.applied(snap, plan), nil
}

// wanted is a request for a plan, checked and prepared.
type wanted struct {
	objects   []planObject // sorted by kind
	prune     spec.Selector
	namespace string
}

func (s *Server) prepareAll(ctx context.Context, request *v1.PlanRequest) (*wanted, error) {
	w := &wanted{namespace: orDefault(request.GetPruneNamespace())}
	var err error
	if w.prune, err = parsePrune(request.GetPrune()); err != nil {
		return nil, err
	}
	if request.GetPrune() != "" {
		if err := s.Require(ctx, api.VerbGet, "workload", w.namespace, "plan what is pruned in namespace "+w.namespace); err != nil {
			return nil, err
		}
	}
	shared, seen := &preparation{}, map[string]bool{}
	for i, manifest := range request.GetObjects() {
		o, err := s.kinds.prepare(ctx, i, manifest, shared)
		if err != nil {
			return nil, err
		}
		if seen[o.title()] {
			return nil, core.Refuse(codes.InvalidArgument, "%s is given twice; leave one of them out", o.title())
		}
		if err := s.mayPlan(ctx, o.given()); err != nil {
			return nil, err
		}
		seen[o.title()] = true
		w.objects = append(w.objects, o)
	}
	slices.SortStableFunc(w.objects, func(a, b planObject) int { return cmp.Compare(a.rank(), b.rank()) })
	return w, nil
}

// mayPlan refuses a plan of an object that the caller may not see: the plan tells what the object is now. An object that
// the caller may create is no secret either.
func (s *Server) mayPlan(ctx context.Context, o proto.Message) error {
	p, m := core.Caller(ctx), o.(state.Object).GetMetadata()
	if !p.IsUser() {
		return nil
	}
	kind := strings.ToLower(string(o.ProtoReflect().Descriptor().Name()))
	namespace := m.GetNamespace()
	if kind == "namespace" {
		namespace = m.GetName()
	}
	return core.Permit(s.Store.Snapshot(), p, core.Need{Verbs: []string{api.VerbGet}, Kind: kind, Namespace: namespace}, "plan "+kind+" "+m.GetName())
}

// parsePrune refuses selectors that also match objects without any of their labels.
func parsePrune(text string) (spec.Selector, error) {
	selector, err := spec.ParseSelector(text)
	if broken, ok := errors.AsType[*spec.Error](err); ok {
		broken.Violations[0].Field = "prune"
	}
	if err == nil && text != "" && !selector.Names() {
		err = core.Refuse(codes.InvalidArgument, "prune by %q would delete whatever has no such label; name a label that must be there, such as app=shop", text)
	}
	return selector, err
}

// planned is a plan with the transaction that applies it.
type planned struct {
	*transaction
	plan *v1.Plan
	// objects are the kinds and uids of the objects, in the order of the changes.
	objects []plannedObject
	// verdict is what policies say of what the plan changes.
	verdict *policies.Verdict
}

type plannedObject struct {
	kind state.Kind
	uid  string
}

func newPlanned(caller core.Principal, base *state.Snapshot) *planned {
	return &planned{transaction: &transaction{base: base, batch: &state.Batch{}, caller: caller}, plan: &v1.Plan{}}
}

// plan builds the plan of a request on a state.
func (s *Server) plan(ctx context.Context, wanted *wanted, snap *state.Snapshot) (*planned, error) {
	p := newPlanned(core.Caller(ctx), snap)
	given := map[string]bool{}
	for _, o := range wanted.objects {
		given[o.title()] = true
		if err := o.plan(ctx, p); err != nil {
			return nil, err
		}
	}
	if !wanted.prune.Empty() {
		for _, kind := range s.kinds {
			kind.prune(ctx, p, wanted, given)
		}
	}
	if err := s.checkNamespaces(ctx, p.transaction); err != nil {
		return nil, err
	}
	if err := s.checkAdmins(snap, p.batch); err != nil {
		return nil, err
	}
	if err := p.checkPublishedOnce(); err != nil {
		return nil, err
	}
	if err := p.checkDependencies(); err != nil {
		return nil, err
	}
	if err := p.checkRoutes(); err != nil {
		return nil, err
	}
	p.groupDeployments()
	if err := s.forecast(p, snap.Fork()); err != nil {
		return nil, err
	}
	p.plan.Fingerprint = fingerprint(wanted, p.plan)
	p.judge(ctx, s.Core) // what policies say depends on the caller, and is no part of what the plan does
	return p, nil
}

// add adds the change of an object to the plan.
func (p *planned) add(kind state.Kind, o state.Object, change *v1.PlanChange) {
	change.Kind = string(o.ProtoReflect().Descriptor().Name())
	change.Namespace, change.Name = o.GetMetadata().GetNamespace(), o.GetMetadata().GetName()
	p.plan.Changes = append(p.plan.Changes, change)
	p.objects = append(p.objects, plannedObject{kind, o.GetMetadata().GetUid()})
}

func fieldChanges(from []spec.FieldChange) []*v1.FieldChange {
	all := make([]*v1.FieldChange, len(from))
	for i, c := range from {
		all[i] = &v1.FieldChange{Path: c.Field, Before: c.Old, After: c.New}
	}
	return all
}

// forecast adds what would happen to the replicas.
func (s *Server) forecast(p *planned, fork *state.Fork) error {
	now := s.Now()
	tx := p.batch.Transaction(now)
	if size := proto.Size(tx); size > consensus.MaxTransaction {
		return &consensus.TooLargeError{Size: size}
	}
	// Each change affects some workloads: its own, or those with pending replicas in a namespace whose quota changes.
	about, pending := make([][]string, len(p.objects)), p.pending()
	for i, o := range p.objects {
		switch o.kind {
		case state.KindWorkload:
			about[i] = []string{o.uid}
		case state.KindNamespace:
			about[i] = pending[p.plan.GetChanges()[i].GetName()]
		}
	}
	outcomes, preemptions, err := s.placement.Forecast(now, fork, tx, slices.Concat(about...))
	if err != nil {
		return err
	}
	if err := s.checkQuotas(p, fork.Snapshot()); err != nil {
		return err
	}
	p.plan.Preemptions = preemptions
	for i, change := range p.plan.GetChanges() {
		own := outcomes[:len(about[i])]
		outcomes = outcomes[len(about[i]):]
		switch p.objects[i].kind {
		case state.KindWorkload:
			change.Replicas, change.Unplaced, change.UnplacedReasons = own[0].GetReplicas(), own[0].GetUnplaced(), own[0].GetUnplacedReasons()
			change.Quota, change.WaitsFor = own[0].GetQuota(), own[0].GetWaitsFor()
		case state.KindNamespace:
			change.Woken = woken(own)
		}
	}
	return nil
}

// checkQuotas refuses a new revision of which not even one replica would fit into the quota of its namespace. If only
// some do not fit, the plan warns, because others may make room.
func (s *Server) checkQuotas(p *planned, after *state.Snapshot) error {
	for _, o := range p.objects {
		w, old := after.Workload(o.uid), p.base.Workload(o.uid)
		stopped := w.GetSpec().GetKind() == "" && spec.Replicas(w) == 0
		if o.kind != state.KindWorkload || w == nil || stopped || w.GetStatus().GetRevisionUid() == old.GetStatus().GetRevisionUid() {
			continue
		}
		if why := s.placement.ExceedsQuota(after, o.uid); why != "" {
			namespace := w.GetMetadata().GetNamespace()
			return core.Refuse(codes.FailedPrecondition, "workload %s can never run: one replica alone exceeds the quota of namespace %s: %s; request less, or raise the quota, see: cloudless namespace get %s",
				w.GetMetadata().GetName(), namespace, why, namespace)
		}
	}
	return nil
}

// pending returns the uids of the workloads with replicas that have no node, in the namespaces whose quotas a plan
// changes, by namespace.
func (p *planned) pending() map[string][]string {
	changed, any := map[string]bool{}, false
	for i, change := range p.plan.GetChanges() {
		if p.objects[i].kind == state.KindNamespace && change.GetAction() != spec.ActionUnchanged {
			changed[change.GetName()], any = true, true
		}
	}
	all := map[string][]string{}
	if !any {
		return all
	}
	for r := range p.base.ReplicasOn("") {
		name, uid := r.GetMetadata().GetNamespace(), r.GetSpec().GetWorkloadUid()
		if changed[name] && !spec.Ended(r.GetStatus().GetPhase()) && !slices.Contains(all[name], uid) {
			all[name] = append(all[name], uid)
		}
	}
	return all
}

// woken counts the replicas that have no node now and would get one.
func woken(outcomes []*v1.PlanChange) (n int32) {
	for _, o := range outcomes {
		for _, step := range o.GetReplicas() {
			if step.GetAction() == spec.ActionCreate && step.GetReplica() != "" {
				n++
			}
		}
	}
	return n
}

// propose puts the plan's transaction into b: all changes, and a check that each unchanged object is still the same.
func (p *planned) propose(b *state.Batch, receipt core.Receipt) error {
	if p.batch.Len() == 0 {
		return nil
	}
	p.relyOnImages()
	*b = *p.batch
	kept := &v1.Plan{}
	for i, change := range p.plan.GetChanges() {
		if change.GetAction() == spec.ActionUnchanged {
			b.Check(p.objects[i].kind, p.objects[i].uid, change.GetVersion())
		}
		kept.Changes = append(kept.Changes, &v1.PlanChange{
			Kind: change.GetKind(), Namespace: change.GetNamespace(), Name: change.GetName(), Action: change.GetAction(), Version: change.GetVersion(),
		})
	}
	data, err := proto.Marshal(kept)
	if err != nil {
		return fmt.Errorf("encode the receipt of a plan: %w", err)
	}
	receipt.Keep(b, "", base64.StdEncoding.EncodeToString(data))
	return nil
}
