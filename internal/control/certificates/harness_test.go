package certificates_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/certificates"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// world is a state that a test changes as users would, with the loop that a leader runs.
type world struct {
	t       *testing.T
	store   *state.Store
	mu      sync.Mutex // one proposal at a time, as consensus does
	sealer  *identity.Sealer
	ca      *identity.CA
	options certificates.Options
}

func newWorld(t *testing.T) *world {
	t.Helper()
	sealer, err := identity.OpenOrCreateSealer(filepath.Join(t.TempDir(), "kek.json"))
	if err != nil {
		t.Fatal(err)
	}
	authority, err := identity.NewCA("home", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, store: state.New(), sealer: sealer, ca: authority}
	w.options = certificates.Options{
		Store: w.store, Proposer: w, CA: authority, Sealer: sealer, Logger: slog.New(slog.DiscardHandler), Patience: 2 * time.Second,
	}
	w.do(func(_ *state.Snapshot, b *state.Batch) error {
		b.Create(&v1.Cluster{Metadata: &v1.Metadata{Uid: "home", Name: "cloudless"}, Spec: &v1.ClusterSpec{}, Status: &v1.ClusterStatus{}})
		return nil
	})
	return w
}

// Propose applies a proposal at once.
func (w *world) Propose(ctx context.Context, build func(*state.Snapshot, *state.Batch) error) (*state.Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var b state.Batch
	if err := build(w.store.Snapshot(), &b); err != nil || b.Len() == 0 {
		return w.store.Snapshot(), err
	}
	tx := b.Transaction(time.Now())
	if err := state.Validate(tx); err != nil {
		return nil, err
	}
	_, err := w.store.Apply(w.store.Snapshot().Index()+1, tx)
	return w.store.Snapshot(), err
}

func (w *world) do(build func(*state.Snapshot, *state.Batch) error) {
	w.t.Helper()
	if _, err := w.Propose(context.Background(), build); err != nil {
		w.t.Fatal(err)
	}
}

// lead runs the loop until the returned function is called.
func (w *world) lead() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- certificates.New(w.options).Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil && ctx.Err() == nil {
				w.t.Error(err)
			}
		})
	}
	w.t.Cleanup(stop)
	return stop
}

// route creates a route or replaces it.
func (w *world) route(name, host, mode string) {
	w.t.Helper()
	w.do(func(snap *state.Snapshot, b *state.Batch) error {
		made := &v1.Route{Metadata: &v1.Metadata{Uid: "route-" + name, Namespace: "web", Name: name}, Spec: &v1.RouteSpec{Host: host, Tls: &v1.RouteTls{Mode: mode}}}
		b.Put(made)
		return nil
	})
}

func (w *world) removeRoute(name string) {
	w.t.Helper()
	w.do(func(_ *state.Snapshot, b *state.Batch) error { b.Delete(state.KindRoute, "route-"+name); return nil })
}

// configure changes the settings of the ACME authority as the server does.
func (w *world) configure(a *v1.Acme) {
	w.t.Helper()
	w.do(func(snap *state.Snapshot, b *state.Batch) error {
		old := snap.Cluster()
		now, err := certificates.SealSettings(w.sealer, old.GetSpec(), &v1.ClusterSpec{Acme: a})
		if err != nil {
			return err
		}
		b.Update(&v1.Cluster{Metadata: old.GetMetadata(), Spec: now, Status: old.GetStatus()}, old.GetMetadata().GetVersion())
		return nil
	})
}

// certificate is that of a host; nil if there is none.
func (w *world) certificate(host string) *v1.Certificate {
	return w.store.Snapshot().CertificateByName("web", spec.CertificateName(host))
}

// await waits until the certificate of a host is as the test wants it.
func (w *world) await(host, what string, ok func(*v1.Certificate) bool) *v1.Certificate {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for feed := w.store.Follow(); ; {
		if _, err := feed.Next(ctx); err != nil {
			w.t.Fatalf("the certificate of %s never %s: it is %v", host, what, w.certificate(host))
		}
		if c := w.certificate(host); ok(c) {
			return c
		}
	}
}

func (w *world) awaitReady(host string) *v1.Certificate {
	w.t.Helper()
	return w.await(host, "became ready", func(c *v1.Certificate) bool { return c.GetStatus().GetState() == spec.CertificateReady })
}

func (w *world) awaitProblem(host string) *v1.Certificate {
	w.t.Helper()
	return w.await(host, "has a problem", func(c *v1.Certificate) bool { return c.GetStatus().GetProblem() != "" })
}

