package ingress

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/ingress/http1"
	"github.com/cloudless/cloudless/internal/ingress/origin"
	"github.com/cloudless/cloudless/internal/sleep"
)

// choices are endpoints of which one is chosen at random, by weight.
type choices struct {
	all []choice
	sum []int // of the weights up to and including each of all
}

type choice struct {
	to     *endpoint
	id     string
	weight int
	meter  *meter
}

func (c *choices) add(one choice) {
	c.all = append(c.all, one)
	total := max(one.weight, 0)
	if n := len(c.sum); n > 0 {
		total += c.sum[n-1]
	}
	c.sum = append(c.sum, total)
}

func (c *choices) total() int {
	if len(c.sum) == 0 {
		return 0
	}
	return c.sum[len(c.sum)-1]
}

// index chooses one by weight. There must be one with a weight.
func (c *choices) index() int { return sort.SearchInts(c.sum, rand.IntN(c.total())+1) }

// pick chooses one that was not tried. It avoids those to which connecting has failed just now, unless there are no others.
func (c *choices) pick(tried []*endpoint) (choice, bool) {
	if c.total() == 0 {
		return choice{}, false
	}
	if one := c.all[c.index()]; !slices.Contains(tried, one.to) && !one.to.failing() {
		return one, true
	}
	var usable, failing choices
	for _, one := range c.all {
		switch {
		case one.weight <= 0 || slices.Contains(tried, one.to):
		case one.to.failing():
			failing.add(one)
		default:
			usable.add(one)
		}
	}
	if len(usable.all) == 0 {
		usable = failing
	}
	if usable.total() == 0 {
		return choice{}, false
	}
	return usable.all[usable.index()], true
}

const (
	// failingFor is how long an endpoint is avoided after connecting to it has failed.
	failingFor = 2 * time.Second
	// idleBackend is how long a connection to a backend is kept that no request uses, and mostIdle how many are.
	idleBackend = time.Minute
	mostIdle    = 256
	backendHead = 256 << 10
)

// endpoint is an address where a service is, with the connections to it. It is the same in all states.
type endpoint struct {
	addresses []string // host and port; the second one is tried if the first does not answer
	greeting  string   // the first line on each connection to the object store, whose address is a socket; otherwise empty
	failed    atomic.Int64
	multi     func() *http.Transport // for HTTP/2

	mu   sync.Mutex
	idle []*upstream
	gone bool
}

// endpoint returns the endpoint at the target port, and nil if it has no address. The caller holds mu.
func (e *Engine) endpoint(known *v1.IngressEndpoint, target int32) *endpoint {
	var addresses []string
	for _, a := range known.GetAddresses() {
		addresses = append(addresses, net.JoinHostPort(a, strconv.Itoa(int(target))))
	}
	if len(addresses) == 0 {
		return nil
	}
	// A later endpoint with the same address must not inherit connections.
	key := known.GetId() + " " + strings.Join(addresses, " ")
	to := e.endpoints[key]
	if to == nil {
		to = &endpoint{addresses: addresses}
		to.multi = sync.OnceValue(to.newTransport)
		e.endpoints[key] = to
	}
	return to
}

// store returns the endpoint of the object store for one backend of a route. The caller holds mu.
func (e *Engine) store(g origin.Greeting) *endpoint {
	to := e.endpoints[g.String()]
	if to == nil {
		to = &endpoint{addresses: []string{e.opts.Store}, greeting: g.String()}
		to.multi = sync.OnceValue(to.newTransport)
		e.endpoints[g.String()] = to
	}
	return to
}

func (to *endpoint) failing() bool {
	at := to.failed.Load()
	return at != 0 && time.Now().UnixNano()-at < int64(failingFor)
}

// connectError says that no connection was made, so that another endpoint may be tried.
type connectError struct{ err error }

func (e *connectError) Error() string { return e.err.Error() }
func (e *connectError) Unwrap() error { return e.err }

func (to *endpoint) dial(ctx context.Context, network string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if to.greeting != "" {
		return to.dialStore(ctx)
	}
	var d net.Dialer
	var all []error
	for _, address := range to.addresses {
		conn, err := d.DialContext(ctx, network, address)
		if err == nil {
			if to.failed.Load() != 0 {
				to.failed.Store(0)
			}
			return conn, nil
		}
		all = append(all, err)
	}
	to.failed.Store(time.Now().UnixNano())
	return nil, &connectError{errors.Join(all...)}
}

