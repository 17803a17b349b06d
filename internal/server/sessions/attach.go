package sessions

import (
	"context"
	"crypto/rand"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
)

// AttachStream is a stream that an agent has opened because Open asked for it.
type AttachStream = grpc.BidiStreamingServer[v1.AttachUp, v1.AttachDown]

// attachments are the streams that agents were asked for and have not opened yet.
type attachments struct {
	mu      sync.Mutex
	waiting map[string]*attachment
}

// attachment is a caller that waits for a stream.
type attachment struct {
	node     string
	stream   chan AttachStream
	released chan struct{}
}

// Open asks a node's agent to open a stream and waits for it. The stream lives until
// release is called.
func (s *Sessions) Open(ctx context.Context, node string, request *v1.Open) (stream AttachStream, release func(), err error) {
	current := s.connected.get(node)
	if current == nil {
		return nil, nil, core.Refuse(codes.Unavailable, "node %s is not connected", s.nodeName(node))
	}
	request.Id = rand.Text()
	waiting := &attachment{node: node, stream: make(chan AttachStream), released: make(chan struct{})}
	s.attachments.add(request.GetId(), waiting)
	release = sync.OnceFunc(func() {
		s.attachments.remove(request.GetId())
		close(waiting.released)
	})
	// The agent must know the replica first. The caller may have learned of the replica
	// before Route did.
	if replica := replicaOf(request); replica != "" {
		current.mark(replica)
	}
	current.open(request)
	select {
	case stream = <-waiting.stream:
		return stream, release, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-current.ctx.Done():
		err = core.Refuse(codes.Unavailable, "node %s was disconnected", s.nodeName(node))
	}
	release()
	return nil, nil, err
}

// replicaOf is the uid of the replica that a request is about.
func replicaOf(request *v1.Open) string {
	switch what := request.GetWhat().(type) {
	case *v1.Open_Logs:
		return what.Logs.GetReplicaUid()
	case *v1.Open_Exec:
		return what.Exec.GetReplicaUid()
	case *v1.Open_Copy:
		return what.Copy.GetReplicaUid()
	case *v1.Open_NetworkProbe:
		return what.NetworkProbe.GetReplicaUid()
	case *v1.Open_Forward:
		return what.Forward.GetReplicaUid()
	}
	return ""
}

func (s *Sessions) nodeName(uid string) string {
	if n := s.Store.Snapshot().Node(uid); n != nil {
		return n.GetMetadata().GetName()
	}
	return uid
}

func (a *attachments) add(id string, waiting *attachment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting[id] = waiting
}

func (a *attachments) remove(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waiting, id)
}

// take returns and removes the attachment with an id, or nil if another node was asked
// for the stream.
func (a *attachments) take(id, node string) *attachment {
	a.mu.Lock()
	defer a.mu.Unlock()
	waiting := a.waiting[id]
	if waiting == nil || waiting.node != node {
		return nil
	}
	delete(a.waiting, id)
	return waiting
}

// Attach hands the agent's stream to the caller that waits for it.
func (s *Sessions) Attach(stream AttachStream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	waiting := s.attachments.take(first.GetId(), core.Caller(stream.Context()).ID.Name())
	if waiting == nil {
		return core.Refuse(codes.NotFound, "nobody waits for this stream")
	}
	select {
	case waiting.stream <- stream:
	case <-waiting.released:
		return nil
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
	select {
	case <-waiting.released:
		return nil
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}
