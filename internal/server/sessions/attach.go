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

// AttachStream is a log, exec or copy stream that an agent has opened.
type AttachStream = grpc.BidiStreamingServer[v1.AttachUp, v1.AttachDown]

// attachments are the log, exec and copy streams that agents have been asked to open
// and have not opened yet.
type attachments struct {
	mu      sync.Mutex
	waiting map[string]*attachment
}

type attachment struct {
	node     string
	stream   chan AttachStream
	released chan struct{}
}

// Open asks a node's agent for a stream and waits for it. The stream lives
// until release is called.
func (s *Sessions) Open(ctx context.Context, node string, request *v1.Open) (stream AttachStream, release func(), err error) {
	current := s.connected.get(node)
	if current == nil {
		return nil, nil, core.Refuse(codes.Unavailable, "node %s is not connected", s.nodeName(node))
	}
	request.Id = rand.Text()
	wanted := &attachment{node: node, stream: make(chan AttachStream), released: make(chan struct{})}
	s.attachments.add(request.GetId(), wanted)
	release = sync.OnceFunc(func() {
		s.attachments.remove(request.GetId())
		close(wanted.released)
	})
	// What the agent must know about the replica goes first, also when the
	// caller has heard of the replica before the loop that tells agents.
	current.mark(attachedReplica(request))
	current.open(request)
	select {
	case stream = <-wanted.stream:
		return stream, release, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-current.ctx.Done():
		err = core.Refuse(codes.Unavailable, "node %s was disconnected", s.nodeName(node))
	}
	release()
	return nil, nil, err
}

func attachedReplica(request *v1.Open) string {
	if logs := request.GetLogs(); logs != nil {
		return logs.GetReplicaUid()
	}
	if files := request.GetCopy(); files != nil {
		return files.GetReplicaUid()
	}
	return request.GetExec().GetReplicaUid()
}

func (s *Sessions) nodeName(uid string) string {
	if n := s.Store.Snapshot().Node(uid); n != nil {
		return n.GetMetadata().GetName()
	}
	return uid
}

func (a *attachments) add(id string, wanted *attachment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting[id] = wanted
}

func (a *attachments) remove(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waiting, id)
}

// take gives what waits under an id to the node that was asked, and to no other.
func (a *attachments) take(id, node string) *attachment {
	a.mu.Lock()
	defer a.mu.Unlock()
	wanted := a.waiting[id]
	if wanted == nil || wanted.node != node {
		return nil
	}
	delete(a.waiting, id)
	return wanted
}

// Attach hands the agent's stream to whoever waits for it.
func (s *Sessions) Attach(stream AttachStream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	wanted := s.attachments.take(first.GetId(), core.Caller(stream.Context()).ID.Name())
	if wanted == nil {
		return core.Refuse(codes.NotFound, "nobody waits for this stream")
	}
	select {
	case wanted.stream <- stream:
	case <-wanted.released:
		return nil
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
	select {
	case <-wanted.released:
		return nil
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}