// storePause is the pause between attempts to reach the agent, which may be restarting.
const storePause = 100 * time.Millisecond

// dialStore connects to the object store, by way of the agent of this node.
func (to *endpoint) dialStore(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	for {
		conn, err := d.DialContext(ctx, "unix", to.addresses[0])
		if err == nil {
			if _, err = io.WriteString(conn, to.greeting); err == nil {
				to.failed.Store(0)
				return conn, nil
			}
			_ = conn.Close()
		}
		if to.failing() || sleep.For(ctx, storePause) != nil {
			to.failed.Store(time.Now().UnixNano())
			return nil, &connectError{err}
		}
	}
}

// upstream is a connection to a backend that speaks HTTP/1.1.
type upstream struct {
	net.Conn
	r        *bufio.Reader
	response http1.Response
	body     http1.Body
	since    time.Time // when it became idle
	reused   bool
}

// take returns an idle connection, or nil if there is none. With check it returns none that the backend has closed.
func (to *endpoint) take(check bool) *upstream {
	for {
		to.mu.Lock()
		n := len(to.idle)
		if n == 0 {
			to.mu.Unlock()
			return nil
		}
		u := to.idle[n-1]
		to.idle[n-1] = nil
		to.idle = to.idle[:n-1]
		to.mu.Unlock()
		if !check || u.alive() {
			u.reused = true
			return u
		}
		_ = u.Close()
	}
}

// connect returns a new connection.
func (to *endpoint) connect(ctx context.Context, timeout time.Duration) (*upstream, error) {
	conn, err := to.dial(ctx, "tcp", timeout)
	if err != nil {
		return nil, err
	}
	return &upstream{Conn: conn, r: bufio.NewReaderSize(conn, 4<<10)}, nil
}

// put keeps a connection for another request.
func (to *endpoint) put(u *upstream) {
	if u.r.Buffered() > 0 { // a backend that says more than it was asked
		_ = u.Close()
		return
	}
	u.since = time.Now()
	to.mu.Lock()
	keep := !to.gone && len(to.idle) < mostIdle
	if keep {
		to.idle = append(to.idle, u)
	}
	to.mu.Unlock()
	if !keep {
		_ = u.Close()
	}
}

// alive reports whether the backend has neither closed an idle connection nor said anything on it.
func (u *upstream) alive() bool {
	raw, err := u.Conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		alive = errors.Is(err, unix.EAGAIN)
		return true
	})
	return err == nil && alive
}

// closeIdle closes the connections that have been idle since before.
func (to *endpoint) closeIdle(before time.Time) {
	to.mu.Lock()
	var old []*upstream
	to.idle = slices.DeleteFunc(to.idle, func(u *upstream) bool {
		if u.since.After(before) {
			return false
		}
		old = append(old, u)
		return true
	})
	to.mu.Unlock()
	for _, u := range old {
		_ = u.Close()
	}
}

// close closes idle connections, now and those that become idle.
func (to *endpoint) close() {
	to.mu.Lock()
	to.gone = true
	to.mu.Unlock()
	to.closeIdle(time.Now().Add(time.Hour))
	to.multi().CloseIdleConnections()
}

// newTransport returns the way to speak HTTP/2 without TLS to the endpoint.
func (to *endpoint) newTransport() *http.Transport {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{
		Protocols: &protocols, DisableCompression: true, IdleConnTimeout: idleBackend, MaxResponseHeaderBytes: backendHead,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			timeout, _ := ctx.Value(connectTimeout{}).(time.Duration)
			return to.dial(ctx, "tcp", cmp.Or(timeout, defaultConnect))
		},
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 10 * time.Second},
	}
}

// connectTimeout is the key of a context's value.
type connectTimeout struct{}

// size reads an amount of bytes such as "32Ki", which the servers have checked.
func size(text string, otherwise int64) int64 {
	number, factor := text, int64(1)
	for suffix, f := range map[string]int64{
		"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
	} {
		if rest, ok := strings.CutSuffix(text, suffix); ok {
			number, factor = rest, f
			break
		}
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || n <= 0 || n*float64(factor) > 1<<60 {
		return otherwise
	}
	return int64(n * float64(factor))
}
