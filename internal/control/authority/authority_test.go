package authority

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/gossipkey"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

const cluster = "test-cluster"

// world is a state with one leader, whose memory is lost whenever another one takes over.
type world struct {
	t      *testing.T
	store  *state.Store
	index  uint64
	now    time.Time
	dir    string
	keys   Keys
	report Reports
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, store: state.New(), now: time.Now().UTC(), dir: t.TempDir()}
	sealer, err := identity.OpenOrCreateSealer(filepath.Join(w.dir, "kek.json"))
	must.Succeed(t, err)
	ca, err := identity.NewCA(cluster, w.now)
	must.Succeed(t, err)
	w.keys = Keys{CA: ca, Sealer: sealer}
	key, err := ca.MarshalKey()
	must.Succeed(t, err)
	sealed, err := sealer.Seal(key, state.AuthorityKeyContext(cluster))
	must.Succeed(t, err)
	gossip, err := gossipkey.New(cluster, sealer)
	must.Succeed(t, err)
	password, err := sealer.Seal([]byte("secret"), state.PasswordContext("login"))
	must.Succeed(t, err)
	setting, err := sealer.Seal([]byte("token"), state.DNSSettingContext("cloud", "token"))
	must.Succeed(t, err)
	w.change(func(b *state.Batch) {
		b.Create(&v1.Cluster{
			ApiVersion: spec.APIVersion, Kind: "Cluster", Metadata: &v1.Metadata{Uid: cluster, Name: "cloudless"}, Status: &v1.ClusterStatus{},
			Spec: &v1.ClusterSpec{Acme: &v1.Acme{Dns: &v1.AcmeDns{Provider: "cloud", Settings: map[string]string{"token": state.SettingText(setting)}}}},
		})
		b.Create(&statev1.Authority{Metadata: &v1.Metadata{Uid: cluster}, Certificate: ca.Trust().DER(), SealedKey: sealed})
		b.Create(gossip)
		b.Create(&statev1.Password{Metadata: &v1.Metadata{Uid: "login"}, Sealed: password})
		b.Create(&v1.Server{ApiVersion: spec.APIVersion, Kind: "Server", Metadata: &v1.Metadata{Uid: "s-1", Name: "one"}})
		b.Create(&v1.Node{ApiVersion: spec.APIVersion, Kind: "Node", Metadata: &v1.Metadata{Uid: "n-1", Name: "box"}, Status: &v1.NodeStatus{}})
	})
	w.report = Reports{Servers: map[string]ServerReport{}, Nodes: map[string]NodeReport{}}
	w.follow(true)
	return w
}

func (w *world) change(build func(*state.Batch)) {
	w.t.Helper()
	var b state.Batch
	build(&b)
	if b.Len() == 0 {
		return
	}
	w.index++
	_, err := w.store.Apply(w.index, b.Transaction(w.now))
	must.Succeed(w.t, err)
}

// follow makes the server do what the state says, and the node as well if it is reachable.
func (w *world) follow(node bool) {
	w.t.Helper()
	a, k := w.store.Snapshot().Authority(), w.store.Snapshot().KeyEncryptionKey()
	s := w.keys.Sealer
	if next := k.GetNextId(); next != "" && !slices.Contains(s.KeyIDs(), next) {
		key, err := s.Unseal(k.GetSealedNext(), state.KeyEncryptionKeyContext(cluster))
		must.Succeed(w.t, err)
		must.Succeed(w.t, s.AddKey(key))
	}
	if id := k.GetId(); id != "" && id != s.KeyID() {
		must.Succeed(w.t, s.UseKey(id))
	}
	key, err := s.Unseal(a.GetSealedKey(), state.AuthorityKeyContext(cluster))
	must.Succeed(w.t, err)
	must.Succeed(w.t, w.keys.CA.Set(identity.Authorities{
		Active: a.GetCertificate(), Key: key, Next: a.GetNextCertificate(), Previous: a.GetPreviousCertificate(), Endorsements: a.GetEndorsements(),
	}))
	if k != nil && (k.GetStep() == StepDrop || k.GetStep() == "") {
		must.Succeed(w.t, s.DropKeys())
	}
	var trusted []string
	for _, one := range w.keys.CA.Trust().Fingerprints() {
		trusted = append(trusted, one.String())
	}
	keys := []string{s.KeyID()}
	for _, id := range s.KeyIDs() {
		if id != s.KeyID() {
			keys = append(keys, id)
		}
	}
	w.report.Servers["s-1"] = ServerReport{Authorities: trusted, Keys: keys}
	delete(w.report.Nodes, "n-1")
	if node {
		w.report.Nodes["n-1"] = NodeReport{Trusted: trusted, Issuer: trusted[0]}
	}
}