// pair is what a node of the ingress would serve.
func (w *world) pair(c *v1.Certificate) tls.Certificate {
	w.t.Helper()
	uid := c.GetMetadata().GetUid()
	key, err := w.sealer.Unseal(w.store.Snapshot().CertificateKey(uid).GetSealed(), state.CertificateKeyContext(uid))
	if err != nil {
		w.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair([]byte(c.GetSpec().GetChain()), key)
	if err != nil {
		w.t.Fatal(err)
	}
	return pair
}

// events are the reasons of all events about certificates, oldest first.
func (w *world) events() []string {
	var all []string
	for e := range w.store.Snapshot().OldestEvents() {
		all = append(all, e.GetSpec().GetReason())
	}
	return all
}

// ingress answers challenges out of the state, as the nodes do.
type ingress struct {
	w              *world
	withHTTP       atomic.Bool
	withTLS        atomic.Bool
	wrong          atomic.Bool
	httpAt, tlsAt  net.Listener
	answeredByHTTP atomic.Int32
	answeredByTLS  atomic.Int32
}

func newIngress(w *world) *ingress {
	w.t.Helper()
	in := &ingress{w: w}
	in.withHTTP.Store(true)
	in.withTLS.Store(true)
	var err error
	if in.httpAt, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		w.t.Fatal(err)
	}
	if in.tlsAt, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		w.t.Fatal(err)
	}
	server := &http.Server{Handler: in, ErrorLog: log.New(io.Discard, "", 0)}
	var tasks sync.WaitGroup
	tasks.Go(func() { _ = server.Serve(in.httpAt) })
	tasks.Go(func() { in.serveTLS(&tasks) })
	w.t.Cleanup(func() {
		_ = server.Close()
		_ = in.tlsAt.Close()
		tasks.Wait()
	})
	w.options.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		to := in.httpAt
		if strings.HasSuffix(address, ":443") {
			to = in.tlsAt
		}
		return (&net.Dialer{}).DialContext(ctx, network, to.Addr().String())
	}
	return in
}

func (in *ingress) ServeHTTP(answer http.ResponseWriter, request *http.Request) {
	host, _, _ := strings.Cut(request.Host, ":")
	for c := range in.w.store.Snapshot().CertificateChallenges() {
		if !in.withHTTP.Load() || c.GetToken() == "" || c.GetHost() != host || request.URL.Path != "/.well-known/acme-challenge/"+c.GetToken() {
			continue
		}
		in.answeredByHTTP.Add(1)
		if in.wrong.Load() {
			fmt.Fprint(answer, "something else")
			return
		}
		fmt.Fprint(answer, c.GetKeyAuthorization())
		return
	}
	http.NotFound(answer, request)
}

func (in *ingress) serveTLS(tasks *sync.WaitGroup) {
	config := &tls.Config{NextProtos: []string{"acme-tls/1"}, GetCertificate: in.answerTLS}
	for {
		conn, err := in.tlsAt.Accept()
		if err != nil {
			return
		}
		tasks.Go(func() {
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			_ = tls.Server(conn, config).Handshake()
		})
	}
}

func (in *ingress) answerTLS(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	for c := range in.w.store.Snapshot().CertificateChallenges() {
		if !in.withTLS.Load() || c.GetChain() == "" || c.GetHost() != hello.ServerName {
			continue
		}
		key, err := in.w.sealer.Unseal(c.GetSealedKey(), state.ChallengeKeyContext(c.GetMetadata().GetUid()))
		if err != nil {
			return nil, err
		}
		in.answeredByTLS.Add(1)
		pair, err := tls.X509KeyPair([]byte(c.GetChain()), key)
		return &pair, err
	}
	return nil, fmt.Errorf("no challenge for %s", hello.ServerName)
}

