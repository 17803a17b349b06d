package server

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/server/buckets"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/images"
	"github.com/cloudless/cloudless/internal/server/login"
	"github.com/cloudless/cloudless/internal/server/membership"
	"github.com/cloudless/cloudless/internal/server/relay"
	"github.com/cloudless/cloudless/internal/server/storage"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// serverService is the ServerService.
type serverService struct {
	v1.UnsafeServerServiceServer
	*collection[*v1.Server]
}

func newServers(s *Server) *collection[*v1.Server] {
	c := newCollection[*v1.Server](s, state.KindServer)
	c.labels, c.present = spec.ServerLabels, s.presentServer
	c.all = func(snap *state.Snapshot, _, after string) iter.Seq[*v1.Server] {
		if snap.Count(state.KindServer) == 0 {
			return slices.Values(s.membership.Servers(snap))
		}
		return snap.Servers(after)
	}
	return c
}

// peerService is the PeerService.
type peerService struct {
	v1.UnsafePeerServiceServer
	*membership.Membership
	*relay.PassedCalls
	images.Copies
	*login.Uses
	*buckets.Refusals
	*storage.News
}

func (s *serverService) GetServer(ctx context.Context, request *v1.GetServerRequest) (*v1.Server, error) {
	found, err := s.read(ctx, "", request.GetName())
	if err != nil {
		return nil, err
	}
	s.markUnreachable(ctx, []*v1.Server{found})
	return found, nil
}

func (s *serverService) ListServers(ctx context.Context, request *v1.ListServersRequest) (*v1.ListServersResponse, error) {
	items, next, err := s.list(ctx, request.GetPage(), selection[*v1.Server]{labels: request.GetLabels()})
	if err != nil {
		return nil, err
	}
	s.markUnreachable(ctx, items)
	return &v1.ListServersResponse{Items: items, Next: next}, nil
}

// joiningGrace is how long a new server may take to be heard of before it counts as
// unhealthy.
const joiningGrace = 30 * time.Second

// presentServers returns all servers as the API shows them: with their current status.
func (s *Server) presentServers(snap *state.Snapshot) []*v1.Server {
	var shown []*v1.Server
	for _, stored := range s.membership.Servers(snap) {
		shown = append(shown, s.presentServer(snap, stored))
	}
	return shown
}

func (s *Server) presentServer(snap *state.Snapshot, stored *v1.Server) *v1.Server {
	leader, _ := s.Consensus.Leader()
	members := s.Consensus.Servers()
	m, is := stored.GetMetadata(), stored.GetSpec()
	status := &v1.ServerStatus{
		Uid: m.GetUid(), Name: m.GetName(), Address: is.GetAddress(), Zone: is.GetZone(), Version: is.GetVersion(),
		Leader: leader.ID == m.GetUid(),
		Voter:  slices.ContainsFunc(members, func(o consensus.Server) bool { return o.ID == m.GetUid() && o.Voter }),
	}
	s.addHealth(status, leader.ID)
	if !status.GetHealthy() && !status.GetVoter() && s.Now().Sub(m.GetCreateTime().AsTime()).Abs() < joiningGrace {
		status.Joining, status.Unknown, status.Reason = true, false, joiningReason(snap, members)
	}
	return &v1.Server{ApiVersion: stored.GetApiVersion(), Kind: stored.GetKind(), Metadata: m, Spec: is, Status: status}
}

// addHealth adds the leader's view of a server's health, or why it is unknown.
func (s *Server) addHealth(status *v1.ServerStatus, leader string) {
	health := s.Consensus.Health()
	i := slices.IndexFunc(health, func(h consensus.Health) bool { return h.ID == status.GetUid() })
	switch {
	case i >= 0:
		status.Healthy, status.Lag, status.Reason = health[i].Healthy, health[i].Lag, health[i].Reason
		status.Unknown = health[i].Unknown
		status.LastTerm, status.LastIndex = health[i].LastTerm, health[i].LastIndex
		status.Full, status.ClockSkew = health[i].Full, presentSkew(health[i].Skew)
	case health != nil:
		status.Reason = reasonNotMember
	case status.GetUid() == s.UID:
		status.Healthy = true
	case s.Consensus.IsLeader():
		status.Unknown, status.Reason = true, "unknown: the leader has just begun to check"
	case leader == "":
		status.Unknown, status.Reason = true, "unknown: no server leads"
	default:
		status.Unknown, status.Reason = true, "only the leader knows"
	}
}

