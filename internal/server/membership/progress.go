package membership

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
)

// GetProgress returns the progress of this server.
func (s *Membership) GetProgress(ctx context.Context, request *v1.GetProgressRequest) (*v1.GetProgressResponse, error) {
	if request.GetLeading() {
		if _, err := s.Consensus.Read(ctx); err != nil {
			return nil, err
		}
	}
	p := s.Consensus.Progress()
	leader, _ := s.Consensus.Leader()
	keys := s.keyReport()
	return &v1.GetProgressResponse{
		LastTerm: p.LastTerm, LastIndex: p.LastIndex, AppliedIndex: p.AppliedIndex, LastContact: int64(p.LastContact),
		Full: p.Full, Time: timestamppb.New(s.Now()), Instance: s.instance,
		ActedIndex: s.acted.Load(), Leader: leader.ID, Authorities: keys.Authorities, KeyEncryptionKeys: keys.Keys,
	}, nil
}

// Progress asks another server for its progress.
func (s *Membership) Progress(ctx context.Context, server string) (consensus.Progress, error) {
	conn, err := s.conns.Ready(ctx, server)
	if err != nil {
		return consensus.Progress{}, err
	}
	asked := s.Now()
	p, err := v1.NewPeerServiceClient(conn).GetProgress(ctx, &v1.GetProgressRequest{})
	if err != nil {
		return consensus.Progress{}, err
	}
	return consensus.Progress{
		LastTerm: p.GetLastTerm(), LastIndex: p.GetLastIndex(), AppliedIndex: p.GetAppliedIndex(), LastContact: time.Duration(p.GetLastContact()),
		Full: p.GetFull(), Skew: skewOf(p.GetTime(), asked, s.Now()),
	}, nil
}

// skewOf returns how far another clock is ahead of ours, given the time that it said
// between two moments of ours.
func skewOf(said *timestamppb.Timestamp, asked, answered time.Time) time.Duration {
	if said == nil {
		return 0 // the other server does not send its time
	}
	return said.AsTime().Sub(asked.Add(answered.Sub(asked) / 2))
}
