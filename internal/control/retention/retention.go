// Package retention is the leader's loop that deletes what is kept only for a while: ended
// replicas, deployments, events, receipts of idempotent calls, expired tokens, old configurations, nodes
// that were removed long ago. Tick is pure. It decides nothing about what still runs.
package retention

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/retentionclock"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Limits say how long and how much is kept.
type Limits struct {
	// Replicas is how long ended replicas are kept: as long as their logs.
	Replicas time.Duration
	Receipts time.Duration
	// Revisions is how many of the newest revisions of a workload are kept.
	Revisions int
	// Releases is how many of the newest jobs of release commands of a workload are kept.
	Releases int
	// Deployments is how many of the newest deployments of a workload are kept.
	Deployments int
	// Tokens is how long an expired token is still listed.
	Tokens time.Duration
	Events time.Duration
	// MaxEvents bounds the number of events, whatever their age.
	MaxEvents int
	// Configurations is how many of the newest versions are kept.
	Configurations int
	// RemovedNodes is how long the removal of a node is remembered: until its certificates
	// have expired, with some margin for wrong clocks. The removal of a server is never
	// forgotten.
	RemovedNodes time.Duration
}

// Limits that the configuration does not set.
const (
	// receipts is a day, which is promised to callers, and an hour: an ID token may be valid for a day, and the clocks of
	// servers and provider differ.
	receipts       = 25 * time.Hour
	configurations = 1000
	deployments    = 20
	releases       = 3
	removedNodes   = 90 * 24 * time.Hour
)

// LimitsOf are the limits that the cluster's configuration sets.
func LimitsOf(c *v1.ClusterSpec) Limits {
	r := spec.RetentionOf(c)
	return Limits{
		Replicas: r.Replicas, Receipts: receipts, Revisions: r.Revisions, Tokens: r.Tokens,
		Events: r.Events, MaxEvents: r.MaxEvents, Configurations: configurations, Deployments: deployments, Releases: releases, RemovedNodes: removedNodes,
	}
}

// maxDeletions keeps one transaction small; the next tick does the rest.
const maxDeletions = 5_000

// Tick returns what to delete now.
func Tick(now time.Time, snap *state.Snapshot, limits Limits) *state.Batch {
	batch := &state.Batch{}
	drop := func(kind state.Kind, uid string) bool {
		batch.Delete(kind, uid)
		return batch.Len() < maxDeletions
	}
	for r := range snap.Replicas("", "") {
		old := spec.Ended(r.GetStatus().GetPhase()) && now.Sub(r.GetStatus().GetEndTime().AsTime()) > limits.Replicas
		if old && !proves(snap, r) && !drop(state.KindReplica, r.GetMetadata().GetUid()) {
			return batch
		}
	}
	for w := range snap.Workloads("", "") {
		for _, uid := range forgettable(snap, w, limits.Revisions) {
			if !drop(state.KindRevision, uid) {
				return batch
			}
		}
		for _, uid := range oldDeployments(snap, w, limits.Deployments) {
			if !drop(state.KindDeployment, uid) {
				return batch
			}
		}
	}
	deleteReleases(now, snap, limits.Releases, batch)
	for r := range snap.OldestReceipts() {
		if now.Sub(r.GetMetadata().GetCreateTime().AsTime()) > limits.Receipts && !drop(state.KindReceipt, r.GetMetadata().GetUid()) {
			return batch
		}
	}
	for t := range snap.Tokens("") {
		if now.Sub(t.GetSpec().GetExpireTime().AsTime()) <= limits.Tokens {
			continue
		}
		for _, secret := range []string{t.GetStatus().GetSecretId(), t.GetStatus().GetOldSecretId()} {
			if secret != "" {
				batch.Delete(state.KindCredential, secret)
			}
		}
		if !drop(state.KindToken, t.GetMetadata().GetUid()) {
			return batch
		}
	}
	for k := range snap.AccessKeys("", "") {
		end := k.GetSpec().GetExpireTime()
		if end == nil || now.Sub(end.AsTime()) <= limits.Tokens {
			continue
		}
		batch.Delete(state.KindAccessKeySecret, k.GetMetadata().GetUid())
		if !drop(state.KindAccessKey, k.GetMetadata().GetUid()) {
			return batch
		}
	}
	for r := range snap.Revocations() {
		old := now.Sub(r.GetMetadata().GetCreateTime().AsTime()) > limits.RemovedNodes
		if old && ofNode(r) && !drop(state.KindRevocation, r.GetMetadata().GetUid()) {
			return batch
		}
	}
	old := snap.Count(state.KindConfiguration) - limits.Configurations
	for c := range snap.OldestConfigurations() {
		if old--; old < 0 || c.GetSpec().GetNumber() == snap.Cluster().GetStatus().GetConfiguration() {
			break
		}
		if !drop(state.KindConfiguration, c.GetMetadata().GetUid()) {
			return batch
		}
	}
	forgetEvents(now, snap, limits, batch)
	return batch
}

func ofNode(r *statev1.Revocation) bool {
	id, err := identity.ParseID(r.GetId())
	return err == nil && id.Kind() == identity.KindNode
}

// forgetEvents deletes the oldest events, without reading anything else.
func forgetEvents(now time.Time, snap *state.Snapshot, limits Limits, batch *state.Batch) {
	surplus := snap.Count(state.KindEvent) - limits.MaxEvents
	for e := range snap.OldestEvents() {
		if surplus <= 0 && now.Sub(e.GetSpec().GetTime().AsTime()) <= limits.Events || batch.Len() >= maxDeletions {
			return
		}
		surplus--
		batch.Delete(state.KindEvent, e.GetMetadata().GetUid())
	}
}

