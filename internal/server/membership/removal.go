package membership

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/state"
)

// A removed member is cut off. Every server that knows of the removal refuses its calls
// and handshakes, and closes its connections (Route). The call that removes the member
// returns when all reachable servers have done so.

const (
	// cutGrace is how long a removed server keeps its connections after the call that
	// removed it, if it relays the answer to this call.
	cutGrace = 200 * time.Millisecond
	// cutTimeout bounds how long a removal waits for the other servers.
	cutTimeout = 2 * time.Second
	// cutPause is the wait before a server that has not acted yet is asked again.
	cutPause = 5 * time.Millisecond
)

// Revoke adds the removal of a server to a transaction. From then on no server accepts its
// certificate. The gossip key must change in the same transaction.
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

// RecordRemoval stores that a member was removed, so that servers can tell the member. If
// the state merely lacked the member, the state could also be older than the member.
func (s *Membership) RecordRemoval(b *state.Batch, kind identity.Kind, uid string) error {
	id, err := identity.NewID(s.ca.Trust().Cluster(), kind, uid)
	if err != nil {
		return err
	}
	b.Put(&statev1.Revocation{Metadata: &v1.Metadata{Uid: uid}, Id: id.String()})
	return nil
}

// RevokeOthers removes all servers except this one, the only voter of a recovered cluster,
// and returns their names. It must be called before others can reach this server: the lost
// servers may be back, and may still have a majority.
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
		s.Keys().Request(snap, b, "servers that know them were lost: "+strings.Join(names, ", "))
		return s.RotateGossipKey(snap, b)
	})
	return names, err
}

// beginEpoch begins a new epoch. Nodes that have seen it ignore the removed servers. These
// may still have a majority, and could tell nodes to run outdated workloads.
func beginEpoch(snap *state.Snapshot, b *state.Batch) {
	old := snap.Cluster()
	cluster := proto.CloneOf(old)
	cluster.Status.Epoch++
	b.Update(cluster, old.GetMetadata().GetVersion())
}

// Route acts on a change: it cuts off members that were removed.
func (s *Membership) Route(c state.Change) {
	switch {
	case c.Kind == state.KindRevocation:
		s.routeRevocation(c)
	case c.Kind == state.KindNode && c.New == nil:
		s.cutNode(c.Old.GetMetadata().GetUid())
	}
}

// routeRevocation cuts off a server that was removed. A node is cut off when it
// leaves the state.
func (s *Membership) routeRevocation(c state.Change) {
	revoked, _ := c.New.(*statev1.Revocation)
	id, err := identity.ParseID(revoked.GetId())
	switch {
	case err != nil, id.Kind() != identity.KindServer:
	case id.Name() == s.UID:
		s.expel()
	default:
		s.cutServer(id)
	}
}

// cutNode closes the connections of a removed node: its session, streams and pulls.
func (s *Membership) cutNode(uid string) {
	if id, err := identity.NewID(s.ca.Trust().Cluster(), identity.KindNode, uid); err == nil {
		s.port.CloseIdentity(id)
	}
}

// cutServer closes the connections from and to a removed server, unless it is spared for
// now.
func (s *Membership) cutServer(id identity.ID) {
	if _, spared := s.spared.Load(id.Name()); spared {
		return
	}
	s.port.CloseIdentity(id)
	s.conns.Drop(id.Name())
	s.forgetServer(id.Name())
}

// CatchUp cuts off all members whose removal this server may have missed.
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
	for _, uid := range s.conns.Servers() {
		if snap.Revocation(uid) != nil {
			s.conns.Drop(uid)
			s.forgetServer(uid)
		}
	}
	s.acted.Store(max(s.acted.Load(), snap.Index()))
}

// Spare lets a server relay the answer to its own removal, if the call in ctx came through
// it. The caller calls done when it has an answer.
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

// ActedOn remembers the newest entry whose changes this server has acted on. An entry that
// removes a member also creates an event, whose version is the index of the entry.
func (s *Membership) ActedOn(changes []state.Change) {
	for _, c := range changes {
		if c.New != nil {
			s.acted.Store(max(s.acted.Load(), c.New.GetMetadata().GetVersion()))
		}
	}
}

// WaitActedOn waits until every reachable server has acted on the entry that created an
// event. An unreachable server applies this entry before it can take part again.
func (s *Membership) WaitActedOn(ctx context.Context, snap *state.Snapshot, event *v1.Event) {
	ctx, cancel := context.WithTimeout(ctx, cutTimeout)
	defer cancel()
	stored := snap.Get(state.KindEvent, event.GetMetadata().GetUid())
	if stored == nil {
		return
	}
	newest := stored.GetMetadata().GetVersion()
	acted := func(uid string) bool {
		if uid == s.UID {
			return s.acted.Load() >= newest
		}
		conn, err := s.conns.Ready(ctx, uid)
		if err != nil {
			return true // unreachable
		}
		there, err := v1.NewPeerServiceClient(conn).GetProgress(ctx, &v1.GetProgressRequest{})
		return err != nil || there.GetActedIndex() >= newest
	}
	for _, one := range s.Servers(snap) {
		uid := one.GetMetadata().GetUid()
		for !acted(uid) {
			select {
			case <-ctx.Done():
				s.Logger.WarnContext(ctx, "a server has not cut off a removed member yet", "server", one.GetMetadata().GetName())
				return
			case <-time.After(cutPause):
			}
		}
	}
}
