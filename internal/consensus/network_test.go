package consensus_test

import (
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/cloudless/cloudless/internal/consensus"
)

// wire is a network of two: what one dials, the other accepts.
type wire struct {
	dialed, accepted chan net.Conn
	closed           chan struct{}
}

func (w wire) Dial(string, string, time.Duration) (net.Conn, error) {
	here, there := net.Pipe()
	w.dialed <- there
	return here, nil
}

func (w wire) Accept() (net.Conn, error) {
	select {
	case conn := <-w.accepted:
		return conn, nil
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

func (w wire) Close() error {
	close(w.closed)
	return nil
}

// A heartbeat must not store its term on a closed disk: raft would panic.
func TestTransportWaitsForHeartbeatsBeforeClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conns := make(chan net.Conn, 1)
		leader := consensus.NewTransport(wire{dialed: conns, closed: make(chan struct{})})
		follower := consensus.NewTransport(wire{accepted: conns, closed: make(chan struct{})})
		writing, written, closed := make(chan struct{}), false, false
		follower.SetHeartbeatHandler(func(heartbeat raft.RPC) {
			<-writing
			written = true
			heartbeat.Respond(&raft.AppendEntriesResponse{}, nil)
		})
		go func() {
			beat := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ID: []byte("leader"), Addr: []byte("here")}, Term: 7}
			_ = leader.AppendEntries("follower", "", beat, &raft.AppendEntriesResponse{})
		}()
		synctest.Wait()

		go func() {
			_ = follower.Close()
			closed = true
		}()
		synctest.Wait()
		if written || closed {
			t.Errorf("written %t, closed %t: neither before the heartbeat is handled", written, closed)
		}
		close(writing)
		synctest.Wait()
		if !written || !closed {
			t.Errorf("written %t, closed %t: both when the heartbeat is handled", written, closed)
		}
		if err := leader.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute) // the transports' own goroutines poll for the end
	})
}

// With several messages in flight, raft may wait forever for answers that no goroutine reads any more, see
// networkInFlight.
func TestOneMessageIsInFlightAtATime(t *testing.T) {
	conns := make(chan net.Conn, 1)
	leader := consensus.NewTransport(wire{dialed: conns, closed: make(chan struct{})})
	defer leader.Close()
	if _, err := leader.AppendEntriesPipeline("follower", ""); !errors.Is(err, raft.ErrPipelineReplicationNotSupported) {
		t.Errorf("several messages can be sent before one is answered: %v", err)
	}
}
