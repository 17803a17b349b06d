package server

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// planService is the PlanService. A plan is the transaction that carrying it
// out proposes, made on a fork of the state, and what the loop of replicas does
// with it there: one code for showing and for doing.
//
// Replicas are not created in that transaction. Placement has one writer, the
// loop: two could promise the same room twice. It comes to what the plan
// showed because it decides by the same function on the same state.
type planService struct {
	v1.UnsafePlanServiceServer
	*Server
}

// What a plan does with a workload.
const (
	actionCreate    = "create"
	actionUpdate    = "update"
	actionDelete    = "delete"
	actionUnchanged = "unchanged"
)

func (s *planService) MakePlan(ctx context.Context, request *v1.PlanRequest) (*v1.Plan, error) {
	wish, err := s.wish(ctx, request)
	if err != nil {
		return nil, err
	}
	snap, err := s.consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	p, err := s.plan(ctx, wish, snap)
	if err != nil {
		return nil, err
	}
	s.plans.remember(p)
	return p.plan, nil
}

func (s *planService) ApplyPlan(ctx context.Context, request *v1.ApplyPlanRequest) (*v1.ApplyPlanResponse, error) {
	receipt, err := newReceipt(ctx, v1.PlanService_ApplyPlan_FullMethodName, request.GetIdempotencyKey(), request)
	if err != nil {
		return nil, err
	}
	done, err := receipt.find(s.store.Snapshot())
	if err != nil {
		return nil, err
	}
	if done != nil {
		return s.repeatedPlan(done, request.GetFingerprint())
	}
	wish, err := s.wish(ctx, request.GetRequest())
	if err != nil {
		return nil, err
	}
	var p *planned
	snap, err := s.propose(ctx, func(snap *state.Snapshot, b *state.Batch) (err error) {
		if done, err = receipt.find(snap); done != nil || err != nil {
			return err
		}
		if p, err = s.plan(ctx, wish, snap); err != nil {
			return err
		}
		if p.plan.GetFingerprint() != request.GetFingerprint() {
			return s.plans.movedOn(request.GetFingerprint(), p)
		}
		if err := mayChangeNamespaces(ctx, p.plan); err != nil {
			return err
		}
		return p.propose(b, receipt)
	})
	if err != nil {
		return nil, err
	}
	if done != nil { // by the same call at the same time
		return s.repeatedPlan(done, request.GetFingerprint())
	}
	return &v1.ApplyPlanResponse{Plan: p.plan, Workloads: s.planWorkloads(snap, p.plan), Namespaces: s.planNamespaces(snap, p.plan)}, nil
}

// planWorkloads are the workloads of a plan as they are now.
func (s *Server) planWorkloads(snap *state.Snapshot, plan *v1.Plan) []*v1.Workload {
	var all []*v1.Workload
	for _, change := range plan.GetChanges() {
		if w := snap.WorkloadByName(change.GetNamespace(), change.GetName()); w != nil && change.GetAction() != actionDelete {
			all = append(all, s.present(snap, w, false))
		}
	}
	return all
}

// repeatedPlan answers a call that was made before, from what its receipt
// keeps: what became of which workload.
func (s *Server) repeatedPlan(done *statev1.Receipt, fingerprint string) (*v1.ApplyPlanResponse, error) {
	data, err := base64.StdEncoding.DecodeString(done.GetMetadata().GetAnnotations()[resultOf])
	if err != nil {
		return nil, fmt.Errorf("read the receipt of a plan: %w", err)
	}
	plan := &v1.Plan{}
	if err := proto.Unmarshal(data, plan); err != nil {
		return nil, fmt.Errorf("read the receipt of a plan: %w", err)
	}
	plan.Fingerprint = fingerprint
	snap := s.store.Snapshot()
	return &v1.ApplyPlanResponse{Plan: plan, Workloads: s.planWorkloads(snap, plan), Namespaces: s.planNamespaces(snap, plan)}, nil
}

// wish is what a request asks for, checked and in canonical form. What the names of
// images stand for is looked up in the state that the plan is made on.
type wish struct {
	workloads  []wanted
	namespaces []*v1.Namespace
	prune      spec.Selector
	namespace  string
}

type wanted struct {
	given, workload *v1.Workload
	image           namedImage
}

