package ingress

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/ingress/accesslog"
	"github.com/cloudless/cloudless/internal/ingress/http1"
	"github.com/cloudless/cloudless/internal/ingress/table"
)

// exchange is one request and its answer, whatever protocol the client speaks.
type exchange struct {
	e     *Engine
	began time.Time

	method, target string
	host           string // as the client sent it
	name           string // of the host, as routes have it
	proto          string
	fields         []http1.Field
	body           io.Reader // nil if there is none
	length         int64     // of the body, -1 if it is not known
	upgrade        string
	headSize       int

	client     netip.AddrPort // that the balancers in front of us have named
	peer       netip.AddrPort // that is connected
	trusted    bool           // the peer is such a balancer
	secure     bool
	serverName string // that the client has asked a certificate for
	ourPort    int

	answer answer

	// What becomes known on the way.
	state    *state
	route    *route
	choice   choice
	status   int
	received int64
	sent     int64
	counted  bool
	small    []byte // the whole body, if it was collected
	filled   bool   // it was
	bodyRead atomic.Bool
	out      []http1.Field // of the answer

	abort aborting
}

// answer is the way to a client.
type answer interface {
	// inform sends an answer before the answer, such as 103.
	inform(status int, fields []http1.Field) error
	// begin sends the head. The length is that of the body, http1.Chunked if it is not known, or noLength.
	begin(status int, fields []http1.Field, length int64) error
	io.Writer
	flush() error
	// end ends the body.
	end(trailers []http1.Field) error
	// fail says that the rest of the body will not come.
	fail()
	// take ends HTTP on the connection, after the head of the answer 101.
	take() (net.Conn, io.Reader, bool)
	// stopBody ends the reading of the request's body, so that nobody reads it afterwards.
	stopBody()
}

// noLength is the length of a body that there cannot be.
const noLength = -3

// aborting tells the part that waits that the client is gone.
type aborting struct {
	mu   sync.Mutex
	gone bool
	call func()
}

// on sets what to call when the client is gone.
func (a *aborting) on(call func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.call = call
	if a.gone && call != nil {
		call()
	}
}

// now says that the client is gone.
func (a *aborting) now() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.gone && a.call != nil {
		a.call()
	}
	a.gone = true
}

func (a *aborting) isGone() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gone
}

// statusGone is in the access log if the client did not wait for the answer.
const statusGone = 499

// serve answers the request.
func (x *exchange) serve() {
	x.state = x.e.current.Load()
	x.forwarded()
	x.handle()
	x.count(time.Since(x.began), x.status >= 500)
	m := x.meter()
	if m != nil {
		m.received.Add(x.received + int64(x.headSize))
		m.sent.Add(x.sent)
	}
	if x.route != nil && x.route.log && x.e.access != nil {
		x.e.access.Write(x.line)
	}
}

// meter is where the request is counted; nil if no route is known.
func (x *exchange) meter() *meter {
	switch {
	case x.choice.meter != nil:
		return x.choice.meter
	case x.route != nil:
		return x.route.local
	}
	return nil
}

// count counts the request once: when its answer begins, or when there will be none.
func (x *exchange) count(latency time.Duration, failed bool) {
	if x.counted || x.route == nil {
		return
	}
	x.counted = true
	if x.status != statusGone {
		x.meter().answered(latency, failed)
	}
}

func (x *exchange) line(text []byte) []byte {
	path, _, _ := strings.Cut(x.target, "?") // queries may hold secrets
	line := accesslog.Begin(text, x.began).
		String("client", x.client.Addr().String()).String("method", x.method).String("host", x.name).String("path", path).String("proto", x.proto).
		Int("status", int64(x.status)).Int("received", x.received).Int("sent", x.sent).Milliseconds("ms", time.Since(x.began)).
		String("namespace", x.route.namespace).String("route", x.route.name)
	if x.secure {
		line = line.String("tls", x.serverName)
	}
	if x.choice.meter != nil {
		line = line.String("endpoint", x.choice.id).String("address", x.choice.to.addresses[0])
	}
	return line.String("agent", http1.Get(x.fields, "user-agent")).End()
}

const challengePath = "/.well-known/acme-challenge/"

