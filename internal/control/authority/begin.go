package authority

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/gossipkey"
	"github.com/cloudless/cloudless/internal/control/workloadkeys"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/state"
)

// The steps of a rotation.
const (
	StepDistribute = "distribute"
	StepRenew      = "renew"
	StepSeal       = "seal"
	StepDrop       = "drop"
)

var (
	errNoKey  = errors.New("the keys cannot be replaced: this server does not hold the key-encryption key")
	errBehind = errors.New("this server does not use the cluster's current keys yet: try again in a moment")

	errLacksKeys = errors.New("the key-encryption key in this server's file is not the one that has sealed the state: " +
		"copy the file from another server, or let another server lead with: cloudless leader transfer")
)

// Keys are those of the server that changes the state.
type Keys struct {
	CA     *identity.CA
	Sealer *identity.Sealer
}

// Begin adds the begin of a rotation of the certificate authority to a transaction, unless one runs. The key of the
// gossip changes with it.
func (k Keys) Begin(now time.Time, snap *state.Snapshot, b *state.Batch, reason, actor string) error {
	old := snap.Authority()
	if old.GetStep() != "" {
		return nil
	}
	a := proto.CloneOf(old)
	if err := k.begin(now, snap, b, a, reason, actor); err != nil {
		return err
	}
	b.Update(a, old.GetMetadata().GetVersion())
	return nil
}

func (k Keys) begin(now time.Time, snap *state.Snapshot, b *state.Batch, a *statev1.Authority, reason, actor string) error {
	cluster := uid(snap.Cluster())
	if k.Sealer == nil {
		return errNoKey
	}
	if trust := k.CA.Trust(); string(trust.DER()) != string(a.GetCertificate()) {
		return errBehind
	}
	next, endorsements, err := k.CA.Successor(now)
	if err != nil {
		return err
	}
	key, err := next.MarshalKey()
	if err != nil {
		return err
	}
	if a.SealedNextKey, err = k.Sealer.Seal(key, state.AuthorityKeyContext(cluster)); err != nil {
		return err
	}
	clear(key)
	a.NextCertificate = next.Trust().DER()
	a.Endorsements = append(endorsements, newest(a.GetEndorsements())...)
	a.Step, a.StepTime, a.RotateTime = StepDistribute, timestamppb.New(now), timestamppb.New(now)
	a.Reason, a.Again, a.LeftBehind = reason, "", nil
	if err := publish(snap, b, a); err != nil {
		return err
	}
	if !changesGossip(b) { // as the removal of a server does, with the key for tokens
		workloadkeys.Replace(now, snap, b)
		if err := gossipkey.Rotate(cluster, k.Sealer, snap, b); err != nil {
			return err
		}
	}
	note(now, snap, b, "AuthorityRotation", "the certificate authority is being replaced: "+reason, actor)
	return nil
}

// changesGossip reports whether a transaction has another key for the gossip already.
func changesGossip(b *state.Batch) bool {
	for _, c := range b.Transaction(time.Time{}).GetChanges() {
		if c.GetPut().GetGossipKey() != nil {
			return true
		}
	}
	return false
}

// mostEndorsements bounds what servers show of former authorities.
const mostEndorsements = 4

func newest(endorsements [][]byte) [][]byte {
	return slices.Clone(endorsements[:min(len(endorsements), mostEndorsements)])
}

// BeginKEK adds the begin of a rotation of the key-encryption key to a transaction, unless one runs.
func (k Keys) BeginKEK(now time.Time, snap *state.Snapshot, b *state.Batch, reason, actor string) error {
	old := snap.KeyEncryptionKey()
	if old.GetStep() != "" {
		return nil
	}
	if k.Sealer == nil {
		return errNoKey
	}
	kek := proto.CloneOf(old)
	if old == nil {
		kek = &statev1.KeyEncryptionKey{Metadata: &v1.Metadata{Uid: uid(snap.Cluster())}, Id: k.Sealer.KeyID()}
	}
	if err := k.beginKEK(now, snap, b, kek, reason, actor); err != nil {
		return err
	}
	if old == nil {
		b.Create(kek)
	} else {
		b.Update(kek, old.GetMetadata().GetVersion())
	}
	return nil
}