func (s *Server) wish(ctx context.Context, request *v1.PlanRequest) (*wish, error) {
	made := &wish{namespace: orDefault(request.GetPruneNamespace())}
	var err error
	if made.prune, err = parsePrune(request.GetPrune()); err != nil {
		return nil, err
	}
	if made.namespaces, err = wishNamespaces(request.GetNamespaces()); err != nil {
		return nil, err
	}
	images, seen := map[string]namedImage{}, map[string]bool{}
	for i, given := range request.GetWorkloads() {
		if err := checkAt(i, given); err != nil {
			return nil, err
		}
		w := wanted{given: given, workload: s.accept(proto.CloneOf(given))}
		path := state.Path(w.workload)
		if seen[path] {
			return nil, refuse(codes.InvalidArgument, "workload %s is given twice; leave one of them out", path)
		}
		seen[path] = true
		from := w.workload.GetSpec().GetImage()
		if _, named := images[from]; !named {
			if images[from], err = s.nameImage(ctx, from, receipt{}); err != nil {
				return nil, fmt.Errorf("workload %s: %w", path, err)
			}
		}
		w.image = images[from]
		made.workloads = append(made.workloads, w)
	}
	return made, nil
}

// checkAt finds what the rules of the request cannot say about one of its
// workloads.
func checkAt(index int, given *v1.Workload) error {
	err := spec.ValidateWorkload(given)
	if broken, ok := errors.AsType[*spec.Error](err); ok {
		for i := range broken.Violations {
			broken.Violations[i].Field = fmt.Sprintf("workloads[%d].%s", index, broken.Violations[i].Field)
		}
	}
	return err
}

// parsePrune refuses every selector that could choose what nobody thought of.
func parsePrune(text string) (spec.Selector, error) {
	selector, err := spec.ParseSelector(text)
	if broken, ok := errors.AsType[*spec.Error](err); ok {
		broken.Violations[0].Field = "prune"
	}
	if err == nil && text != "" && !selector.Names() {
		err = refuse(codes.InvalidArgument, "prune by %q would delete whatever has no such label; name a label that must be there, such as app=shop", text)
	}
	return selector, err
}

// planned is a plan with the transaction that carries it out.
type planned struct {
	plan  *v1.Plan
	batch *state.Batch
	// base is the state that the plan rests on, and images what the names of images
	// stand for in it.
	base   *state.Snapshot
	images map[string]pinned
	// uids are those of the workloads, in the order of the changes, and namespaces
	// those of the namespaces in theirs.
	uids, namespaces []string
}

func newPlanned(base *state.Snapshot) *planned {
	return &planned{plan: &v1.Plan{}, batch: &state.Batch{}, base: base, images: map[string]pinned{}}
}

// plan works out a wish on a state.
func (s *Server) plan(ctx context.Context, wish *wish, snap *state.Snapshot) (*planned, error) {
	p := newPlanned(snap)
	for _, n := range wish.namespaces {
		if err := s.planNamespace(ctx, p, n); err != nil {
			return nil, err
		}
	}
	inWish := map[string]bool{}
	for _, w := range wish.workloads {
		inWish[state.Path(w.workload)] = true
		if err := s.planOne(ctx, p, w); err != nil {
			return nil, err
		}
	}
	if !wish.prune.Empty() {
		for w := range p.base.Workloads(wish.namespace, "") {
			if m := w.GetMetadata(); m.GetDeleteTime() == nil && w.GetStatus().GetOwnerUid() == "" && !inWish[state.Path(w)] && wish.prune.Matches(m.GetLabels()) {
				s.remove(ctx, p.batch, w)
				p.add(w, &v1.PlanChange{Action: actionDelete, Version: m.GetVersion(), Image: p.base.Revision(w.GetStatus().GetRevisionUid()).GetSpec().GetImage()})
			}
		}
	}
	if err := s.forecast(p, snap.Fork()); err != nil {
		return nil, err
	}
	p.plan.Fingerprint = fingerprint(wish, p.plan)
	return p, nil
}