// restart loses everything that is not on disk or in the state.
func (w *world) restart() {
	w.t.Helper()
	sealer, err := identity.OpenSealer(filepath.Join(w.dir, "kek.json"))
	must.Succeed(w.t, err)
	a := w.store.Snapshot().Authority()
	key, err := sealer.Unseal(a.GetSealedKey(), state.AuthorityKeyContext(cluster))
	must.Succeed(w.t, err)
	ca, err := identity.OpenCA(identity.Authorities{Active: a.GetCertificate(), Key: key, Next: a.GetNextCertificate(), Previous: a.GetPreviousCertificate()})
	must.Succeed(w.t, err)
	w.keys = Keys{CA: ca, Sealer: sealer}
}

func (w *world) tick(resealer *Resealer) {
	w.t.Helper()
	w.change(func(b *state.Batch) {
		must.Succeed(w.t, w.keys.Tick(w.now, w.store.Snapshot(), w.report, "s-1", resealer, b))
	})
	w.now = w.now.Add(time.Second)
}

func (w *world) steps() string {
	return w.store.Snapshot().Authority().GetStep() + "/" + w.store.Snapshot().KeyEncryptionKey().GetStep()
}

func (w *world) begin() {
	w.t.Helper()
	w.change(func(b *state.Batch) {
		snap := w.store.Snapshot()
		must.Succeed(w.t, w.keys.Begin(w.now, snap, b, "a test", "user/test"))
		must.Succeed(w.t, w.keys.BeginKEK(w.now, snap, b, "a test", "user/test"))
	})
}

// Any leader continues after any transaction, with nothing but the state and its files.
func TestRotationContinuesAfterACrashAtEveryStep(t *testing.T) {
	for _, crashes := range []bool{false, true} {
		t.Run(fmt.Sprintf("crashes %v", crashes), func(t *testing.T) {
			w := newWorld(t)
			before, key := w.keys.CA.Trust().Fingerprint(), w.keys.Sealer.KeyID()
			w.begin()
			seen := map[string]bool{}
			resealer := &Resealer{Sealer: w.keys.Sealer}
			for range 60 {
				seen[w.steps()] = true
				if crashes {
					w.restart()
					resealer = &Resealer{Sealer: w.keys.Sealer}
				}
				w.follow(true)
				if crashes {
					w.restart()
					resealer = &Resealer{Sealer: w.keys.Sealer}
				}
				w.tick(resealer)
			}
			snap := w.store.Snapshot()
			if Running(snap) {
				t.Fatalf("the rotation hangs at %s: %v %v", w.steps(), Waiting(snap, w.report), KEKWaiting(snap, w.report))
			}
			w.follow(true)
			if now := w.keys.CA.Trust(); now.Has(before) || len(now.Fingerprints()) != 1 {
				t.Errorf("trusted after the rotation: %v", now.Fingerprints())
			}
			if ids := w.keys.Sealer.KeyIDs(); len(ids) != 1 || ids[0] == key || ids[0] != snap.KeyEncryptionKey().GetId() {
				t.Errorf("keys after the rotation: %v", ids)
			}
			if by, total := Count(snap, w.keys.Sealer.KeyID()); by != total || total != 4 {
				t.Errorf("%d of %d values are sealed by the new key", by, total)
			}
			password, err := w.keys.Sealer.Unseal(snap.Password("login").GetSealed(), state.PasswordContext("login"))
			if err != nil || string(password) != "secret" {
				t.Errorf("a password after the rotation: %q, %v", password, err)
			}
			if n := len(snap.Authority().GetEndorsements()); n != 1 {
				t.Errorf("%d endorsements are left, want that of the new authority by the old one", n)
			}
			for _, step := range []string{StepDistribute, StepRenew, StepDrop, StepSeal} {
				if !slices.ContainsFunc(slices.Collect(maps.Keys(seen)), func(s string) bool { return strings.Contains(s, step) }) {
					t.Errorf("step %s was never seen", step)
				}
			}
		})
	}
}

