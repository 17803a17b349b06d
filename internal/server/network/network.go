// Package network answers how nodes and replicas reach each other. It asks the agents of the nodes, each on a stream of
// its own, and puts their answers together.
//
// It knows no session of an agent, only how to ask for a stream. It changes nothing in the state.
package network

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
)

// AgentStream is a stream that an agent has opened because the server asked it to.
type AgentStream = grpc.BidiStreamingServer[v1.AttachUp, v1.AttachDown]

// Service serves the ConnectivityService.
type Service struct {
	v1.UnimplementedConnectivityServiceServer
	*core.Core
	attach func(ctx context.Context, node string, open *v1.Open) (stream AgentStream, release func(), err error)
}

// New makes the service. attach asks a node's agent to open a stream and waits for it. The stream lives until release is
// called.
func New(c *core.Core, attach func(ctx context.Context, node string, open *v1.Open) (stream AgentStream, release func(), err error)) *Service {
	return &Service{Core: c, attach: attach}
}

const (
	// askTime is how long a node may take to answer.
	askTime = 10 * time.Second
	// askAtOnce is how many nodes are asked at the same time.
	askAtOnce = 64
)

// ask asks an agent for one message.
func (s *Service) ask(ctx context.Context, node *v1.Node, open *v1.Open) (*v1.AttachUp, error) {
	late := fmt.Errorf("node %s did not answer within %s", node.GetMetadata().GetName(), askTime)
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, late)
	defer cancel()
	stream, release, err := s.attach(ctx, node.GetMetadata().GetUid(), open)
	if err != nil {
		return nil, because(ctx, err)
	}
	defer release()
	// Recv ends only with the agent's context, so the stream is released when time is up.
	defer context.AfterFunc(ctx, release)()
	up, err := stream.Recv()
	if err != nil {
		return nil, because(ctx, err)
	}
	if refusal, ok := up.GetMessage().(*v1.AttachUp_Error); ok {
		return nil, errors.New(refusal.Error)
	}
	return up, nil
}

// because says why a node has not answered, in words for users.
func because(ctx context.Context, err error) error {
	if late := context.Cause(ctx); late != nil {
		return late
	}
	if refusal, ok := errors.AsType[*core.Refusal](err); ok {
		return refusal
	}
	return errors.New(status.Convert(err).Message())
}

// forEach calls f for all nodes, for several of them at the same time.
func forEach(nodes []*v1.Node, f func(i int, n *v1.Node)) {
	turns := make(chan struct{}, askAtOnce)
	var work sync.WaitGroup
	for i, n := range nodes {
		turns <- struct{}{}
		work.Go(func() {
			defer func() { <-turns }()
			f(i, n)
		})
	}
	work.Wait()
}