// handle finds the route and decides whether the client may use it.
func (x *exchange) handle() {
	path, _, _ := strings.Cut(x.target, "?")
	if strings.HasPrefix(path, challengePath) && x.challenge(path[len(challengePath):]) {
		return
	}
	x.name = table.Host(x.host)
	if x.name == "" {
		x.refuse(http.StatusBadRequest, "The host of the request is not a name.")
		return
	}
	if table.Ambiguous(path) {
		x.refuse(http.StatusBadRequest, "The path can be read in several ways.")
		return
	}
	r, found, known := x.state.routes.Find(x.name, path)
	if x.misdirected(r, found, known) {
		x.refuse(http.StatusMisdirectedRequest, "This connection is for another host.")
		return
	}
	if !found {
		if known {
			x.refuse(http.StatusNotFound, "No route of this host has this path.")
		} else {
			x.refuse(http.StatusNotFound, "There is no route for this host.")
		}
		return
	}
	x.route = r
	if len(r.allow) > 0 && !within(r.allow, x.client.Addr()) {
		x.refuse(http.StatusForbidden, "Your address may not use this route.")
		return
	}
	if r.redirect && !x.secure && !x.secureBefore() {
		x.redirect()
		return
	}
	if x.headSize > r.maxHead {
		x.refuse(http.StatusRequestHeaderFieldsTooLarge, "The headers of the request are too large.")
		return
	}
	if r.maxBody > 0 && x.length > r.maxBody {
		x.refuse(http.StatusRequestEntityTooLarge, "The body of the request is too large.")
		return
	}
	if len(r.users) > 0 && !x.authenticated() {
		return
	}
	x.pass()
}

// misdirected reports whether a request came on a connection whose certificate is not for its host: browsers send
// requests for several hosts on one connection.
func (x *exchange) misdirected(r *route, found, known bool) bool {
	if !x.secure || x.name == x.serverName {
		return false
	}
	if !known {
		return true
	}
	if c := x.state.certificate(x.serverName); c.covers(x.name) {
		return false
	}
	// It is the same to a client that names no host at all.
	return !found || r.tls || x.serverName != ""
}

// challenge answers an authority that asks by HTTP-01 whether a host is ours.
func (x *exchange) challenge(token string) bool {
	host := table.Host(x.host)
	for _, c := range x.state.challenges {
		if c.GetToken() != "" && c.GetToken() == token && (c.GetHost() == "" || table.Host(c.GetHost()) == host) {
			x.reply(http.StatusOK, []http1.Field{{Name: "Content-Type", Value: "application/octet-stream"}}, c.GetKeyAuthorization())
			return true
		}
	}
	return false
}

// secureBefore reports whether the client speaks TLS with a balancer in front of us: it would be redirected for ever.
func (x *exchange) secureBefore() bool {
	proto := ""
	for _, f := range x.fields {
		if x.trusted && f.Is("x-forwarded-proto") {
			proto = f.Value[strings.LastIndexByte(f.Value, ',')+1:] // the nearest balancer's
		}
	}
	return strings.EqualFold(strings.TrimSpace(proto), "https")
}

func (x *exchange) redirect() {
	host := x.name
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if x.state.httpsPort != 443 {
		host += ":" + strconv.Itoa(x.state.httpsPort)
	}
	to := "https://" + host + x.target
	x.reply(http.StatusPermanentRedirect, []http1.Field{{Name: "Location", Value: to}, textType}, "")
}

var textType = http1.Field{Name: "Content-Type", Value: "text/plain; charset=utf-8"}

// refuse answers with an error and its reason, or with the page that the route has for it.
func (x *exchange) refuse(status int, reason string, fields ...http1.Field) {
	if x.abort.isGone() {
		x.status = statusGone
		x.answer.fail()
		return
	}
	if page := x.page(status); page != nil {
		kind := page.GetContentType()
		if kind == "" {
			kind = "text/html; charset=utf-8"
		}
		x.reply(status, append(fields, http1.Field{Name: "Content-Type", Value: kind}), page.GetBody())
		return
	}
	x.reply(status, append(fields, textType), http.StatusText(status)+": "+reason+"\n")
}

func (x *exchange) page(status int) *v1.RouteErrorPage {
	if x.route == nil {
		return nil
	}
	if page := x.route.pages[status]; page != nil {
		return page
	}
	return x.route.pages[0]
}

// reply is an answer of the ingress itself.
func (x *exchange) reply(status int, fields []http1.Field, body string) {
	x.status = status
	if x.answer.begin(status, fields, int64(len(body))) != nil {
		return
	}
	if x.method != http.MethodHead {
		_, _ = io.WriteString(x.answer, body) // end reports it
		x.sent += int64(len(body))
	}
	_ = x.answer.end(nil) // a client that is gone needs no answer
}

