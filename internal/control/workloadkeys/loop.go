package workloadkeys

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/state"
)

const (
	// Rotation is how old the key that signs becomes.
	Rotation = 30 * 24 * time.Hour
	// Announcement is how long a key is published before it signs. Nodes and other verifiers look for new keys more often.
	Announcement = 24 * time.Hour
	// Keeping is how long a key that no longer signs still verifies: longer than any token is valid.
	Keeping = 48 * time.Hour
	// Hurry is Announcement for a key that replaces one that a removed server knows. Nodes look for new keys twice as often.
	Hurry = 10 * time.Minute
	// maxSleep is the longest sleep of the loop. The clock may be set meanwhile, and others may call Replace.
	maxSleep = 5 * time.Minute
)

// Replace makes the key that signs retire soon, because a removed server knows it. Its tokens are valid until they expire.
func Replace(now time.Time, snap *state.Snapshot, b *state.Batch) {
	active := Active(snap)
	if active == nil || active.GetExpireTime() != nil {
		return
	}
	retires := proto.CloneOf(active)
	retires.ExpireTime = timestamppb.New(now)
	b.Update(retires, active.GetMetadata().GetVersion())
}

// Tick decides what happens to the keys now. It returns the changes, and when something is due next.
func Tick(now time.Time, snap *state.Snapshot, fresh func() (*statev1.WorkloadKey, error)) (*state.Batch, time.Time, error) {
	b, due := &state.Batch{}, now.Add(maxSleep)
	at := func(t time.Time) bool {
		if t.After(now) && t.Before(due) {
			due = t
		}
		return !t.After(now)
	}
	var active, next *statev1.WorkloadKey
	for key := range snap.WorkloadKeys() {
		switch key.GetState() {
		case StateActive:
			active = key
		case StateNext:
			next = key
		default:
			if at(key.GetExpireTime().AsTime()) {
				b.DeleteVersion(state.KindWorkloadKey, key.GetMetadata().GetUid(), key.GetMetadata().GetVersion())
			}
		}
	}
	switch {
	case active == nil && next != nil:
		become(b, next, StateActive, time.Time{})
	case active == nil:
		made, err := fresh()
		if err != nil {
			return nil, due, err
		}
		made.State = StateActive // there is no token yet that another key could verify
		b.Create(made)
	case next != nil:
		announcement := Announcement
		if active.GetExpireTime() != nil {
			announcement = Hurry
		}
		if at(created(next).Add(announcement)) {
			become(b, active, StatePrevious, now.Add(Keeping))
			become(b, next, StateActive, time.Time{})
		}
	case active.GetExpireTime() != nil || at(created(active).Add(Rotation-Announcement)):
		made, err := fresh()
		if err != nil {
			return nil, due, err
		}
		b.Create(made)
	}
	return b, due, nil
}

func created(key *statev1.WorkloadKey) time.Time { return key.GetMetadata().GetCreateTime().AsTime() }

// become changes the state of a key.
func become(b *state.Batch, key *statev1.WorkloadKey, to string, expires time.Time) {
	changed := proto.CloneOf(key)
	changed.State = to
	if !expires.IsZero() {
		changed.ExpireTime = timestamppb.New(expires)
	}
	b.Update(changed, key.GetMetadata().GetVersion())
}

// Proposer changes the state.
type Proposer interface {
	Propose(ctx context.Context, build func(*state.Snapshot, *state.Batch) error) (*state.Snapshot, error)
}

// Loop makes and rotates the keys while this server leads.
type Loop struct {
	Proposer Proposer
	Cluster  string
	Sealer   *identity.Sealer
}

// Run ticks until ctx ends.
func (l *Loop) Run(ctx context.Context) error {
	for {
		var due time.Time
		_, err := l.Proposer.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
			changes, next, err := Tick(time.Now(), snap, func() (*statev1.WorkloadKey, error) { return New(l.Cluster, l.Sealer) })
			if err == nil {
				*b, due = *changes, next
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := sleep.For(ctx, time.Until(due)); err != nil {
			return err
		}
	}
}