// joiningReason says what a server becomes once it has caught up.
func joiningReason(snap *state.Snapshot, taking []consensus.Server) string {
	voters := 0
	for _, one := range taking {
		if one.Voter {
			voters++
		}
	}
	if voters < spec.VotersOf(snap.Cluster().GetSpec()) {
		return "joining: it votes once it has caught up"
	}
	return "joining: it stands by once it has caught up"
}

// Why a server that does not vote is unhealthy: it is not in the Raft configuration yet, or
// the leader cannot connect to it.
const (
	reasonNotMember = "it does not take part yet"
	reasonUnreached = "the leader cannot reach it"
)

// markUnreachable marks the servers that never took part because this server cannot reach
// them at the addresses that they advertise.
func (s *Server) markUnreachable(ctx context.Context, servers []*v1.Server) {
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	var asking sync.WaitGroup
	for _, one := range servers {
		st := one.GetStatus()
		if st.GetHealthy() || st.GetVoter() || st.GetUnknown() || st.GetJoining() || st.GetLastIndex() > 0 {
			continue
		}
		asking.Go(func() {
			if _, err := s.membership.Progress(ctx, one.GetMetadata().GetUid()); err != nil {
				one.Status.Reason = reasonUnreached
			}
		})
	}
	asking.Wait()
}

// progressTimeout bounds the wait for the progress of other servers.
const progressTimeout = 2 * time.Second

// mostAdvanced asks all servers for the end of their logs and adds it to their statuses.
// Without a leader no server knows it of the others. It returns the server whose log is the
// longest of those that answer.
func (s *Server) mostAdvanced(ctx context.Context, servers []*v1.ServerStatus) (furthest *v1.ServerStatus) {
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	var asking sync.WaitGroup
	for _, one := range servers {
		asking.Go(func() {
			at, err := s.Consensus.Progress(), error(nil)
			if one.GetUid() != s.UID {
				at, err = s.membership.Progress(ctx, one.GetUid())
			}
			if err != nil {
				one.Reason = "it does not answer"
				return
			}
			one.LastTerm, one.LastIndex = at.LastTerm, at.LastIndex
		})
	}
	asking.Wait()
	return slices.MaxFunc(servers, func(a, b *v1.ServerStatus) int {
		return cmp.Or(cmp.Compare(a.GetLastTerm(), b.GetLastTerm()), cmp.Compare(a.GetLastIndex(), b.GetLastIndex()))
	})
}

// DeleteServer expels a server. First it copies to the other servers all images that only
// the removed one has. When the call returns, the server has no vote, the gossip key is a
// new one, and every reachable server has closed its connections to the removed one (see
// removal.go).
func (s *serverService) DeleteServer(ctx context.Context, request *v1.DeleteServerRequest) (*v1.Server, error) {
	removed, err := s.waitRemovable(ctx, request)
	if err == nil && !request.GetForce() {
		if err := s.images.SpreadBefore(ctx, removed.GetMetadata().GetUid()); err != nil {
			return nil, core.Refuse(codes.FailedPrecondition, "without server %s an image would not be safe: %s; repair the other servers first, or use --force", request.GetName(), err)
		}
		removed, err = s.waitRemovable(ctx, request) // the copies may have taken a while
	}
	if err != nil {
		return nil, err
	}
	uid := removed.GetMetadata().GetUid()
	if err := s.releaseNames(ctx, removed, request.GetForce()); err != nil {
		return nil, err
	}
	defer s.membership.Spare(ctx, uid)()
	var event *v1.Event
	after, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		if snap.Server(uid) == nil {
			return nil // another call removed it
		}
		var err error
		if event, err = s.membership.Revoke(ctx, b, removed, "it is no server of this cluster any more"); err != nil {
			return err
		}
		s.membership.Keys().Request(snap, b, "server "+removed.GetMetadata().GetName()+", which knows them, was removed")
		return s.membership.RotateGossipKey(snap, b)
	})
	if err != nil {
		return nil, err
	}
	if err := s.Consensus.Remove(ctx, uid); err != nil {
		// The state says that it is no member: the next leader takes it out of Raft.
		s.Logger.WarnContext(ctx, "a removed server could not be taken out of Raft yet", "server", removed.GetMetadata().GetName(), "error", err)
	}
	s.membership.WaitActedOn(ctx, after, event)
	return removed, nil
}