func (k Keys) beginKEK(now time.Time, snap *state.Snapshot, b *state.Batch, kek *statev1.KeyEncryptionKey, reason, actor string) error {
	if kek.GetId() != k.Sealer.KeyID() {
		return errBehind
	}
	id, key, err := identity.NextKey()
	if err != nil {
		return err
	}
	defer clear(key)
	if kek.SealedNext, err = k.Sealer.Seal(key, state.KeyEncryptionKeyContext(uid(snap.Cluster()))); err != nil {
		return err
	}
	kek.NextId, kek.Step, kek.StepTime, kek.RotateTime = id, StepDistribute, timestamppb.New(now), timestamppb.New(now)
	kek.Reason, kek.Again, kek.LeftBehind = reason, "", nil
	note(now, snap, b, "KeyRotation", "the key-encryption key is being replaced: "+reason, actor)
	return nil
}

// Request adds to a transaction that the loop begins to replace both keys as soon as it can, because somebody who knows
// them must not know the next ones. If a rotation runs, another one follows it.
func (k Keys) Request(snap *state.Snapshot, b *state.Batch, reason string) {
	if old := snap.Authority(); old != nil {
		a := proto.CloneOf(old)
		a.Again = reason
		b.Update(a, old.GetMetadata().GetVersion())
	}
	switch old := snap.KeyEncryptionKey(); {
	case k.Sealer == nil:
	case old == nil:
		b.Create(&statev1.KeyEncryptionKey{Metadata: &v1.Metadata{Uid: uid(snap.Cluster())}, Id: k.Sealer.KeyID(), Again: reason})
	default:
		kek := proto.CloneOf(old)
		kek.Again = reason
		b.Update(kek, old.GetMetadata().GetVersion())
	}
}

// publish shows in the cluster's status which authorities are trusted.
func publish(snap *state.Snapshot, b *state.Batch, a *statev1.Authority) error {
	trust, err := identity.ParseTrust(state.TrustedAuthorities(a)...)
	if err != nil {
		return err
	}
	old := snap.Cluster()
	cluster := proto.CloneOf(old)
	cluster.Status.CaCertificate, cluster.Status.CaFingerprint = string(trust.PEM()), trust.Fingerprint().String()
	b.Update(cluster, old.GetMetadata().GetVersion())
	return nil
}

// LeaveBehind stops the rotations that run from waiting for members, by uid.
func LeaveBehind(snap *state.Snapshot, b *state.Batch, uids []string) error {
	for _, uid := range uids {
		if snap.Node(uid) == nil && snap.Server(uid) == nil {
			return fmt.Errorf("there is no member %q", uid)
		}
	}
	if a := snap.Authority(); a.GetStep() != "" {
		now := proto.CloneOf(a)
		if now.LeftBehind = union(a.GetLeftBehind(), uids); len(now.LeftBehind) > len(a.GetLeftBehind()) {
			b.Update(now, a.GetMetadata().GetVersion())
		}
	}
	if k := snap.KeyEncryptionKey(); k.GetStep() != "" {
		now := proto.CloneOf(k)
		if now.LeftBehind = union(k.GetLeftBehind(), uids); len(now.LeftBehind) > len(k.GetLeftBehind()) {
			b.Update(now, k.GetMetadata().GetVersion())
		}
	}
	return nil
}

func union(a, b []string) []string {
	all := slices.Clone(a)
	for _, uid := range b {
		if !slices.Contains(all, uid) {
			all = append(all, uid)
		}
	}
	return all
}

func note(now time.Time, snap *state.Snapshot, b *state.Batch, reason, message, actor string) {
	b.Create(state.NewEvent(state.NewUID(), now, snap.Cluster(), state.SeverityInfo, reason, message, actor))
}
