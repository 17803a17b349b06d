package secrets

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/secret"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// world is a state with secrets.
type world struct {
	t     *testing.T
	store *state.Store
	index uint64
	uids  int
	now   time.Time
	kek   *identity.Sealer
}

func newWorld(t *testing.T) *world {
	kek, err := identity.OpenOrCreateSealer(filepath.Join(t.TempDir(), "kek"))
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, store: state.New(), now: noon, kek: kek}
}

func (w *world) newUID() string {
	w.uids++
	return fmt.Sprintf("00000000-0000-7000-8000-%012d", w.uids)
}

func (w *world) apply(build func(*state.Batch)) {
	w.t.Helper()
	var b state.Batch
	if build(&b); b.Len() == 0 {
		return
	}
	w.index++
	if _, err := w.store.Apply(w.index, b.Transaction(w.now)); err != nil {
		w.t.Fatal(err)
	}
}

// set gives a secret another version, which lives for ttl; 0 means without end.
func (w *world) set(name string, ttl time.Duration, audience ...string) *v1.Secret {
	w.t.Helper()
	old := w.store.Snapshot().SecretByName("default", name)
	s := proto.CloneOf(old)
	if old == nil {
		s = &v1.Secret{Metadata: &v1.Metadata{Uid: w.newUID(), Name: name, Namespace: "default"}, Spec: &v1.SecretSpec{}, Status: &v1.SecretStatus{}}
	}
	s.Spec.Audience = audience
	s.Status.Version++
	v := &v1.SecretVersion{Number: s.GetStatus().GetVersion(), CreateTime: timestamppb.New(w.now)}
	if ttl > 0 {
		v.ExpireTime = timestamppb.New(w.now.Add(ttl))
	}
	s.Status.Versions = slices.Insert(s.GetStatus().GetVersions(), 0, v)
	value, err := secret.Seal(w.kek, s.GetMetadata().GetUid(), v.GetNumber(), []byte("hunter2"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.apply(func(b *state.Batch) {
		b.Create(value)
		if old == nil {
			b.Create(s)
		} else {
			b.Update(s, old.GetMetadata().GetVersion())
		}
	})
	return s
}

// run creates a workload with one running replica.
func (w *world) run(name string, refs ...*v1.SecretRef) *v1.Workload {
	w.t.Helper()
	s := spec.Normalized(&v1.WorkloadSpec{Image: "app:1", Secrets: refs})
	one := &v1.Workload{Metadata: &v1.Metadata{Uid: w.newUID(), Name: name, Namespace: "default"}, Spec: s, Status: &v1.WorkloadStatus{}}
	revision := rollout.Revise(one, w.newUID())
	revision.Spec.Image = "app@sha256:0123"
	secret.Pin(w.store.Snapshot(), revision, w.now)
	d, _ := rollout.Deploying{UID: w.newUID(), Now: w.now, Cause: spec.CauseCreate, Earlier: func(func(*v1.Deployment) bool) {}}.Deploy(one)
	d.Status.Phase = spec.DeploymentSucceeded
	w.apply(func(b *state.Batch) {
		b.Create(revision)
		b.Create(d)
		b.Create(one)
		b.Create(w.replica(one))
	})
	return one
}

func (w *world) replica(of *v1.Workload) *v1.Replica {
	uid := w.newUID()
	return &v1.Replica{
		Metadata: &v1.Metadata{Uid: uid, Name: of.GetMetadata().GetName() + uid[30:], Namespace: "default"},
		Spec: &v1.ReplicaSpec{
			WorkloadUid: of.GetMetadata().GetUid(), Workload: of.GetMetadata().GetName(), RevisionUid: of.GetStatus().GetRevisionUid(), NodeUid: "n1", Node: "one", Desired: spec.DesiredRunning,
		},
		Status: &v1.ReplicaStatus{Phase: spec.PhaseRunning},
	}
}

// settle ticks until nothing is due, and returns when something will be.
func (w *world) settle(sweep bool) time.Time {
	w.t.Helper()
	for range 20 {
		batch, next := Tick(w.now, w.store.Snapshot(), sweep, w.newUID)
		if batch.Len() == 0 {
			return next
		}
		w.apply(func(b *state.Batch) { *b = *batch })
	}
	w.t.Fatal("it never settles")
	return time.Time{}
}

func (w *world) workload(of *v1.Workload) *v1.Workload {
	return w.store.Snapshot().Workload(of.GetMetadata().GetUid())
}

func (w *world) events(reason string) (messages []string) {
	for e := range w.store.Snapshot().OldestEvents() {
		if e.GetSpec().GetReason() == reason {
			messages = append(messages, e.GetSpec().GetMessage())
		}
	}
	return messages
}

// values are the numbers of the versions of a secret whose values are stored.
func (w *world) values(s *v1.Secret) (numbers []uint64) {
	for value := range w.store.Snapshot().SecretValuesOf(s.GetMetadata().GetUid()) {
		numbers = append(numbers, value.GetVersion())
	}
	return numbers
}

func TestNewVersionIsRolledOutToEnvironmentsOnly(t *testing.T) {
	w := newWorld(t)
	w.set("db", 0)
	variable := w.run("variable", &v1.SecretRef{Name: "db", Env: "DB"})
	file := w.run("file", &v1.SecretRef{Name: "db", Path: "/run/secrets/db"})
	unrelated := w.run("unrelated")
	if w.settle(false); w.workload(variable).GetStatus().GetRevision() != 1 {
		t.Fatal("without a new version it was rolled out")
	}
	w.set("db", 0)
	w.settle(false)
	for of, want := range map[*v1.Workload]uint64{variable: 2, file: 1, unrelated: 1} {
		if got := w.workload(of).GetStatus().GetRevision(); got != want {
			t.Errorf("%s is at revision %d, want %d", of.GetMetadata().GetName(), got, want)
		}
	}
	now := w.workload(variable)
	revision := w.store.Snapshot().Revision(now.GetStatus().GetRevisionUid()).GetSpec()
	if revision.GetSecretVersions()["db"] != 2 || revision.GetImage() != "app@sha256:0123" || revision.GetRestart() != 1 {
		t.Errorf("its revision is %v", revision)
	}
	if d := w.store.Snapshot().Deployment(now.GetStatus().GetDeploymentUid()).GetSpec(); d.GetPrevious() != 1 || d.GetAuthor() != "secret/db" {
		t.Errorf("its deployment is %v", d)
	}
	if said := w.events("SecretChanged"); len(said) != 1 || !strings.Contains(said[0], "version 2 of secret db is in the environment of revision 2") {
		t.Errorf("the events are %q", said)
	}
}

// A version whose deployment was rolled back is not tried again; the next version is.
func TestVersionIsRolledOutOnce(t *testing.T) {
	w := newWorld(t)
	w.set("db", 0)
	one := w.run("web", &v1.SecretRef{Name: "db", Env: "DB"})
	first := w.store.Snapshot().Revision(one.GetStatus().GetRevisionUid())
	w.set("db", 0)
	w.settle(false)
	back := proto.CloneOf(w.workload(one))
	spec.ReturnTo(back, first)
	w.apply(func(b *state.Batch) { b.Update(back, back.GetMetadata().GetVersion()) })
	if w.settle(false); w.workload(one).GetStatus().GetRevision() != 1 {
		t.Error("it was rolled out again")
	}
	w.set("db", 0)
	if w.settle(false); w.workload(one).GetStatus().GetRevision() != 3 {
		t.Errorf("it is at revision %d", w.workload(one).GetStatus().GetRevision())
	}
}

func TestOthersGetNoDeploymentOfASecret(t *testing.T) {
	w := newWorld(t)
	w.set("db", 0)
	web := w.run("web", &v1.SecretRef{Name: "db", Env: "DB"})
	w.set("db", 0, "api")
	if w.settle(false); w.workload(web).GetStatus().GetRevision() != 1 {
		t.Error("a workload that may not use the secret was rolled out")
	}
	w.set("db", 0, "api", "web")
	if w.settle(false); w.workload(web).GetStatus().GetRevision() != 2 {
		t.Error("a workload that may use it again was not rolled out")
	}
}

func TestExpiredVersionIsRemovedAndAnnouncedOnce(t *testing.T) {
	w := newWorld(t)
	s := w.set("db", time.Hour)
	web := w.run("web", &v1.SecretRef{Name: "db", Path: "/s/db"})
	if next := w.settle(false); !next.Equal(noon.Add(time.Hour)) {
		t.Errorf("it looks again at %s", next)
	}
	snap := w.store.Snapshot()
	var r *v1.Replica
	for r = range snap.ReplicasOf(web.GetMetadata().GetUid()) {
		break
	}
	if got := secret.UsesOf(snap, r, w.now); len(got) != 1 {
		t.Errorf("before, the replica gets %v", got)
	}
	w.now = noon.Add(time.Hour)
	if got := secret.UsesOf(snap, r, w.now); len(got) != 0 {
		t.Errorf("after it, the replica gets %v", got)
	}
	w.settle(false)
	w.settle(false)
	if said := w.events("Expired"); len(said) != 1 || said[0] != "version 1 expired at 2026-05-01T13:00:00Z and is delivered no longer; set a new version with: cloudless secret set db" {
		t.Errorf("the events are %q", said)
	}
	if left := w.values(s); len(left) != 0 {
		t.Errorf("the values %v are left", left)
	}
	snap = w.store.Snapshot()
	if got := secret.Problem(snap, snap.SecretByName("default", "db"), w.now); got != "secret db: version 1 expired at 2026-05-01T13:00:00Z; set a new version with: cloudless secret set db" {
		t.Errorf("the problem is %q", got)
	}
	if got := secret.Waits(snap, web, snap.Revision(web.GetStatus().GetRevisionUid()), w.now); !strings.HasPrefix(got, "waits for secret db: version 1 expired at") {
		t.Errorf("new replicas wait with %q", got)
	}
	w.set("db", time.Hour)
	if w.settle(false); secret.Problem(w.store.Snapshot(), w.store.Snapshot().SecretByName("default", "db"), w.now) != "" {
		t.Error("the problem remains after a new version")
	}
}

func TestValuesStayAsLongAsAReplicaNeedsThem(t *testing.T) {
	w := newWorld(t)
	s := w.set("db", 0)
	web := w.run("web", &v1.SecretRef{Name: "db", Env: "DB"})
	old := w.store.Snapshot().Revision(web.GetStatus().GetRevisionUid())
	w.set("db", 0)
	w.settle(false)
	if got := w.values(s); !slices.Equal(got, []uint64{1, 2}) {
		t.Errorf("during the deployment there are the values %v", got)
	}
	var r *v1.Replica
	for r = range w.store.Snapshot().ReplicasOf(web.GetMetadata().GetUid()) {
		if got := secret.UsesOf(w.store.Snapshot(), r, w.now); len(got) != 1 || got[0].Version.GetNumber() != 1 {
			t.Errorf("the replica of revision %d gets %v", old.GetSpec().GetNumber(), got)
		}
	}
	// The deployment ends well, and the old replica with it.
	w.apply(func(b *state.Batch) {
		snap := w.store.Snapshot()
		d := proto.CloneOf(snap.Deployment(w.workload(web).GetStatus().GetDeploymentUid()))
		d.Status.Phase = spec.DeploymentSucceeded
		b.Update(d, d.GetMetadata().GetVersion())
		gone := proto.CloneOf(r)
		gone.Status.Phase = spec.PhaseStopped
		b.Update(gone, gone.GetMetadata().GetVersion())
	})
	if w.settle(false); !slices.Equal(w.values(s), []uint64{2}) {
		t.Errorf("afterwards there are the values %v", w.values(s))
	}
}

func TestReceiptsEndWithTheirReplica(t *testing.T) {
	w := newWorld(t)
	s := w.set("db", 0)
	web := w.run("web", &v1.SecretRef{Name: "db", Path: "/s/db"})
	second := w.replica(web)
	w.apply(func(b *state.Batch) {
		b.Create(second)
		for r := range w.store.Snapshot().ReplicasOf(web.GetMetadata().GetUid()) {
			b.Create(receipt(s, r))
		}
		b.Create(receipt(s, second))
	})
	if w.settle(true); w.store.Snapshot().Count(state.KindSecretReceipt) != 2 {
		t.Error("receipts of replicas that exist were deleted")
	}
	w.apply(func(b *state.Batch) { b.Delete(state.KindReplica, second.GetMetadata().GetUid()) })
	if w.settle(true); w.store.Snapshot().Count(state.KindSecretReceipt) != 1 {
		t.Error("the receipt of a replica that is gone remains")
	}
	w.apply(func(b *state.Batch) { b.Delete(state.KindSecret, s.GetMetadata().GetUid()) })
	if w.settle(true); w.store.Snapshot().Count(state.KindSecretReceipt) != 0 {
		t.Error("the receipt of a secret that is gone remains")
	}
}

func receipt(s *v1.Secret, r *v1.Replica) *statev1.SecretReceipt {
	uid := s.GetMetadata().GetUid()
	return &statev1.SecretReceipt{
		Metadata: &v1.Metadata{Uid: secret.ReceiptUID(uid, r.GetMetadata().GetUid())}, SecretUid: uid,
		Deliveries: []*v1.SecretDelivery{{ReplicaUid: r.GetMetadata().GetUid(), Version: 1}},
	}
}