// releaseNames takes a server out of the group that keeps the names of objects while it still runs: two servers could not
// agree that one of them is gone.
func (s *Server) releaseNames(ctx context.Context, removed *v1.Server, force bool) error {
	if s.names == nil {
		return nil
	}
	name := removed.GetMetadata().GetName()
	err := s.names.Release(ctx, removed.GetMetadata().GetUid())
	if err != nil && !force {
		return core.Refuse(codes.FailedPrecondition, "without server %s the names of objects would not be safe: %s; repair the other servers first, or use --force", name, err)
	}
	if err != nil {
		s.Logger.WarnContext(ctx, "a removed server could not be taken out of the group that keeps the names of objects", "server", name, "error", err)
	}
	return nil
}

// removalTimeout is for a new leader or a busy machine, which learns the health of the
// others a moment later.
const removalTimeout = 3 * time.Second

// waitRemovable returns a server that can be removed, and waits a little until enough other
// servers are healthy.
func (s *serverService) waitRemovable(ctx context.Context, request *v1.DeleteServerRequest) (*v1.Server, error) {
	late := time.After(removalTimeout)
	for {
		snap, err := s.Consensus.Read(ctx)
		if err != nil {
			return nil, err
		}
		shown := s.presentServers(snap)
		i := slices.IndexFunc(shown, func(one *v1.Server) bool { return one.GetMetadata().GetName() == request.GetName() })
		if i < 0 {
			return nil, s.missing(snap, "", request.GetName())
		}
		if err := checkServerRemovable(shown[i], shown); err != nil {
			return nil, err
		}
		s.verifyHealth(ctx, shown)
		err = checkQuorumWithout(shown[i], shown)
		if err == nil || request.GetForce() {
			return shown[i], nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-late:
			return nil, err
		case <-time.After(removalTimeout / 20):
		}
	}
}

// verifyHealth asks the voters that count as healthy for a sign of life. One of them may
// have been lost a moment ago, and the removal of another voter would then cost the quorum.
func (s *Server) verifyHealth(ctx context.Context, servers []*v1.Server) {
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	var asking sync.WaitGroup
	for _, one := range servers {
		st := one.GetStatus()
		if !st.GetHealthy() || !st.GetVoter() || st.GetUid() == s.UID {
			continue
		}
		asking.Go(func() {
			if _, err := s.membership.Progress(ctx, st.GetUid()); err != nil {
				st.Healthy, st.Reason = false, "it does not answer"
			}
		})
	}
	asking.Wait()
}

// checkServerRemovable refuses a removal that would end the cluster.
func checkServerRemovable(removed *v1.Server, all []*v1.Server) error {
	name := removed.GetMetadata().GetName()
	if len(all) == 1 {
		return core.Refuse(codes.FailedPrecondition, "server %s is the only one: a cluster needs one; end it with: cloudless down --purge", name)
	}
	if removed.GetStatus().GetLeader() {
		return core.Refuse(codes.FailedPrecondition, "server %s leads the cluster: let another one lead first with: cloudless leader transfer", name)
	}
	return nil
}

// checkQuorumWithout refuses a removal that would leave too few healthy voters.
func checkQuorumWithout(removed *v1.Server, all []*v1.Server) error {
	if !removed.GetStatus().GetVoter() {
		return nil
	}
	voters, healthy := 0, 0
	for _, one := range all {
		if one.GetStatus().GetVoter() && one != removed {
			voters++
			if one.GetStatus().GetHealthy() {
				healthy++
			}
		}
	}
	if healthy < voters/2+1 {
		return core.Refuse(codes.FailedPrecondition, "without server %s only %d of %d voting servers would be healthy, too few to agree: repair the others first, or use --force", removed.GetMetadata().GetName(), healthy, voters)
	}
	return nil
}

// TransferLeader makes another server lead. It returns when one does.
func (s *serverService) TransferLeader(ctx context.Context, request *v1.TransferLeaderRequest) (*v1.TransferLeaderResponse, error) {
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	to := ""
	if name := request.GetTo(); name != "" {
		target := snap.ServerByName(name)
		if target == nil {
			return nil, s.missing(snap, "", name)
		}
		to = target.GetMetadata().GetUid()
		if to == s.UID {
			return &v1.TransferLeaderResponse{Leader: target}, nil
		}
	}
	if err := mayLead(to, s.presentServers(snap), spec.VotersOf(snap.Cluster().GetSpec())); err != nil {
		return nil, err
	}
	if err := s.Consensus.Transfer(ctx, to); err != nil {
		return nil, err
	}
	for {
		changed := s.Consensus.Changed()
		if leader, known := s.Consensus.Leader(); known && leader.ID != s.UID {
			return &v1.TransferLeaderResponse{Leader: snap.Server(leader.ID)}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(relay.LeaderPatience):
			return nil, core.Refuse(codes.Unavailable, "no other server has become the leader; see: cloudless cluster status")
		}
	}
}

