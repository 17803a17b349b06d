// Package servers is the leader's loop that keeps the state's servers in line with what
// they report to each other: their current address, zone and version.
//
// Tick is pure. The package adds only the leader itself, which founded the cluster or led
// it before servers were stored: others become members by enrolling. It must not know how
// servers communicate, nor which ones vote.
package servers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Proposer agrees on changes with the other servers.
type Proposer interface {
	Propose(ctx context.Context, tx *statev1.Transaction) (state.Result, error)
}

// Seen is what a server says of itself.
type Seen struct {
	UID, Address, Zone, Version string
}

// Self is the leader.
type Self struct {
	Seen
	// Name that it asks for.
	Name string
}

// Tick returns the changes that are due.
func Tick(snap *state.Snapshot, self Self, seen []Seen) *state.Batch {
	batch := &state.Batch{}
	if snap.Server(self.UID) == nil && snap.Revocation(self.UID) == nil && snap.Cluster() != nil {
		batch.Create(&v1.Server{
			ApiVersion: spec.APIVersion, Kind: "Server",
			Metadata: &v1.Metadata{Uid: self.UID, Name: freeName(snap, self.Name)},
			Spec:     &v1.ServerSpec{Address: self.Address, Zone: self.Zone, Version: self.Version},
		})
	}
	for _, one := range append(seen, self.Seen) {
		old := snap.Server(one.UID)
		if old == nil || one.Address == "" {
			continue
		}
		now := &v1.ServerSpec{Address: one.Address, Zone: one.Zone, Version: one.Version}
		if proto.Equal(old.GetSpec(), now) {
			continue
		}
		changed := proto.CloneOf(old)
		changed.Spec = now
		batch.Update(changed, old.GetMetadata().GetVersion())
	}
	return batch
}

func freeName(snap *state.Snapshot, wanted string) string {
	name := wanted
	for i := 2; snap.ServerByName(name) != nil; i++ {
		name = fmt.Sprintf("%.58s-%d", wanted, i)
	}
	return name
}

// LeaderEvent returns the event that this server leads since a term. It is nil if the event exists
// already or there is no other server.
func LeaderEvent(now time.Time, uid string, snap *state.Snapshot, self Self, term uint64) *v1.Event {
	own := snap.Server(self.UID)
	if own == nil || !others(snap, self.UID) {
		return nil
	}
	message := fmt.Sprintf("leads since term %d", term)
	for last := range snap.LeaderEvents() {
		switch event := last.GetSpec(); {
		case event.GetObjectUid() != self.UID:
			message += ", after server " + event.GetObjectName()
		case event.GetMessage() == message, strings.HasPrefix(event.GetMessage(), message+","):
			return nil
		}
		break // at the newest
	}
	return state.NewEvent(uid, now, own, state.SeverityInfo, state.ReasonLeads, message, "server/"+own.GetMetadata().GetName())
}

func others(snap *state.Snapshot, uid string) bool {
	for one := range snap.Servers("") {
		if one.GetMetadata().GetUid() != uid {
			return true
		}
	}
	return false
}

// Loop ticks whenever something may have changed.
type Loop struct {
	Store    *state.Store
	Proposer Proposer
	Self     Self
	// Term is since when this server leads.
	Term uint64
	// Seen are the others that are alive.
	Seen func() []Seen
	// Wake signals that they may have changed.
	Wake <-chan struct{}
}

// tickInterval is how often the loop ticks without a signal.
const tickInterval = 5 * time.Second

// Run announces that this server leads, and ticks until ctx ends.
func (l *Loop) Run(ctx context.Context) error {
	if l.Self.UID == "" || l.Self.Name == "" {
		return errors.New("the loop of the servers needs to know which one it runs on")
	}
	ticker := time.NewTicker(tickInterval)
	defer ticker.Stop()
	for announced := false; ; announced = true {
		if err := l.once(ctx, !announced); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.Wake:
		case <-ticker.C:
		}
	}
}

// once brings the state up to date. It retries when the state moves on meanwhile.
func (l *Loop) once(ctx context.Context, announce bool) error {
	for {
		snap, now := l.Store.Snapshot(), time.Now().UTC()
		batch := Tick(snap, l.Self, l.Seen())
		if announce {
			if event := LeaderEvent(now, state.NewUID(), snap, l.Self, l.Term); event != nil {
				batch.Create(event)
			}
		}
		if batch.Len() == 0 {
			return nil
		}
		if _, err := l.Proposer.Propose(ctx, batch.Transaction(now)); !state.MovedOn(err) {
			return err
		}
	}
}
