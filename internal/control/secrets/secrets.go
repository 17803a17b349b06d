// Package secrets is the leader's loop for secrets. It rolls a new version out to workloads that have it in their
// environment, says when a version has expired, and removes values and receipts that nothing needs any more. Tick is
// pure, and never sees a value.
//
// It must not know sessions: what nodes get follows from the state (package secret). Files are replaced by the agents.
package secrets

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/secret"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// The bounds of one tick; the next one does the rest.
const (
	maxRollouts  = 50
	maxDeletions = 2000
)

// actor is who the events of this loop name.
const actor = "secrets"

// tick collects the changes of one call.
type tick struct {
	now    time.Time
	snap   *state.Snapshot
	newUID func() string
	batch  *state.Batch
	next   time.Time
}

// Tick returns what is to be done now, and when something will be due without a change; zero if nothing will. sweep says
// that receipts may have lost their replica or their secret.
func Tick(now time.Time, snap *state.Snapshot, sweep bool, newUID func() string) (batch *state.Batch, next time.Time) {
	t := &tick{now: now, snap: snap, newUID: newUID, batch: &state.Batch{}}
	if snap.Count(state.KindSecret) > 0 {
		for s := range snap.Secrets("", "") {
			t.values(s)
		}
		t.rollOut()
	}
	if sweep {
		t.sweep()
	}
	return t.batch, t.next
}

// values removes those values of a secret that nothing can use any more, and says so if that is the current one.
func (t *tick) values(s *v1.Secret) {
	name, current := s.GetMetadata().GetName(), s.GetStatus().GetVersion()
	var used map[uint64]bool // computed only if it is needed
	for value := range t.snap.SecretValuesOf(s.GetMetadata().GetUid()) {
		number := value.GetVersion()
		v := secret.VersionOf(s, number)
		switch {
		case v == nil:
		case secret.Expired(v, t.now):
			if number == current {
				t.event(s, "Expired", state.SeverityWarning, fmt.Sprintf("version %d expired at %s and is delivered no longer; set a new version with: %s", number,
					v.GetExpireTime().AsTime().Format(time.RFC3339), spec.Hint(s.GetMetadata().GetNamespace(), "cloudless secret set "+name)))
			}
		case number == current:
			t.at(v.GetExpireTime().AsTime(), v.GetExpireTime() != nil)
			continue
		default:
			if used == nil {
				used = pinned(t.snap, s)
			}
			if used[number] {
				t.at(v.GetExpireTime().AsTime(), v.GetExpireTime() != nil)
				continue
			}
		}
		t.batch.Delete(state.KindSecretValue, value.GetMetadata().GetUid())
	}
}

// at makes the loop look again at a time.
func (t *tick) at(when time.Time, known bool) {
	if known && (t.next.IsZero() || when.Before(t.next)) {
		t.next = when
	}
}

// pinned are the versions of a secret that a replica has in its environment, or may get again: by the current revision of
// a workload, or by the one to which a deployment may return.
func pinned(snap *state.Snapshot, s *v1.Secret) map[uint64]bool {
	m, used := s.GetMetadata(), map[uint64]bool{}
	for w := range snap.Workloads(m.GetNamespace(), "") {
		earlier := map[string]uint64{} // by revision
		d := snap.Deployment(w.GetStatus().GetDeploymentUid())
		for r := range snap.RevisionsOf(w.GetMetadata().GetUid()) {
			number := r.GetSpec().GetSecretVersions()[m.GetName()]
			switch uid := r.GetMetadata().GetUid(); {
			case number == 0 || used[number]:
			case uid == w.GetStatus().GetRevisionUid(), spec.DeploymentOpen(d) && uid == d.GetSpec().GetPreviousUid():
				used[number] = true
			default:
				earlier[uid] = number
			}
		}
		if len(earlier) == 0 {
			continue
		}
		for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
			if number := earlier[r.GetSpec().GetRevisionUid()]; number != 0 && spec.Live(r.GetStatus().GetPhase()) {
				used[number] = true
			}
		}
	}
	return used
}