// proves reports whether a replica is the only proof that its workload's work is done:
// without it, the work would be done again. The status of a finished job proves it, too. The
// work of the revision to which the newest deployment may return counts as well.
func proves(snap *state.Snapshot, r *v1.Replica) bool {
	phase, revision := r.GetStatus().GetPhase(), r.GetSpec().GetRevisionUid()
	w := snap.Workload(r.GetSpec().GetWorkloadUid())
	return w != nil && rollout.Outcome(w) == "" && (phase == spec.PhaseCompleted || phase == spec.PhaseFailed) &&
		(w.GetStatus().GetRevisionUid() == revision || snap.Deployment(w.GetStatus().GetDeploymentUid()).GetSpec().GetPreviousUid() == revision)
}

// forgettable are the revisions of a workload beyond the newest ones that no replica runs
// any more, that are not the last good ones, and to which the newest deployment cannot return:
// it returns with its group even after it has succeeded.
func forgettable(snap *state.Snapshot, w *v1.Workload, keep int) []string {
	var all []string // oldest first
	for revision := range snap.RevisionsOf(w.GetMetadata().GetUid()) {
		all = append(all, revision.GetMetadata().GetUid())
	}
	if len(all) <= keep {
		return nil
	}
	used := map[string]bool{w.GetStatus().GetRevisionUid(): true}
	for d := range snap.DeploymentsOf(w.GetMetadata().GetUid()) {
		if !spec.DeploymentEnded(d.GetStatus().GetPhase()) || d.GetMetadata().GetUid() == w.GetStatus().GetDeploymentUid() {
			used[d.GetSpec().GetPreviousUid()] = true
		}
	}
	used[lastGood(snap, w).GetSpec().GetRevisionUid()] = true
	for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
		if spec.Live(r.GetStatus().GetPhase()) {
			used[r.GetSpec().GetRevisionUid()] = true
		}
	}
	return slices.DeleteFunc(all[:len(all)-keep], func(uid string) bool { return used[uid] })
}

// oldDeployments are those of a workload beyond the newest ones, except the last good one: its revision is the one that
// an automatic rollback returns to.
func oldDeployments(snap *state.Snapshot, w *v1.Workload, keep int) []string {
	var all []string // oldest first
	for d := range snap.DeploymentsOf(w.GetMetadata().GetUid()) {
		all = append(all, d.GetMetadata().GetUid())
	}
	if len(all) <= keep {
		return nil
	}
	good := lastGood(snap, w).GetMetadata().GetUid()
	return slices.DeleteFunc(all[:len(all)-keep], func(uid string) bool { return uid == good })
}

// deleteReleases deletes the jobs of old release commands that have ended. Package replicas removes them with their
// replicas.
func deleteReleases(now time.Time, snap *state.Snapshot, keep int, batch *state.Batch) {
	for w := range snap.Workloads("", "") {
		all := slices.Collect(snap.DeploymentsOf(w.GetMetadata().GetUid()))
		kept := 0
		for _, d := range slices.Backward(all) { // newest first
			old := snap.Workload(d.GetStatus().GetRelease().GetJobUid())
			if old == nil || old.GetMetadata().GetDeleteTime() != nil || rollout.Outcome(old) == "" {
				continue
			}
			if kept++; kept > keep && batch.Len() < maxDeletions {
				job := proto.CloneOf(old)
				job.Metadata.DeleteTime = timestamppb.New(now)
				batch.Update(job, old.GetMetadata().GetVersion())
			}
		}
	}
}

// lastGood is the newest deployment of a workload that succeeded, nil if there is none.
func lastGood(snap *state.Snapshot, w *v1.Workload) *v1.Deployment {
	return rollout.LastGood(snap.DeploymentsOf(w.GetMetadata().GetUid()), func(*v1.Deployment) bool { return true })
}

// Proposer agrees on changes with the other servers.
type Proposer interface {
	Propose(ctx context.Context, tx *statev1.Transaction) (state.Result, error)
}

// interval is far shorter than any limit and far longer than a tick takes.
const interval = time.Minute

// Run ticks every interval until ctx ends, by the current configuration, and soon after
// that has changed.
func Run(ctx context.Context, store *state.Store, proposer Proposer) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	clock := retentionclock.New() // a clock that is set forward must not make everything look old
	for whole := true; ; {
		now, snap, batch := clock.Now(), store.Snapshot(), &state.Batch{}
		limits := LimitsOf(snap.Cluster().GetSpec())
		if whole {
			batch = Tick(now, snap, limits)
		} else {
			forgetEvents(now, snap, limits, batch)
		}
		if batch.Len() > 0 {
			if _, err := proposer.Propose(ctx, batch.Transaction(now)); err != nil && !state.MovedOn(err) {
				return err
			}
			if batch.Len() >= maxDeletions {
				continue
			}
		}
		var err error
		if whole, err = wait(ctx, ticker.C, store, limits); err != nil {
			return err
		}
	}
}

// eventCheckInterval is how often the number of events is checked between two ticks: a storm of them
// must not grow for a minute.
const eventCheckInterval = time.Second

// wait returns when a whole tick is due, because of the time or because the limits have
// changed, or when the events alone exceed their limit by a tenth: a whole tick reads
// everything, which must not happen every second of a storm.
func wait(ctx context.Context, tick <-chan time.Time, store *state.Store, limits Limits) (whole bool, err error) {
	glances := time.NewTicker(eventCheckInterval)
	defer glances.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-tick:
			return true, nil
		case <-glances.C:
			snap := store.Snapshot()
			if LimitsOf(snap.Cluster().GetSpec()) != limits {
				return true, nil
			}
			if snap.Count(state.KindEvent) > limits.MaxEvents+limits.MaxEvents/10 {
				return false, nil
			}
		}
	}
}
