package images

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// A caller chooses the registry that a server asks. So that nobody can reach into the network of the servers with that,
// registries at private addresses are asked only if the configuration names them. What counts is the address that is
// connected to: a name that resolves to another address the next time changes nothing.

// errPrivate means that a registry is at a private address and that the configuration does not name it.
var errPrivate = errors.New("the registry is at a private address")

// privateError names the address.
type privateError struct {
	registry string
	address  netip.Addr
}

func (e *privateError) Error() string {
	return fmt.Sprintf("%s is at the private address %s", e.registry, e.address)
}
func (*privateError) Is(target error) bool { return target == errPrivate }

// guarded is a transport that connects to private addresses only where the list names the registry.
func guarded(named func() []string) *http.Transport {
	base, ok := remote.DefaultTransport.(*http.Transport)
	if !ok {
		base = &http.Transport{Proxy: http.ProxyFromEnvironment}
	}
	t, proxies := base.Clone(), &proxies{find: base.Proxy}
	t.Proxy = proxies.of
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialer := net.Dialer{Timeout: foreignPatience, KeepAlive: 30 * time.Second}
		if !proxies.has(address) && !names(named(), address) {
			dialer.Control = func(_, resolved string, _ syscall.RawConn) error { return refusePrivate(ctx, address, resolved) }
		}
		return dialer.DialContext(ctx, network, address)
	}
	return t
}

type deniedKey struct{}

// withDenied returns a context in which a refused connection is noted: the packages between do not pass every error on.
func withDenied(ctx context.Context) (context.Context, *denied) {
	d := &denied{}
	return context.WithValue(ctx, deniedKey{}, d), d
}

type denied struct {
	mu  sync.Mutex
	why *privateError
}

func (d *denied) set(why *privateError) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.why = why
}

// err is the refusal, if a connection was refused, and else the given error.
func (d *denied) err(otherwise error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.why != nil && otherwise != nil {
		return d.why
	}
	return otherwise
}

func refusePrivate(ctx context.Context, registry, resolved string) error {
	at, err := netip.ParseAddrPort(resolved)
	if err != nil {
		return err
	}
	if !private(at.Addr()) {
		return nil
	}
	why := &privateError{registry: registry, address: at.Addr().Unmap()}
	if d, ok := ctx.Value(deniedKey{}).(*denied); ok {
		d.set(why)
	}
	return why
}

// reserved are ranges that lead to no public machine, beside those that package netip knows.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("fec0::/10"),
}

// translated are IPv6 addresses that contain an IPv4 address, at these bytes.
var translated = map[netip.Prefix]int{
	netip.MustParsePrefix("64:ff9b::/96"): 12,
	netip.MustParsePrefix("2002::/16"):    2,
}

// private reports whether an address is not one of the public Internet.
func private(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	for prefix, at := range translated {
		if prefix.Contains(a) {
			bytes := a.As16()
			return private(netip.AddrFrom4([4]byte(bytes[at : at+4])))
		}
	}
	return !a.IsGlobalUnicast() || a.IsPrivate() || slices.ContainsFunc(reserved, func(p netip.Prefix) bool { return p.Contains(a) })
}

// names reports whether a list of registries names the one at an address. Without a port, an entry means the usual ones.
func names(registries []string, address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(registries, func(entry string) bool {
		given, at, err := net.SplitHostPort(entry)
		if err != nil {
			given, at = strings.Trim(entry, "[]"), ""
		}
		return strings.EqualFold(given, host) && (at == port || at == "" && (port == "443" || port == "80"))
	})
}

// proxies remembers the proxies of the environment. The operator of the server has chosen them, wherever they are.
type proxies struct {
	find  func(*http.Request) (*url.URL, error)
	known sync.Map
}

func (p *proxies) of(r *http.Request) (*url.URL, error) {
	if p.find == nil {
		return nil, nil
	}
	u, err := p.find(r)
	if u != nil {
		port := u.Port()
		if port == "" {
			port = map[string]string{"https": "443", "socks5": "1080"}[u.Scheme]
		}
		if port == "" {
			port = "80"
		}
		p.known.Store(net.JoinHostPort(u.Hostname(), port), true)
	}
	return u, err
}

func (p *proxies) has(address string) bool {
	_, known := p.known.Load(address)
	return known
}

type lookUpKey struct{}

// WithoutLookUps returns a context in which registries outside the cluster are not asked: for callers who may not create
// workloads, and for whom the servers need not do that work.
func WithoutLookUps(ctx context.Context) context.Context {
	return context.WithValue(ctx, lookUpKey{}, true)
}

func looksUp(ctx context.Context) bool { return ctx.Value(lookUpKey{}) == nil }

// lookUps is how many questions to registries outside the cluster run at a time. Others wait.
const lookUps = 32
