// Package servers is the leader's loop that keeps what the state says of the servers by what they tell each other:
// where each is reached now, in which zone it is and what it runs.
//
// Tick is pure. The package adds nobody but the leader itself, which founded the cluster or led it before servers were
// kept: others become members by enrolling. It must not know how servers talk, nor who votes.
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

// Self is the server that leads.
type Self struct {
	Seen
	// Name that is wished for it.
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

func freeName(snap *state.Snapshot, wish string) string {
	name := wish
	for i := 2; snap.ServerByName(name) != nil; i++ {
		name = fmt.Sprintf("%.58s-%d", wish, i)
	}
	return name
}

// Tell returns the event that this server leads since a term, nil if it was told before or there is no other.
func Tell(now time.Time, uid string, snap *state.Snapshot, self Self, term uint64) *v1.Event {
	own := snap.Server(self.UID)
	if own == nil || !others(snap, self.UID) {
		return nil
	}
	message := fmt.Sprintf("leads since term %d", term)
	for last := range snap.LeaderEvents() {
		switch said := last.GetSpec(); {
		case said.GetObjectUid() != self.UID:
			message += ", after server " + said.GetObjectName()
		case said.GetMessage() == message, strings.HasPrefix(said.GetMessage(), message+","):
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
	// Wake tells that they may have changed.
	Wake <-chan struct{}
}

// again is how often the loop looks without being told.
const again = 5 * time.Second

// Run says that this server leads, and ticks until ctx ends.
func (l *Loop) Run(ctx context.Context) error {
	if l.Self.UID == "" || l.Self.Name == "" {
		return errors.New("the loop of the servers needs to know which one it runs on")
	}
	ticker := time.NewTicker(again)
	defer ticker.Stop()
	for told := false; ; told = true {
		if err := l.once(ctx, !told); err != nil {
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

// once brings the state up to date, however often it moves on meanwhile.
func (l *Loop) once(ctx context.Context, tell bool) error {
	for {
		snap, now := l.Store.Snapshot(), time.Now().UTC()
		batch := Tick(snap, l.Self, l.Seen())
		if tell {
			if event := Tell(now, state.NewUID(), snap, l.Self, l.Term); event != nil {
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
