package server

import (
	"context"

	"github.com/cloudless/cloudless/internal/state"
)

// dispatch tells the parts of the server about every change of the state. One loop
// serves all sessions, so that a change costs the same however many agents are
// connected.
func (s *Server) dispatch(ctx context.Context) error {
	for feed := s.Store.Follow(); ; {
		news, err := feed.Next(ctx)
		if err != nil {
			return err
		}
		if news.Resync {
			s.catchUp(news.Snapshot)
			continue
		}
		for _, c := range news.Changes {
			s.route(c)
		}
		s.membership.ActedOn(news.Changes)
	}
}

// catchUp does what route does, for all changes that this server may have missed.
func (s *Server) catchUp(snap *state.Snapshot) {
	s.sessions.CatchUp(snap)
	s.revoked.RevokeMissing(snap)
	s.membership.CatchUp(snap)
}

func (s *Server) route(c state.Change) {
	s.sessions.Route(c)
	s.membership.Route(c)
	if c.Kind == state.KindToken && c.New == nil {
		s.revoked.Revoke(c.Old.GetMetadata().GetUid())
	}
}