// rollOut gives workloads new revisions whose environment has another version than any before. A version is tried once: if
// its deployment is rolled back, the workload stays with the earlier one.
func (t *tick) rollOut() {
	rollouts := 0
	for w := range t.snap.Workloads("", "") {
		changed := t.changed(w)
		if len(changed) == 0 {
			continue
		}
		if rollouts++; rollouts > maxRollouts {
			return // the change of the others makes the rest due
		}
		t.restart(w, changed)
	}
}

// changed are the secrets of which a workload should get the current version by a deployment.
func (t *tick) changed(w *v1.Workload) (changed []*v1.Secret) {
	if len(w.GetSpec().GetSecrets()) == 0 || w.GetMetadata().GetDeleteTime() != nil || !spec.HasDeployments(w.GetSpec()) || w.GetStatus().GetOwnerUid() != "" {
		return nil
	}
	names, environment := secret.Names(w.GetSpec())
	for _, name := range names {
		s := t.snap.SecretByName(w.GetMetadata().GetNamespace(), name)
		number := s.GetStatus().GetVersion()
		v := secret.VersionOf(s, number)
		if !environment[name] || v == nil || secret.Expired(v, t.now) || !secret.Admits(s, secret.NameOf(w)) {
			continue
		}
		newest := uint64(0)
		for r := range t.snap.RevisionsOf(w.GetMetadata().GetUid()) {
			newest = max(newest, r.GetSpec().GetSecretVersions()[name])
		}
		if newest < number {
			changed = append(changed, s)
		}
	}
	return changed
}

// restart makes a new revision of a workload with the current versions of its secrets, and deploys it.
func (t *tick) restart(old *v1.Workload, changed []*v1.Secret) {
	current := t.snap.Revision(old.GetStatus().GetRevisionUid())
	if current == nil {
		return
	}
	w := proto.CloneOf(old)
	revision := rollout.Revise(w, t.newUID())
	revision.Spec.Image, revision.Spec.Platforms = current.GetSpec().GetImage(), current.GetSpec().GetPlatforms()
	revision.Spec.SeccompProfile, revision.Spec.Restart = current.GetSpec().GetSeccompProfile(), current.GetSpec().GetRestart()+1
	secret.Pin(t.snap, revision, t.now)
	made, replaced := rollout.Deploying{
		UID: t.newUID(), Now: t.now, Cause: spec.CauseRestart, Author: "secret/" + changed[0].GetMetadata().GetName(),
		Before: old.GetStatus(), Earlier: t.snap.DeploymentsOf(old.GetMetadata().GetUid()),
	}.Deploy(w)
	t.batch.Create(revision)
	t.batch.Create(made)
	if replaced != nil {
		t.batch.Update(replaced, replaced.GetMetadata().GetVersion())
	}
	t.batch.Update(w, old.GetMetadata().GetVersion())
	for _, s := range changed {
		t.event(w, "SecretChanged", state.SeverityInfo, fmt.Sprintf("version %d of secret %s is in the environment of revision %d, which replaces every replica",
			s.GetStatus().GetVersion(), s.GetMetadata().GetName(), revision.GetSpec().GetNumber()))
	}
}

// sweep deletes receipts of replicas and secrets that do not exist any more.
func (t *tick) sweep() {
	for r := range t.snap.SecretReceipts() {
		if t.batch.Len() >= maxDeletions {
			return
		}
		if gone(t.snap, r) {
			t.batch.Delete(state.KindSecretReceipt, r.GetMetadata().GetUid())
		}
	}
}

func gone(snap *state.Snapshot, r *statev1.SecretReceipt) bool {
	return snap.Secret(r.GetSecretUid()) == nil || !slices.ContainsFunc(r.GetDeliveries(), func(d *v1.SecretDelivery) bool { return snap.Replica(d.GetReplicaUid()) != nil })
}

func (t *tick) event(about state.Object, reason, severity, message string) {
	t.batch.Create(state.NewEvent(t.newUID(), t.now, about, severity, reason, message, actor))
}