func TestRotationWaitsForAbsentMembersForADay(t *testing.T) {
	w := newWorld(t)
	w.begin()
	resealer := &Resealer{Sealer: w.keys.Sealer}
	for range 20 {
		w.follow(false)
		w.tick(resealer)
	}
	snap := w.store.Snapshot()
	if snap.Authority().GetStep() != StepDistribute {
		t.Fatalf("it did not wait for the node: step %s", snap.Authority().GetStep())
	}
	if waiting := Waiting(snap, w.report); len(waiting) != 1 || waiting[0].GetName() != "box" || waiting[0].GetReachable() {
		t.Errorf("it waits for %v", waiting)
	}
	w.now = w.now.Add(Patience)
	for range 20 {
		w.follow(false)
		w.tick(resealer)
	}
	if snap = w.store.Snapshot(); snap.Authority().GetStep() != "" {
		t.Errorf("after a day it still waits, at step %s", snap.Authority().GetStep())
	}
}

func TestMemberIsLeftBehindOnDemand(t *testing.T) {
	w := newWorld(t)
	w.begin()
	resealer := &Resealer{Sealer: w.keys.Sealer}
	w.follow(false)
	w.tick(resealer)
	if err := LeaveBehind(w.store.Snapshot(), &state.Batch{}, []string{"nobody"}); err == nil {
		t.Error("a member that does not exist is left behind")
	}
	w.change(func(b *state.Batch) { must.Succeed(t, LeaveBehind(w.store.Snapshot(), b, []string{"n-1"})) })
	for range 20 {
		w.follow(false)
		w.tick(resealer)
	}
	if step := w.store.Snapshot().Authority().GetStep(); step != "" {
		t.Errorf("it still waits at step %s", step)
	}
}

// A server that is removed during a rotation may know the next keys, too.
func TestRemovalDuringARotationBeginsAnother(t *testing.T) {
	w := newWorld(t)
	w.begin()
	next := Fingerprint(w.store.Snapshot().Authority().GetNextCertificate())
	w.change(func(b *state.Batch) { w.keys.Request(w.store.Snapshot(), b, "server two was removed") })
	resealer := &Resealer{Sealer: w.keys.Sealer}
	for range 120 {
		w.follow(true)
		w.tick(resealer)
	}
	a := w.store.Snapshot().Authority()
	if Running(w.store.Snapshot()) || Fingerprint(a.GetCertificate()) == next || a.GetReason() != "server two was removed" {
		t.Errorf("step %q, reason %q, the authority of the first rotation signs: %v", w.steps(), a.GetReason(), Fingerprint(a.GetCertificate()) == next)
	}
}

// Nobody could open a value that a rotation forgets.
func TestEverySealedFieldIsSealedAgain(t *testing.T) {
	known := map[string][]string{
		// It is the key that is replaced, and exists only until all servers have it.
		"KeyEncryptionKey": {"sealed_next"},
	}
	for kind, one := range sealedKinds {
		if len(one.fields) > 0 {
			known[string(newOf(t, kind).ProtoReflect().Descriptor().Name())] = one.fields
		}
	}
	messages := statev1.File_cloudless_state_v1_state_proto.Messages()
	found := 0
	for i := range messages.Len() {
		m := messages.Get(i)
		for j := range m.Fields().Len() {
			field := m.Fields().Get(j)
			if !strings.HasPrefix(string(field.Name()), "sealed") {
				continue
			}
			found++
			if !slices.Contains(known[string(m.Name())], string(field.Name())) {
				t.Errorf("%s.%s is sealed, and missing in sealedKinds: nobody could open it after a rotation of the key-encryption key", m.Name(), field.Name())
			}
		}
	}
	if found < 9 {
		t.Errorf("only %d sealed fields were found", found)
	}
	// A field that is listed is also replaced.
	for kind, one := range sealedKinds {
		for _, name := range one.fields {
			o := newOf(t, kind)
			field := o.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(name))
			o.ProtoReflect().Set(field, protoreflect.ValueOfBytes([]byte("old")))
			for _, v := range one.values(o, cluster) {
				v.replace([]byte("new"))
			}
			if got := o.ProtoReflect().Get(field).Bytes(); string(got) != "new" {
				t.Errorf("%s.%s is listed and not replaced", kind, name)
			}
		}
	}
}