// planOne adds one wanted workload to the plan and to its transaction.
func (s *Server) planOne(ctx context.Context, p *planned, wanted wanted) error {
	m := wanted.workload.GetMetadata()
	old := p.base.WorkloadByName(m.GetNamespace(), m.GetName())
	// Its messages go into the transaction, and the wish may be planned again.
	wish := proto.CloneOf(wanted.workload)
	image, err := s.pinFor(ctx, p, wanted)
	if err != nil {
		return err
	}
	if old == nil {
		if m.GetVersion() != 0 {
			return vanished(m)
		}
		if err := creatable(p.base, wish, p.creates()); err != nil {
			return err
		}
		w := s.create(ctx, p.batch, wish, image)
		given := withClusterDefaults(p.base, wanted)
		p.add(w, &v1.PlanChange{Action: actionCreate, Fields: fieldChanges(spec.Given(given)), Image: image.image})
		return nil
	}
	if err := changeable(old, m.GetVersion()); err != nil {
		return err
	}
	if err := updatable(p.base, old, wish); err != nil {
		return err
	}
	change := &v1.PlanChange{Action: actionUnchanged, Version: old.GetMetadata().GetVersion(), Image: image.image}
	w, changed := s.update(ctx, p.base, p.batch, old, wish, image)
	if changed {
		change.Action = actionUpdate
		change.Fields = fieldChanges(spec.DiffWorkload(old, wanted.workload))
		before := p.base.Revision(old.GetStatus().GetRevisionUid()).GetSpec().GetImage()
		if before != image.image && spec.SameImage(old.GetSpec().GetImage(), wanted.workload.GetSpec().GetImage()) {
			// The same name means another image now.
			change.Fields = append(change.Fields, &v1.FieldChange{Path: "spec.image", Before: before, After: image.image})
		}
	}
	p.add(w, change)
	return nil
}

// pinFor says what the image of a workload stands for in the state of a plan, once
// for all workloads that name it.
func (s *Server) pinFor(ctx context.Context, p *planned, wanted wanted) (pinned, error) {
	if known, ok := p.images[wanted.image.from]; ok {
		return known, nil
	}
	image, err := s.pinIn(ctx, p.base, wanted.image)
	if err != nil {
		return pinned{}, fmt.Errorf("workload %s: %w", state.Path(wanted.workload), err)
	}
	p.images[wanted.image.from] = image
	return image, nil
}

func (p *planned) add(w *v1.Workload, change *v1.PlanChange) {
	change.Namespace, change.Name = w.GetMetadata().GetNamespace(), w.GetMetadata().GetName()
	p.plan.Changes = append(p.plan.Changes, change)
	p.uids = append(p.uids, w.GetMetadata().GetUid())
}

func fieldChanges(from []spec.FieldChange) []*v1.FieldChange {
	all := make([]*v1.FieldChange, len(from))
	for i, c := range from {
		all[i] = &v1.FieldChange{Path: c.Field, Before: c.Old, After: c.New}
	}
	return all
}

// forecast adds what would become of the replicas.
func (s *Server) forecast(p *planned, fork *state.Fork) error {
	now := s.now()
	tx := p.batch.Transaction(now)
	if size := proto.Size(tx); size > consensus.MaxTransaction {
		return &consensus.TooLargeError{Size: size}
	}
	uids, waiting := slices.Clone(p.uids), p.waiting()
	at := map[string]int{} // where in uids those of a namespace begin that wait
	for _, n := range p.plan.GetNamespaces() {
		at[n.GetName()] = len(uids)
		uids = append(uids, waiting[n.GetName()]...)
	}
	outcomes, preemptions, err := s.placement.Forecast(now, fork, tx, uids)
	if err != nil {
		return err
	}
	p.plan.Preemptions = preemptions
	for i, change := range p.plan.GetChanges() {
		change.Replicas, change.Unplaced, change.UnplacedReasons = outcomes[i].GetReplicas(), outcomes[i].GetUnplaced(), outcomes[i].GetUnplacedReasons()
		change.Quota = outcomes[i].GetQuota()
	}
	for _, n := range p.plan.GetNamespaces() {
		from := at[n.GetName()]
		n.Woken = woken(outcomes[from : from+len(waiting[n.GetName()])])
	}
	return nil
}

// propose puts the plan's transaction into b: all changes, and for all else
// that the plan names that it is still as it was.
func (p *planned) propose(b *state.Batch, receipt receipt) error {
	if p.batch.Len() == 0 {
		return nil
	}
	*b = *p.batch
	for _, from := range slices.Sorted(maps.Keys(p.images)) {
		p.images[from].relyOn(b)
	}
	kept := &v1.Plan{}
	p.proposeNamespaces(b, kept)
	for i, change := range p.plan.GetChanges() {
		if change.GetAction() == actionUnchanged {
			b.Check(state.KindWorkload, p.uids[i], change.GetVersion())
		}
		kept.Changes = append(kept.Changes, &v1.PlanChange{
			Namespace: change.GetNamespace(), Name: change.GetName(), Action: change.GetAction(), Version: change.GetVersion(),
		})
	}
	data, err := proto.Marshal(kept)
	if err != nil {
		return fmt.Errorf("encode the receipt of a plan: %w", err)
	}
	receipt.keep(b, "", base64.StdEncoding.EncodeToString(data))
	return nil
}
