package membership

import (
	"context"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/state"
)

// How a removed member is cut off. The state refuses its calls and handshakes
// from the moment at which a server knows of the removal; the connections that
// it has are closed by every server that learns of it (dispatch), and the call
// that removes it is answered when all servers that can be reached have.

// cutGrace is how much longer than until the answer the connections of a removed
// server stay open through which its own removal is answered.
const cutGrace = 200 * time.Millisecond

// cutPatience bounds how long a removal waits for the other servers.
const cutPatience = 2 * time.Second

// cutPause is between two questions to a server that has not acted yet.
const cutPause = 5 * time.Millisecond

// Revoke takes a server out of the state: what it proves itself with is worth
// nothing from then on. The key of the gossip must change with it.
func (s *Membership) Revoke(ctx context.Context, b *state.Batch, removed *v1.Server, why string) (*v1.Event, error) {
	uid := removed.GetMetadata().GetUid()
	b.Delete(state.KindServer, uid)
	if err := s.RecordRemoval(b, identity.KindServer, uid); err != nil {
		return nil, err
	}
	event := s.Event(ctx, removed, "Removed", why)
	b.Create(event)
	return event, nil
}

// RecordRemoval keeps that a member was removed, so that it can be told so: a state
// that only lacks the member may be older than the member.
func (s *Membership) RecordRemoval(b *state.Batch, kind identity.Kind, uid string) error {
	id, err := identity.NewID(s.ca.Trust().Cluster(), kind, uid)
	if err != nil {
		return err
	}
	b.Put(&statev1.Revocation{Metadata: &v1.Metadata{Uid: uid}, Id: id.String()})
	return nil
}

// RevokeOthers removes all servers but this one, which was made the only one of
// its cluster, and returns their names. It must be called before anybody can
// reach this one: those that were lost may be back, with a majority of their own.
func (s *Membership) RevokeOthers(ctx context.Context) (names []string, err error) {
	_, err = s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		names = nil
		for one := range snap.Servers("") {
			if one.GetMetadata().GetUid() == s.UID {
				continue
			}
			if _, err := s.Revoke(ctx, b, one, "it was lost when the cluster was recovered, and is no server of it any more"); err != nil {
				return err
			}
			names = append(names, one.GetMetadata().GetName())
		}
		if len(names) == 0 {
			return nil
		}
		beginEpoch(snap, b)
		return s.RotateGossipKey(snap, b)
	})
	return names, err
}

// beginEpoch lets nodes that have heard of this cluster obey none of the servers that are not of it any more: those
// may be a majority of what was, and tell them to run what was replaced.
func beginEpoch(snap *state.Snapshot, b *state.Batch) {
	old := snap.Cluster()
	cluster := proto.CloneOf(old)
	cluster.Status.Epoch++
	b.Update(cluster, old.GetMetadata().GetVersion())
}

// cutNode closes what a removed node has open: session, attached streams, pulls.
func (s *Membership) cutNode(uid string) {
	if id, err := identity.NewID(s.ca.Trust().Cluster(), identity.KindNode, uid); err == nil {
		s.port.CloseIdentity(id)
	}
}

// cutServer closes what a removed server has open, and what leads to it, unless it
// is spared for a while.
func (s *Membership) cutServer(id identity.ID) {
	if _, spared := s.spared.Load(id.Name()); spared {
		return
	}
	s.port.CloseIdentity(id)
	s.peers.Drop(id.Name())
	s.forgetServer(id.Name())
}

// CatchUp does the same for all whose removal may have been missed.
func (s *Membership) CatchUp(snap *state.Snapshot) {
	if snap.Revocation(s.UID) != nil {
		s.expel()
	}
	s.port.CloseMembers(func(id identity.ID) bool {
		switch id.Kind() {
		case identity.KindNode:
			return snap.Node(id.Name()) == nil
		case identity.KindServer:
			return snap.Revocation(id.Name()) != nil
		}
		return false
	})
	for _, uid := range s.peers.Servers() {
		if snap.Revocation(uid) != nil {
			s.peers.Drop(uid)
			s.forgetServer(uid)
		}
	}
	s.acted.Store(max(s.acted.Load(), snap.Index()))
}

// Spare lets a server live long enough to pass on the answer to its own removal,
// if the call in ctx came through it. done is called when there is one.
func (s *Membership) Spare(ctx context.Context, uid string) (done func()) {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return func() {}
	}
	info, ok := from.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return func() {}
	}
	id, ok := identity.PeerID(info.State)
	if !ok || id.Kind() != identity.KindServer || id.Name() != uid {
		return func() {}
	}
	s.spared.Store(uid, struct{}{})
	return func() {
		time.AfterFunc(cutGrace, func() {
			s.spared.Delete(uid)
			if s.Store.Snapshot().Revocation(uid) != nil {
				s.cutServer(id)
			}
		})
	}
}

// ActedOn remembers up to which entry dispatch has come. An entry that removes a
// member also tells of it, so that it has an object with its index.
func (s *Membership) ActedOn(changes []state.Change) {
	for _, c := range changes {
		if c.New != nil {
			s.acted.Store(max(s.acted.Load(), c.New.GetMetadata().GetVersion()))
		}
	}
}

// WaitActedOn waits until every server that can be reached has acted on the
// entry that told of an event. One that cannot be reached learns of it before it can agree to
// anything again.
func (s *Membership) WaitActedOn(ctx context.Context, snap *state.Snapshot, event *v1.Event) {
	ctx, cancel := context.WithTimeout(ctx, cutPatience)
	defer cancel()
	told := snap.Get(state.KindEvent, event.GetMetadata().GetUid())
	if told == nil {
		return
	}
	newest := told.GetMetadata().GetVersion()
	acted := func(uid string) bool {
		if uid == s.UID {
			return s.acted.Load() >= newest
		}
		conn, err := s.peers.Ready(ctx, uid)
		if err != nil {
			return true // it cannot be reached
		}
		there, err := v1.NewPeerServiceClient(conn).GetProgress(ctx, &v1.GetProgressRequest{})
		return err != nil || there.GetActedIndex() >= newest
	}
	for _, one := range s.Servers(snap) {
		uid := one.GetMetadata().GetUid()
		for !acted(uid) {
			select {
			case <-ctx.Done():
				s.Logger.WarnContext(ctx, "a server has not cut off yet who was removed", "server", one.GetMetadata().GetName())
				return
			case <-time.After(cutPause):
			}
		}
	}
}
