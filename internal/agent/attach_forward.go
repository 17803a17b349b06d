package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/spec"
)

// dialTimeout is how long a program in a replica may take to accept a connection.
const dialTimeout = 10 * time.Second

// serveForward connects the stream with a TCP port inside a replica. The agent dials from inside the replica's network.
// So programs that listen only on the replica's own 127.0.0.1 are reached as well, and so are replicas without an
// address.
func (a *Agent) serveForward(ctx context.Context, at *attachment, open *v1.OpenForward) error {
	r, task, conn, err := a.dialReplica(ctx, open)
	if err != nil {
		at.listen(nil)
		return at.refuse(err)
	}
	f := &forwarding{at: at, conn: conn, callerEnded: make(chan struct{})}
	defer f.reset() // unless it has ended in good order
	defer context.AfterFunc(ctx, f.reset)()
	at.listen(f.receive)
	started := &v1.ForwardResponse{Message: &v1.ForwardResponse_Started{Started: &v1.ForwardStarted{Replica: r.name()}}}
	if err := at.sendForward(started); err != nil {
		return err
	}
	broken, err := f.send()
	if err == nil && broken == nil {
		err = f.awaitCaller(ctx, r.driver, task)
	}
	if err != nil {
		return err
	}
	done := &v1.ForwardDone{}
	if broken != nil {
		f.reset()
		done.Error = sentence(fmt.Sprintf("the connection to port %d in replica %s broke: %v", open.GetStart().GetPort(), r.name(), cause(broken)))
	}
	f.close() // a blocked write must not delay the end
	if err := at.sendForward(&v1.ForwardResponse{Message: &v1.ForwardResponse_Done{Done: done}}); err != nil {
		return err
	}
	return at.finish()
}

// dialReplica connects to a port inside a replica: to its loopback addresses first, and then to the addresses that others
// know, for programs that listen only there.
func (a *Agent) dialReplica(ctx context.Context, open *v1.OpenForward) (*replica, string, *net.TCPConn, error) {
	r, task, err := a.runningTask(open.GetReplicaUid())
	if err != nil {
		return nil, "", nil, err
	}
	dialer, able := r.driver.(driver.Dialer)
	if !able {
		return nil, "", nil, fmt.Errorf("replica %s runs by driver %q, whose ports cannot be forwarded", r.name(), r.driver.Name())
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	port := uint16(open.GetStart().GetPort())
	for _, addr := range insideAddresses(r) {
		conn, err := dialer.Dial(ctx, task, "tcp", netip.AddrPortFrom(addr, port))
		switch {
		case err == nil:
			return r, task, conn.(*net.TCPConn), nil
		case errors.Is(err, driver.ErrNotRunning), errors.Is(err, driver.ErrNotFound):
			return nil, "", nil, notRunning(r)
		case ctx.Err() != nil:
			return nil, "", nil, fmt.Errorf("port %d in replica %s does not accept the connection within %s: its program is stuck or too busy", port, r.name(), dialTimeout)
		case !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENETUNREACH):
			return nil, "", nil, fmt.Errorf("connect to port %d in replica %s: %w", port, r.name(), err)
		}
	}
	return nil, "", nil, fmt.Errorf("nothing listens on TCP port %d in replica %s; see what its program says: %s",
		port, r.name(), spec.Hint(open.GetStart().GetNamespace(), "cloudless logs "+r.name()))
}

func insideAddresses(r *replica) []netip.Addr {
	all := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	_, status := r.running()
	for _, text := range status.GetAddresses() {
		if addr, err := netip.ParseAddr(text); err == nil {
			all = append(all, addr)
		}
	}
	return all
}

// forwarding connects a stream with a connection to a replica.
type forwarding struct {
	at   *attachment
	conn *net.TCPConn
	// ended is set when nothing more is written to the replica, and then callerEnded is closed. Only receive uses ended.
	ended       bool
	callerEnded chan struct{}
}

// receive writes a message of the caller to the replica. While the replica does not read, nothing more is received, and
// the stream's flow control stops the caller.
func (f *forwarding) receive(down *v1.AttachDown) {
	if f.ended {
		return
	}
	switch message := down.GetForward().GetMessage().(type) {
	case *v1.ForwardRequest_Data:
		if f.write(message.Data) == nil {
			return
		}
	case *v1.ForwardRequest_End:
		_ = f.conn.CloseWrite() // fails if the replica has reset the connection, which send reports
	default:
		return
	}
	f.ended = true
	close(f.callerEnded)
}

// write writes to the replica, however long it takes to read. Meanwhile nothing is received, so the end of the stream
// would go unnoticed. Therefore write sends empty messages, which fail once the server has ended the stream.
func (f *forwarding) write(data []byte) error {
	for len(data) > 0 {
		if err := f.conn.SetWriteDeadline(time.Now().Add(probeInterval)); err != nil {
			return err
		}
		n, err := f.conn.Write(data)
		data = data[n:]
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if err != nil && f.at.sendForward(forwardData(nil)) != nil {
			f.at.cancel()
			return err
		}
	}
	return nil
}

// send sends what the replica writes until the replica ends its side. broken says why the replica's side broke, and err
// why the stream did.
func (f *forwarding) send() (broken, err error) {
	buffer := make([]byte, maxChunk)
	for {
		n, broken := f.conn.Read(buffer)
		if n > 0 {
			if err := f.at.sendForward(forwardData(buffer[:n])); err != nil {
				return nil, err
			}
		}
		if errors.Is(broken, io.EOF) {
			return nil, f.at.sendForward(&v1.ForwardResponse{Message: &v1.ForwardResponse_End{End: true}})
		}
		if broken != nil {
			return broken, nil
		}
	}
}

// cause is the reason of the kernel, without the addresses inside the replica.
func cause(err error) error {
	if number, ok := errors.AsType[unix.Errno](err); ok {
		return number
	}
	return err
}

// awaitCaller returns when the caller has ended its side, too, or the replica has ended: an open connection would keep
// its network alive.
func (f *forwarding) awaitCaller(ctx context.Context, d driver.Driver, task string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	taskEnded := make(chan struct{})
	f.at.work.Go(func() {
		if _, err := d.Wait(ctx, task); err == nil || errors.Is(err, driver.ErrNotFound) {
			close(taskEnded)
		}
	})
	select {
	case <-f.callerEnded:
		return nil
	case <-taskEnded:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reset makes the connection break instead of end.
func (f *forwarding) reset() {
	_ = f.conn.SetLinger(0)
	f.close()
}

func (f *forwarding) close() { _ = f.conn.Close() } // fails only if it is closed already

func forwardData(data []byte) *v1.ForwardResponse {
	return &v1.ForwardResponse{Message: &v1.ForwardResponse_Data{Data: data}}
}

func (at *attachment) sendForward(response *v1.ForwardResponse) error {
	return at.send(&v1.AttachUp{Message: &v1.AttachUp_Forward{Forward: response}})
}
