// Package origin passes the connections of this node's ingress for buckets on to a server: the ingress has no certificate of
// the cluster, and does not know the servers.
//
// It guarantees that
// - only programs of this machine that may open the socket can reach the servers by it, and there only what routes serve;
// - a server that does not answer is replaced by the next one when a connection is made;
// - no connection outlives Run.
//
// The package must not know routes, buckets or HTTP, but for the answer that it gives when no server can be reached.
package origin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/ingress/origin"
	"github.com/cloudless/cloudless/internal/sleep"
)

// Options is what a Relay is made of.
type Options struct {
	// Dir is the folder of this cloud below /run, where the ingress expects the socket.
	Dir string
	// Dial connects to a server that answers, by mutual TLS and [origin.Protocol].
	Dial   func(ctx context.Context) (net.Conn, error)
	Logger *slog.Logger
}

// Relay passes connections on.
type Relay struct{ o Options }

// New returns a relay that does nothing before Run.
func New(o Options) (*Relay, error) {
	if o.Dir == "" || o.Dial == nil || o.Logger == nil {
		return nil, errors.New("the relay to the object store needs a folder, a dialer and a logger")
	}
	return &Relay{o}, nil
}

const (
	// retryPause is the pause before another attempt to listen.
	retryPause = 5 * time.Second
	// dialPatience is how long the servers may take to answer, all of them together.
	dialPatience = 20 * time.Second
	// refusalPatience is how long an ingress may take to read that there is no server.
	refusalPatience = 5 * time.Second
)

// Run listens until ctx ends.
func (r *Relay) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := r.serve(ctx)
		if ctx.Err() == nil {
			r.o.Logger.WarnContext(ctx, "routes to buckets are not answered on this node; trying again", "error", err)
			_ = sleep.For(ctx, retryPause)
		}
	}
	return nil
}

func (r *Relay) serve(ctx context.Context) error {
	listener, err := listen(filepath.Join(r.o.Dir, origin.Socket))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var open sync.WaitGroup
	defer open.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			_ = listener.Close()
			return err
		}
		open.Go(func() { r.pass(ctx, conn) })
	}
}

// listen opens the socket for this user alone.
func listen(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // of an agent that was killed
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("open the socket of the ingress: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = listener.Close()
		return nil, err
	}
	return listener, nil
}

// pass connects the ingress with a server until one of them ends it.
func (r *Relay) pass(ctx context.Context, from *net.UnixConn) {
	defer func() { _ = from.Close() }()
	dialing, cancel := context.WithTimeout(ctx, dialPatience)
	to, err := r.o.Dial(dialing)
	cancel()
	if err != nil {
		if ctx.Err() == nil {
			r.o.Logger.WarnContext(ctx, "a request for a bucket reaches no server", "error", err)
			refuse(from)
		}
		return
	}
	defer func() { _ = to.Close() }()
	defer context.AfterFunc(ctx, func() { _, _ = from.Close(), to.Close() })()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(from, to) // either end may leave at any time
		_ = from.Close()
	})
	_, _ = io.Copy(to, from)
	_ = to.Close()
	back.Wait()
}

// refuse answers the request of an ingress that no server can be reached.
func refuse(conn *net.UnixConn) {
	const text = "No server of the cluster can be reached.\n"
	_ = conn.SetDeadline(time.Now().Add(refusalPatience)) // fails if it is closed, which the next call reports
	_, err := io.WriteString(conn, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 5\r\nConnection: close\r\nContent-Length: "+
		strconv.Itoa(len(text))+"\r\n\r\n"+text)
	if err == nil && conn.CloseWrite() == nil {
		_, _ = io.Copy(io.Discard, conn) // a request that is not read would break the answer
	}
}