func newOf(t *testing.T, kind state.Kind) state.Object {
	t.Helper()
	for _, o := range []state.Object{
		&statev1.Authority{}, &statev1.GossipKey{}, &statev1.Password{}, &statev1.CertificateKey{}, &statev1.CertificateChallenge{},
		&statev1.AcmeAccount{}, &statev1.SecretValue{}, &statev1.WorkloadKey{}, &statev1.AccessKeySecret{},
		&statev1.BucketKey{},
	} {
		if state.KindOf(o) == kind {
			return proto.Clone(o).(state.Object)
		}
	}
	t.Fatalf("kind %s is not known to this test", kind)
	return nil
}

// finish rotates the key-encryption key alone, as far as it gets.
func (w *world) finish(resealer *Resealer, ticks int) {
	w.t.Helper()
	for range ticks {
		w.follow(true)
		w.tick(resealer)
	}
}

func (w *world) beginKEK() {
	w.t.Helper()
	w.change(func(b *state.Batch) {
		must.Succeed(w.t, w.keys.BeginKEK(w.now, w.store.Snapshot(), b, "a test", "user/test"))
	})
}

// What no key opens can never be opened: it does not keep the old key, and everybody sees what it is.
func TestUnreadableValueDoesNotKeepTheOldKey(t *testing.T) {
	w := newWorld(t)
	stranger, err := identity.OpenOrCreateSealer(filepath.Join(t.TempDir(), "kek.json"))
	must.Succeed(t, err)
	foreign, err := stranger.Seal([]byte("hidden"), state.PasswordContext("foreign"))
	must.Succeed(t, err)
	damaged, err := w.keys.Sealer.Seal([]byte("hidden"), state.PasswordContext("damaged"))
	must.Succeed(t, err)
	damaged[len(damaged)-1]++
	w.change(func(b *state.Batch) {
		b.Create(&v1.Login{ApiVersion: spec.APIVersion, Kind: "Login", Metadata: &v1.Metadata{Uid: "foreign", Name: "images.example.com"}})
		b.Create(&statev1.Password{Metadata: &v1.Metadata{Uid: "foreign"}, Sealed: foreign})
		b.Create(&statev1.Password{Metadata: &v1.Metadata{Uid: "damaged"}, Sealed: damaged})
	})
	old := w.keys.Sealer.KeyID()
	w.beginKEK()
	w.finish(&Resealer{Sealer: w.keys.Sealer}, 30)
	snap := w.store.Snapshot()
	if Running(snap) || slices.Contains(w.keys.Sealer.KeyIDs(), old) {
		t.Fatalf("the rotation hangs at %s, with the keys %v", w.steps(), w.keys.Sealer.KeyIDs())
	}
	want := []string{"login images.example.com", "password damaged"}
	if got := Report(snap, w.report, w.keys.Sealer).GetUnreadable(); !slices.Equal(got, want) {
		t.Errorf("unreadable are %q, want %q", got, want)
	}
	said := 0
	for e := range snap.Events("") {
		if text := e.GetSpec().GetMessage(); e.GetSpec().GetReason() == "Unreadable" {
			said++
			if !strings.Contains(text, "login images.example.com") || !strings.Contains(text, "damaged") || strings.Contains(text, "hidden") {
				t.Errorf("the event says %q", text)
			}
		}
	}
	if said != 1 {
		t.Errorf("%d events name what is unreadable, want one", said)
	}
	if by, total := Count(snap, w.keys.Sealer.KeyID()); by != 4 || total != 6 {
		t.Errorf("%d of %d values are sealed by the new key, want all but two", by, total)
	}
}

// A server that lacks the old key cannot say that a value is lost.
func TestServerWithoutTheOldKeyGivesNothingUp(t *testing.T) {
	w := newWorld(t)
	w.beginKEK()
	for w.store.Snapshot().KeyEncryptionKey().GetStep() != StepSeal {
		w.finish(nil, 1)
	}
	w.follow(true)
	must.Succeed(t, w.keys.Sealer.DropKeys())
	var b state.Batch
	if _, err := (&Resealer{Sealer: w.keys.Sealer}).Reseal(w.store.Snapshot(), &b); err == nil || b.Len() > 0 {
		t.Errorf("it goes on: %v", err)
	}
	if names := Unreadable(w.store.Snapshot(), w.keys.Sealer); len(names) != 0 {
		t.Errorf("it gives up %q", names)
	}
}

