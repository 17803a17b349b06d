package oneport

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudless/cloudless/internal/identity"
)

func TestStalledHandshakesDelayNoOtherClient(t *testing.T) {
	c := newCluster(t)
	o := c.options(t)
	o.MaxHandshakes = 2
	s := serve(t, c, o)
	hello := clientHello(t)
	for range 3 * o.MaxHandshakes {
		for _, says := range [][]byte{nil, hello[:len(hello)/2], hello} {
			stalled, err := net.Dial("tcp", s.port.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer stalled.Close()
			if _, err := stalled.Write(says); err != nil {
				t.Fatal(err)
			}
			if len(says) == len(hello) {
				// An answer means that the server waits for this client in the middle of the handshake.
				if _, err := io.ReadFull(stalled, make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if got, err := s.get(t, identity.ClientTLS(c.ca.Trust(), nil), true); err != nil {
		t.Errorf("a request beside stalled handshakes: %q, %v", got, err)
	}
}

// clientHello returns the first message of a client.
func clientHello(t *testing.T) []byte {
	t.Helper()
	near, far := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Client(near, identity.JoinTLS(identity.Fingerprint{})).Handshake()
	}()
	header := make([]byte, 5)
	if _, err := io.ReadFull(far, header); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(header[3])<<8|int(header[4]))
	if _, err := io.ReadFull(far, body); err != nil {
		t.Fatal(err)
	}
	_ = far.Close()
	<-done
	_ = near.Close()
	return append(bytes.Clone(header), body...)
}

// pipes is a listener in memory, so that the test controls the time.
type pipes struct {
	incoming chan net.Conn
	failures chan error
	closing  sync.Once
	closed   chan struct{}
}

func newPipes() *pipes {
	return &pipes{incoming: make(chan net.Conn), failures: make(chan error, 1), closed: make(chan struct{})}
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.incoming:
		return c, nil
	case err := <-p.failures:
		return nil, err
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	err := net.ErrClosed
	p.closing.Do(func() {
		close(p.closed)
		err = nil
	})
	return err
}

func (p *pipes) dial() net.Conn {
	near, far := net.Pipe()
	p.incoming <- far
	return near
}

// run runs a port over pipes. Its owner must end it: synctest fails a test that leaves a goroutine behind.
func run(t *testing.T, o Options) (*Port, *pipes, <-chan error) {
	t.Helper()
	listener := newPipes()
	port := newPort(listener, o)
	ran := make(chan error, 1)
	go func() { ran <- port.Run(t.Context()) }()
	return port, listener, ran
}

func stop(t *testing.T, port *Port, ran <-chan error) {
	t.Helper()
	if err := port.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := <-ran; err != nil {
		t.Errorf("Run: %v", err)
	}
	synctest.Wait() // for the servers to close what they took
	port.mu.Lock()
	defer port.mu.Unlock()
	if len(port.conns) != 0 || len(port.slots) != 0 {
		t.Errorf("left behind: %d connections, %d slots", len(port.conns), len(port.slots))
	}
	g := port.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.waiting + g.shaking.Len() + g.strangers.Len() + len(g.byRemote) + g.calls; n != 0 {
		t.Errorf("the gate still counts %d", n)
	}
}

func TestSilentClientIsCutOffAfterItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		port, listener, ran := run(t, newCluster(t).options(t))
		began := time.Now()
		silent := listener.dial()
		if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("a silent client reads %v", err)
		}
		if took := time.Since(began); took != defaultHandshakeTimeout {
			t.Errorf("cut off after %s, want %s", took, defaultHandshakeTimeout)
		}
		stop(t, port, ran)
	})
}

func TestConnectionThatNoServerAcceptsIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		port, listener, ran := run(t, c.options(t))
		client := tls.Client(listener.dial(), identity.ClientTLS(c.ca.Trust(), nil))
		if err := client.Handshake(); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Read(make([]byte, 1)); err == nil {
			t.Error("somebody answered")
		}
		stop(t, port, ran)
	})
}

// A rush is handled a few at a time: the certificate is fetched in the part of the handshake that is limited.
func TestRushIsAdmittedAFewAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, rush = 3, 20
		c := newCluster(t)
		o := c.options(t)
		o.MaxHandshakes = most
		source := o.Certificate
		var working, peak atomic.Int64
		o.Certificate = func() (*tls.Certificate, error) {
			peak.Store(max(peak.Load(), working.Add(1)))
			defer working.Add(-1)
			time.Sleep(time.Second)
			return source()
		}
		port, listener, ran := run(t, o)
		done := make(chan error)
		for range rush {
			raw := listener.dial()
			go func() {
				defer raw.Close()
				done <- tls.Client(raw, identity.ClientTLS(c.ca.Trust(), nil)).Handshake()
			}()
			go func() {
				if conn, err := port.HTTP().Accept(); err == nil {
					_ = conn.Close()
				}
			}()
		}
		began := time.Now()
		for range rush {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if peak.Load() != most {
			t.Errorf("%d handshakes were worked on at once, want %d", peak.Load(), most)
		}
		if took, want := time.Since(began), 7*time.Second; took != want {
			t.Errorf("%d handshakes of 1 s, %d at a time, took %s, want %s", rush, most, took, want)
		}
		stop(t, port, ran)
	})
}

func TestShortageOfFilesIsWaitedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		port, listener, ran := run(t, c.options(t))
		listener.failures <- &net.OpError{Op: "accept", Err: syscall.EMFILE}
		client := tls.Client(listener.dial(), identity.ClientTLS(c.ca.Trust(), nil))
		if err := client.Handshake(); err != nil {
			t.Error(err)
		}
		_ = client.Close()
		stop(t, port, ran)
	})
}

func TestBrokenListenerEndsRunWithItsError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, listener, ran := run(t, newCluster(t).options(t))
		broken := errors.New("broken")
		listener.failures <- broken
		if err := <-ran; !errors.Is(err, broken) {
			t.Errorf("Run: %v", err)
		}
	})
}

// When Run ends, established connections go on until Close, so that servers can end them gracefully.
func TestEstablishedConnectionsOutliveRunButNotClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		listener := newPipes()
		port := newPort(listener, c.options(t))
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- port.Run(ctx) }()

		silent := listener.dial()
		client := tls.Client(listener.dial(), identity.ClientTLS(c.ca.Trust(), nil))
		go func() { _ = client.Handshake() }()
		server, err := port.HTTP().Accept()
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("Run: %v", err)
		}
		if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("an unfinished handshake was left: %v", err)
		}
		for _, l := range []net.Listener{port.GRPC(), port.HTTP()} {
			if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept after the end: %v", err)
			}
		}
		go func() { _, _ = io.WriteString(server, "goodbye") }()
		got := make([]byte, 7)
		if _, err := io.ReadFull(client, got); err != nil || string(got) != "goodbye" {
			t.Errorf("read %q, %v", got, err)
		}
		for range 2 {
			if err := port.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
		if _, err := client.Read(got); !errors.Is(err, io.EOF) {
			t.Errorf("after Close: %v", err)
		}
	})
}
