package containerd

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Dial connects from the network namespace of the task's first process.
func (d *Driver) Dial(ctx context.Context, id, network string, address netip.AddrPort) (net.Conn, error) {
	if _, err := d.container(ctx, id); err != nil {
		return nil, err
	}
	namespace, err := d.openOfProcess(ctx, id, "ns/net", unix.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("open the network of task %s: %w", id, err)
	}
	defer func() { _ = namespace.Close() }()
	type result struct {
		conn net.Conn
		err  error
	}
	dialled := make(chan result)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine and never runs others in this namespace
		conn, err := dialIn(ctx, namespace, network, address)
		dialled <- result{conn, err}
	}()
	r := <-dialled
	return r.conn, r.err
}

// dialIn moves the calling thread into the namespace. A socket belongs to the namespace of the thread that makes it; for
// a single address, that is the caller's.
func dialIn(ctx context.Context, namespace *os.File, network string, address netip.AddrPort) (net.Conn, error) {
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("enter the network: %w", err)
	}
	return (&net.Dialer{}).DialContext(ctx, network, address.String())
}