// However long a transaction is on its way, it does not bring back what the old key has sealed.
func TestLateTransactionIsSealedByTheNewKey(t *testing.T) {
	w := newWorld(t)
	login := func(sealed []byte) *state.Batch {
		var b state.Batch
		b.Create(&statev1.Password{Metadata: &v1.Metadata{Uid: "late"}, Sealed: sealed})
		return &b
	}
	apply := func(b *state.Batch) error {
		w.index++
		_, err := w.store.Apply(w.index, b.Transaction(w.now))
		return err
	}
	w.beginKEK()
	sealed, err := w.keys.Sealer.Seal([]byte("late"), state.PasswordContext("late"))
	must.Succeed(t, err)
	early := login(sealed)
	must.Succeed(t, w.keys.SealedNow(w.store.Snapshot(), early))
	resealer := &Resealer{Sealer: w.keys.Sealer}
	for w.store.Snapshot().KeyEncryptionKey().GetStep() != StepSeal {
		w.finish(resealer, 1)
	}
	if err := apply(early); !state.MovedOn(err) {
		t.Fatalf("a transaction of before the change of the key is stored: %v", err)
	}
	// A server that has not followed yet must not store what it seals.
	behind, err := identity.OpenOrCreateSealer(filepath.Join(t.TempDir(), "kek.json"))
	must.Succeed(t, err)
	if err := (Keys{Sealer: behind}).SealedNow(w.store.Snapshot(), login(sealed)); err == nil {
		t.Error("a server without the new key stores a sealed value")
	}
	// One that has followed seals again what it sealed before.
	w.follow(true)
	again := login(sealed)
	must.Succeed(t, w.keys.SealedNow(w.store.Snapshot(), again))
	must.Succeed(t, apply(again))
	if by := identity.SealedBy(w.store.Snapshot().Password("late").GetSealed()); by != w.keys.Sealer.KeyID() {
		t.Errorf("it is sealed by %s, want the new key", by)
	}
	// What is stored already may be written again: the leader seals it.
	var copied state.Batch
	cluster := proto.CloneOf(w.store.Snapshot().Cluster())
	copied.Update(cluster, cluster.GetMetadata().GetVersion())
	must.Succeed(t, w.keys.SealedNow(w.store.Snapshot(), &copied))
	must.Succeed(t, apply(&copied))
	w.finish(resealer, 30)
	if Running(w.store.Snapshot()) {
		t.Fatalf("the rotation hangs at %s", w.steps())
	}
	text, err := w.keys.Sealer.Unseal(w.store.Snapshot().Password("late").GetSealed(), state.PasswordContext("late"))
	if err != nil || string(text) != "late" {
		t.Errorf("after the rotation: %q, %v", text, err)
	}
	// The key is gone: what it has sealed is refused instead of lost.
	if err := w.keys.SealedNow(w.store.Snapshot(), login(sealed)); err == nil {
		t.Error("a value of the old key is stored after the rotation")
	}
}

// A member that is connected and never done is waited for no longer than one that is away.
func TestConnectedMemberIsWaitedForADay(t *testing.T) {
	w := newWorld(t)
	w.begin()
	resealer := &Resealer{Sealer: w.keys.Sealer}
	stuck := func(ticks int) {
		for range ticks {
			w.follow(true)
			w.report.Nodes["n-1"] = NodeReport{}
			w.tick(resealer)
		}
	}
	stuck(20)
	if step := w.store.Snapshot().Authority().GetStep(); step != StepDistribute {
		t.Fatalf("it did not wait for the node: step %q", step)
	}
	if problems := Problems(w.now, w.store.Snapshot(), &w.report); len(problems) != 0 || Overdue(w.now, w.store.Snapshot()) {
		t.Errorf("problems after seconds: %q", problems)
	}
	w.now = w.now.Add(11 * time.Minute)
	problems := Problems(w.now, w.store.Snapshot(), &w.report)
	if len(problems) != 1 || !strings.Contains(problems[0], "node box") || !strings.Contains(problems[0], "cloudless ca rotate --leave box") {
		t.Errorf("problems after eleven minutes: %q", problems)
	}
	if unknown := Problems(w.now, w.store.Snapshot(), nil); len(unknown) != 1 || !strings.Contains(unknown[0], "cloudless ca status") {
		t.Errorf("problems without reports: %q", unknown)
	}
	w.now = w.now.Add(Patience)
	stuck(20)
	if snap := w.store.Snapshot(); snap.Authority().GetStep() != "" || snap.Authority().GetPreviousCertificate() != nil {
		t.Errorf("after a day it still waits, at step %s", snap.Authority().GetStep())
	}
}
