package names

import (
	"context"
	"errors"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/server/core"
)

// ProposeNames implements NamesService.
func (g *Group) ProposeNames(ctx context.Context, request *v1.ProposeNamesRequest) (*v1.ProposeNamesResponse, error) {
	results, err := g.agree(ctx, request.GetEntry())
	if err != nil {
		return nil, refusal(err)
	}
	return &v1.ProposeNamesResponse{Results: results}, nil
}

// GetNamesIndex implements NamesService.
func (g *Group) GetNamesIndex(ctx context.Context, _ *v1.GetNamesIndexRequest) (*v1.GetNamesIndexResponse, error) {
	index, err := g.confirmed.index(ctx)
	if err != nil {
		return nil, refusal(err)
	}
	return &v1.GetNamesIndexResponse{Index: index}, nil
}

// GetNamesProgress implements NamesService.
func (g *Group) GetNamesProgress(context.Context, *v1.GetNamesProgressRequest) (*v1.GetNamesProgressResponse, error) {
	p := g.group.Progress()
	answer := &v1.GetNamesProgressResponse{
		LastTerm: p.LastTerm, LastIndex: p.LastIndex, AppliedIndex: p.AppliedIndex, LastContact: int64(p.LastContact), Full: p.Full,
	}
	for _, h := range g.group.Health() {
		answer.Members = append(answer.Members, &v1.NamesMember{Server: h.ID, Healthy: h.Healthy, Unknown: h.Unknown, Reason: h.Reason, Lag: h.Lag})
	}
	return answer, nil
}

// Health returns how the members are, as their leader sees it; nothing while there is none.
func (g *Group) Health(ctx context.Context) ([]*v1.NamesMember, error) {
	leader := g.Leader()
	if leader == "" {
		return nil, nil
	}
	if leader == g.id {
		own, err := g.GetNamesProgress(ctx, &v1.GetNamesProgressRequest{})
		return own.GetMembers(), err
	}
	conn, err := g.conn(ctx, leader)
	if err != nil {
		return nil, err
	}
	answer, err := v1.NewNamesServiceClient(conn).GetNamesProgress(ctx, &v1.GetNamesProgressRequest{})
	return answer.GetMembers(), err
}

// RemoveNamesMember implements NamesService.
func (g *Group) RemoveNamesMember(ctx context.Context, request *v1.RemoveNamesMemberRequest) (*v1.RemoveNamesMemberResponse, error) {
	if err := g.remove(ctx, request.GetServer()); err != nil {
		return nil, refusal(err)
	}
	return &v1.RemoveNamesMemberResponse{}, nil
}

// refusal is the status of an error. A server that stops leads no more: the caller may try another one.
func refusal(err error) error {
	if errors.Is(err, consensus.ErrShutdown) && !errors.Is(err, consensus.ErrUncertain) {
		err = &consensus.NotLeaderError{}
	}
	return core.StatusOf(err)
}

// progressOf asks another server how far it is.
func (g *Group) progressOf(ctx context.Context, server string) (consensus.Progress, error) {
	conn, err := g.conn(ctx, server)
	if err != nil {
		return consensus.Progress{}, err
	}
	p, err := v1.NewNamesServiceClient(conn).GetNamesProgress(ctx, &v1.GetNamesProgressRequest{})
	return consensus.Progress{
		LastTerm: p.GetLastTerm(), LastIndex: p.GetLastIndex(), AppliedIndex: p.GetAppliedIndex(),
		LastContact: time.Duration(p.GetLastContact()), Full: p.GetFull(),
	}, err
}