// moreVotersHint says how to let more than one server vote.
const moreVotersHint = "desire more with: cloudless cluster config set desiredVoters=3"

// mayLead refuses a server that cannot lead, and says what would change that. If to is
// empty, any server may lead.
func mayLead(to string, all []*v1.Server, desired int) error {
	voters := 0
	for _, one := range all {
		if one.GetStatus().GetVoter() {
			voters++
		}
	}
	for _, one := range all {
		name, st := one.GetMetadata().GetName(), one.GetStatus()
		switch {
		case st.GetUid() != to:
		case !st.GetHealthy() && !st.GetUnknown() && !st.GetJoining():
			return core.Refuse(codes.FailedPrecondition, "server %s cannot lead now: %s", name, st.GetReason())
		case st.GetVoter():
		case desired == 1 && st.GetHealthy():
			return core.Refuse(codes.FailedPrecondition, "server %s does not vote and cannot lead, because one voting server is desired: %s", name, moreVotersHint)
		case voters >= desired && st.GetHealthy():
			return core.Refuse(codes.FailedPrecondition, "server %s does not vote and cannot lead, because enough others vote (%d of the desired %d): "+
				"remove one of them with: cloudless server rm NAME, or desire more with: cloudless cluster config set desiredVoters=NUMBER", name, voters, desired)
		default:
			return core.Refuse(codes.FailedPrecondition, "server %s does not vote and cannot lead: wait until it has caught up", name)
		}
	}
	if desired == 1 && len(all) > 1 && voters < 2 {
		return core.Refuse(codes.FailedPrecondition, "no other server votes and could lead, because one voting server is desired: %s", moreVotersHint)
	}
	if voters < 2 {
		return core.Refuse(codes.FailedPrecondition, "there is no other voting server that could lead: add one with: cloudless join ADDRESS --role server")
	}
	return nil
}

// serverProblems says what is wrong with the servers and what to do about it.
func serverProblems(servers []*v1.ServerStatus, desired int) (tolerated int, problems []string) {
	voters, healthy, coming := 0, 0, 0 // coming servers are joining, or about to get their vote
	leader, settled := false, true     // settled means that the health of all servers is known
	for _, one := range servers {
		leader = leader || one.GetLeader()
		if one.GetVoter() {
			voters++
			if one.GetHealthy() {
				healthy++
			}
		} else if one.GetHealthy() || one.GetJoining() || one.GetUnknown() {
			coming++
		}
		settled = settled && !one.GetJoining() && !one.GetUnknown()
	}
	tolerated = max(0, healthy-(voters/2+1))
	for _, one := range servers {
		if one.GetHealthy() || one.GetJoining() || one.GetUnknown() || !leader {
			continue
		}
		again := "start it again"
		if one.GetReason() == reasonUnreached {
			again = "open the network to it, or start it again with --advertise if its address has changed"
		}
		problems = append(problems, fmt.Sprintf("server %s at %s is not healthy: %s; %s, or remove it with: cloudless server rm %s",
			one.GetName(), one.GetAddress(), strings.TrimSuffix(one.GetReason(), "."), again, one.GetName()))
	}
	problems = append(problems, diskProblems(servers)...)
	problems = append(problems, clockProblems(servers)...)
	switch {
	case !leader:
		problems = append(problems, noLeaderProblem(voters))
	case voters+coming < desired:
		enough := ""
		if len(servers) == 1 {
			enough = "; if one is enough: cloudless cluster config set desiredVoters=1"
		}
		problems = append(problems, fmt.Sprintf("%d of the desired %d servers vote: add servers with: cloudless token create --role server, and on the new machine cloudless join ADDRESS --role server%s",
			voters, desired, enough))
	}
	if leader && tolerated == 0 && settled && len(servers) > 1 {
		stops := "the loss of one more voting server would stop every change"
		if voters == 1 && desired == 1 {
			stops = "the loss of the only voting server would stop every change: " + moreVotersHint
		}
		problems = append(problems, stops)
	}
	return tolerated, problems
}

// noLeaderProblem says what to do when no server leads.
func noLeaderProblem(voters int) string {
	if voters < 2 {
		return "no server leads, so nothing can be changed: the only voting server must run: start it, if it is not just starting"
	}
	return fmt.Sprintf("this server reaches no leader, so nothing can be changed: %d of the %d voting servers must run and reach each other: start those that are missing with: cloudless server --data-dir DIR; "+
		"only if they are lost for good, let one that is left go on alone with: cloudless cluster recover (docs/servers.md says how, and what is lost)", voters/2+1, voters)
}