func portOf(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

// nameserver is the DNS of the test: every name is at 127.0.0.1, and TXT records change by signed updates.
type nameserver struct {
	mu      sync.Mutex
	records map[string][]string
	updates int
	address string
}

const (
	tsigName = "cloudless."
	tsigKey  = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"
	zone     = "example.org."
)

func newNameserver(t *testing.T) *nameserver {
	t.Helper()
	n := &nameserver{records: map[string][]string{}}
	packets, conns := bothProtocols(t)
	n.address = packets.LocalAddr().String()
	secrets := map[string]string{tsigName: tsigKey}
	for _, server := range []*dns.Server{
		{PacketConn: packets, Handler: n, TsigSecret: secrets},
		{Listener: conns, Handler: n, TsigSecret: secrets, MsgAcceptFunc: func(dns.Header) dns.MsgAcceptAction { return dns.MsgAccept }},
	} {
		ended := make(chan struct{})
		go func() { defer close(ended); _ = server.ActivateAndServe() }()
		t.Cleanup(func() { _ = server.Shutdown(); <-ended })
	}
	return n
}

// bothProtocols listens on a port that is free for UDP and TCP.
func bothProtocols(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	for {
		conns, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		packets, err := net.ListenPacket("udp", conns.Addr().String())
		if err == nil {
			return packets, conns
		}
		_ = conns.Close()
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
	}
}

func (n *nameserver) ServeDNS(out dns.ResponseWriter, query *dns.Msg) {
	n.mu.Lock()
	defer n.mu.Unlock()
	answer := new(dns.Msg).SetReply(query)
	answer.Authoritative = true
	if query.Opcode == dns.OpcodeUpdate {
		if query.IsTsig() == nil || out.TsigStatus() != nil {
			answer.Rcode = dns.RcodeRefused
		} else {
			n.update(query.Ns)
			answer.SetTsig(tsigName, dns.HmacSHA256, 300, time.Now().Unix())
		}
		_ = out.WriteMsg(answer)
		return
	}
	asked := query.Question[0]
	soa, _ := dns.NewRR(zone + " 60 IN SOA ns." + zone + " admin." + zone + " 1 60 60 60 60")
	switch asked.Qtype {
	case dns.TypeA:
		record, _ := dns.NewRR(asked.Name + " 60 IN A 127.0.0.1")
		answer.Answer = append(answer.Answer, record)
	case dns.TypeTXT:
		for _, text := range n.records[strings.ToLower(asked.Name)] {
			record, _ := dns.NewRR(asked.Name + ` 60 IN TXT "` + text + `"`)
			answer.Answer = append(answer.Answer, record)
		}
	case dns.TypeSOA:
		if asked.Name == zone {
			answer.Answer = append(answer.Answer, soa)
		}
	}
	if len(answer.Answer) == 0 {
		answer.Ns = append(answer.Ns, soa)
	}
	_ = out.WriteMsg(answer)
}

func (n *nameserver) update(changes []dns.RR) {
	for _, change := range changes {
		record, ok := change.(*dns.TXT)
		if !ok {
			continue
		}
		key, text := strings.ToLower(record.Hdr.Name), strings.Join(record.Txt, "")
		n.updates++
		if record.Hdr.Class == dns.ClassNONE {
			n.records[key] = slices.DeleteFunc(n.records[key], func(one string) bool { return one == text })
		} else {
			n.records[key] = append(n.records[key], text)
		}
	}
}

func (n *nameserver) left() (records, updates int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, texts := range n.records {
		records += len(texts)
	}
	return records, n.updates
}

// pebble is a real ACME authority.
type pebble struct {
	t         *testing.T
	handler   atomic.Pointer[http.Handler]
	intercept atomic.Pointer[http.HandlerFunc]
	server    *httptest.Server
	in        *ingress
	resolver  string
}

func newPebble(t *testing.T, in *ingress, resolver string) *pebble {
	t.Helper()
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	t.Setenv("PEBBLE_WFE_NONCEREJECT", "20") // percent of the good ones
	t.Setenv("PEBBLE_AUTHZREUSE", "0")       // prove a host every time
	p := &pebble{t: t, in: in, resolver: resolver}
	p.restart()
	p.server = httptest.NewTLSServer(p)
	t.Cleanup(p.server.Close)
	return p
}

// restart makes the authority forget everything.
func (p *pebble) restart() {
	logger := log.New(io.Discard, "", 0)
	store := db.NewMemoryStore()
	issuer := ca.New(logger, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {Description: "default", ValidityPeriod: 7776000}})
	validator := va.New(logger, portOf(p.in.httpAt), portOf(p.in.tlsAt), false, p.resolver, store)
	front := wfe.New(logger, store, validator, issuer, []string{"pebble.letsencrypt.org"}, false, false, 1, 1)
	handler := front.Handler()
	p.handler.Store(&handler)
}

func (p *pebble) ServeHTTP(answer http.ResponseWriter, request *http.Request) {
	if f := p.intercept.Load(); f != nil {
		(*f)(answer, request)
		return
	}
	(*p.handler.Load()).ServeHTTP(answer, request)
}

// settings are those of a cluster that uses the authority.
func (p *pebble) settings() *v1.Acme {
	return &v1.Acme{
		Directory: p.server.URL + wfe.DirectoryPath, Email: "ops@example.org",
		Ca: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})),
	}
}