// forwarded finds out who the client is. Only balancers that are trusted can say that it is not the peer.
func (x *exchange) forwarded() {
	if !x.trusted {
		return
	}
	chain := ""
	for _, f := range x.fields {
		if f.Is("x-forwarded-for") {
			if chain != "" {
				chain += ","
			}
			chain += f.Value
		}
	}
	hops := strings.Split(chain, ",")
	for _, hop := range slices.Backward(hops) {
		a, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			return
		}
		x.client = netip.AddrPortFrom(a.Unmap().WithZone(""), 0)
		if !within(x.state.trusted, x.client.Addr()) {
			return
		}
	}
}

// forwardedFields are those by which backends learn who the client is. Clients cannot set them, nor others that some
// programs take for them.
var forwardedFields = []string{"x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "x-real-ip", "forwarded"}

func isForwarded(name string) bool {
	if len(name) < len("forwarded") || len(name) > len("x-forwarded-proto") {
		return false
	}
	return slices.ContainsFunc(forwardedFields, func(f string) bool { return len(f) == len(name) && sameButLine(name, f) })
}

// sameButLine compares a name with one in lower case. Gateways read an underscore as a hyphen.
func sameButLine(name, lower string) bool {
	for i := range len(name) {
		c := name[i]
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		} else if c == '_' {
			c = '-'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

var hopByHop = []string{"connection", "keep-alive", "proxy-connection", "proxy-authorization", "proxy-authenticate", "te", "trailer", "transfer-encoding", "upgrade", "content-length", "expect", "host", "http2-settings"}

// isHopByHop reports whether a field of a request or a response is for one connection only.
func isHopByHop(name string, response bool) bool {
	switch len(name) {
	case 2, 4, 6, 7, 10, 14, 16, 17, 18, 19:
	default:
		return false
	}
	for _, h := range hopByHop {
		if http1.Same(name, h) {
			return !response || h != "expect" && h != "host" && h != "proxy-authenticate"
		}
	}
	return false
}

// connectionTokens are the fields that a sender wants to end at the next hop.
func connectionTokens(fields []http1.Field) (tokens []string) {
	for _, f := range fields {
		if !f.Is("connection") {
			continue
		}
		http1.Tokens(f.Value, func(token string) bool {
			if lower := strings.ToLower(token); lower != "close" && lower != "keep-alive" && lower != "upgrade" {
				tokens = append(tokens, lower)
			}
			return true
		})
	}
	return tokens
}

func named(tokens []string, name string) bool {
	for _, token := range tokens {
		if http1.Same(name, token) {
			return true
		}
	}
	return false
}

// requestFields calls add for each field that a backend gets, but for the host and the framing.
func (x *exchange) requestFields(add func(name, value string)) {
	tokens := connectionTokens(x.fields)
	forwarded := ""
	for _, f := range x.fields {
		if isForwarded(f.Name) {
			if x.trusted && f.Is("forwarded") {
				forwarded = strings.TrimPrefix(forwarded+", "+f.Value, ", ")
			}
			continue
		}
		if !isHopByHop(f.Name, false) && !named(tokens, f.Name) {
			add(f.Name, f.Value)
		}
	}
	x.addForwarded(forwarded, add)
}

func (x *exchange) addForwarded(forwarded string, add func(name, value string)) {
	peer := x.peer.Addr().String()
	chain, proto, host, port := peer, "http", x.host, strconv.Itoa(x.ourPort)
	if x.secure {
		proto = "https"
	}
	if x.trusted {
		var before []string
		for _, f := range x.fields {
			switch {
			case f.Is("x-forwarded-for"):
				before = append(before, f.Value)
			case f.Is("x-forwarded-proto"):
				proto = f.Value
			case f.Is("x-forwarded-host"):
				host = f.Value
			case f.Is("x-forwarded-port"):
				port = f.Value
			}
		}
		chain = strings.Join(append(before, peer), ", ")
	}
	add("X-Forwarded-For", chain)
	add("X-Forwarded-Proto", proto)
	add("X-Forwarded-Host", host)
	add("X-Forwarded-Port", port)
	add("X-Real-IP", x.client.Addr().String())
	if forwarded != "" {
		node := peer
		if x.peer.Addr().Is6() {
			node = `"[` + peer + `]"`
		}
		add("Forwarded", forwarded+", for="+node+";proto="+proto)
	}
}

// errTooLarge says that a body of unknown length has become too long for the route.
var errTooLarge = errors.New("the body of the request is too large")

// limited reads a body up to the route's limit, and counts it.
type limited struct {
	x    *exchange
	r    io.Reader
	most int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	l.x.received += int64(n)
	if l.most > 0 && l.x.received > l.most {
		return 0, errTooLarge
	}
	return n, err
}
