// Package trust is the AuthorityService: it shows the keys that the cluster's trust is based on, and begins to replace
// them. The leader's loop does the rest (package control/authority). No answer contains a key.
package trust

import (
	"context"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/authority"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// Service is the AuthorityService.
type Service struct {
	v1.UnsafeAuthorityServiceServer
	*core.Core
	keys    authority.Keys
	reports func(context.Context) authority.Reports
}

// New makes the service of a server. The reports are those of the members.
func New(c *core.Core, keys authority.Keys, reports func(context.Context) authority.Reports) *Service {
	return &Service{Core: c, keys: keys, reports: reports}
}

// GetAuthority shows the keys, and what a rotation waits for. Only the leader hears the nodes, so another server shows
// the members without saying what it cannot know.
func (s *Service) GetAuthority(ctx context.Context, _ *v1.GetAuthorityRequest) (*v1.AuthorityReport, error) {
	return s.report(ctx, s.Store.Snapshot()), nil
}

func (s *Service) report(ctx context.Context, snap *state.Snapshot) *v1.AuthorityReport {
	var reports authority.Reports
	known := authority.Running(snap) && s.Consensus.IsLeader()
	if known {
		reports = s.reports(ctx)
	}
	r := authority.Report(snap, reports, s.keys.Sealer)
	if !known {
		r.Waiting, r.KekWaiting = nil, nil
	}
	return r
}

// RotateAuthority begins to replace keys.
func (s *Service) RotateAuthority(ctx context.Context, request *v1.RotateAuthorityRequest) (*v1.AuthorityReport, error) {
	if !request.GetCa() && !request.GetKek() && len(request.GetLeaveBehind()) == 0 && !request.GetLeaveUnreachable() {
		return nil, core.Refuse(codes.InvalidArgument, "nothing is to be replaced: set ca, kek or both")
	}
	left := request.GetLeaveBehind()
	if request.GetLeaveUnreachable() {
		left = append(left, s.unreachable(ctx)...)
	}
	actor := s.Actor(ctx)
	reason := "asked for by " + actor
	snap, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		if err := authority.LeaveBehind(snap, b, left); err != nil {
			return core.Refuse(codes.NotFound, "%s", err)
		}
		if request.GetCa() && snap.Authority().GetStep() == "" {
			if err := s.keys.Begin(s.Now(), snap, b, reason, actor); err != nil {
				return core.Refuse(codes.Unavailable, "%s", err)
			}
		}
		if request.GetKek() && snap.KeyEncryptionKey().GetStep() == "" {
			if err := s.keys.BeginKEK(s.Now(), snap, b, reason, actor); err != nil {
				return core.Refuse(codes.Unavailable, "%s", err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.report(ctx, snap), nil
}

// unreachable are the members that a rotation waits for and that cannot be reached.
func (s *Service) unreachable(ctx context.Context) (uids []string) {
	r := s.report(ctx, s.Store.Snapshot())
	for _, m := range append(r.GetWaiting(), r.GetKekWaiting()...) {
		if !m.GetReachable() {
			uids = append(uids, m.GetUid())
		}
	}
	return uids
}
