package auth

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// catchUps counts catch-ups, each of which takes a while.
type catchUps struct {
	took  time.Duration
	began int
}

func (c *catchUps) do(context.Context) error {
	c.began++
	time.Sleep(c.took) // on the clock of the bubble
	return nil
}

func unknownCaller() (core.Principal, error) { return core.Principal{}, ErrUnknownToken }

var someAddress = netip.MustParseAddr("192.0.2.1")

// Calls that come while a catch-up runs wait for the next one: the running one may
// have asked the leader before their token was made.
func TestUnknownCallersShareOneCatchUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		count := &catchUps{took: time.Second}
		unknown := newUnknownCallers(t.Context(), count.do)
		var made atomic.Bool // when the first catch-up has ended
		prove := func() (core.Principal, error) {
			if !made.Load() {
				return unknownCaller()
			}
			return core.Principal{Role: core.RoleViewer}, nil
		}
		var calls sync.WaitGroup
		call := func(from, token int, want error) {
			calls.Go(func() {
				by := presentedToken{address: netip.AddrFrom4([4]byte{192, 0, 2, byte(from)}), token: fmt.Sprint(token)}
				if _, err := unknown.retry(t.Context(), by, prove); !errors.Is(err, want) {
					t.Errorf("token %d from machine %d: %v", token, from, err)
				}
			})
		}
		call(0, 0, ErrUnknownToken)
		synctest.Wait() // its catch-up runs
		for i := range 1000 {
			call(1, i+1, nil)
		}
		time.Sleep(time.Second + catchUpPause/2)
		made.Store(true)
		calls.Wait()
		if count.began != 2 {
			t.Errorf("1001 unknown callers cost %d catch-ups", count.began)
		}
	})
}

func TestCatchUpsPauseBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		count := &catchUps{}
		unknown := newUnknownCallers(t.Context(), count.do)
		begun := time.Now()
		for i := range 100 {
			by := presentedToken{address: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), token: fmt.Sprint(i)}
			if _, err := unknown.retry(t.Context(), by, unknownCaller); !errors.Is(err, ErrUnknownToken) {
				t.Error(err)
			}
		}
		if least := 99 * catchUpPause; time.Since(begun) < least {
			t.Errorf("%d catch-ups within %s, want at least %s", count.began, time.Since(begun), least)
		}
	})
}

// A caller that leaves, or a server that stops, does not wait for a catch-up.
func TestHangingCatchUpBlocksNoCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopping, stop := context.WithCancel(t.Context())
		unknown := newUnknownCallers(stopping, func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := unknown.retry(ctx, presentedToken{}, unknownCaller)
		if _, behind := errors.AsType[behindError](err); !behind || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Errorf("the caller that left: %v", err)
		}
		stop()
		synctest.Wait()
		_, err = unknown.retry(t.Context(), presentedToken{}, unknownCaller)
		if _, behind := errors.AsType[behindError](err); !behind {
			t.Errorf("after the server stopped: %v", err)
		}
	})
}

// A token is looked up again soon: a lagging server may have refused it before it was created.
func TestRefusedTokenIsLookedUpAgainAfterASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		count := &catchUps{}
		unknown := newUnknownCallers(t.Context(), count.do)
		by := presentedToken{address: someAddress, token: "made-up"}
		for range 100 {
			if _, err := unknown.retry(t.Context(), by, unknownCaller); !errors.Is(err, ErrUnknownToken) {
				t.Error(err)
			}
		}
		if count.began != 1 {
			t.Errorf("100 calls with one unknown token cost %d catch-ups", count.began)
		}
		time.Sleep(refusalTime)
		p, err := unknown.retry(t.Context(), by, func() (core.Principal, error) { return core.Principal{Role: core.RoleViewer}, nil })
		if err != nil || p.Role != core.RoleViewer {
			t.Errorf("the token that was made since is refused: %v", err)
		}
	})
}

func TestUnknownTokensOfOneAddressAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		count := &catchUps{}
		unknown := newUnknownCallers(t.Context(), count.do)
		lookUp := func(from string, token int) error {
			_, err := unknown.retry(t.Context(), presentedToken{address: netip.MustParseAddr(from), token: fmt.Sprint(token)}, unknownCaller)
			return err
		}
		for i := range maxFailures {
			if err := lookUp("2001:db8::1", i); !errors.Is(err, ErrUnknownToken) {
				t.Errorf("token %d: %v", i, err)
			}
		}
		wantRefusal(t, lookUp("2001:db8::2", maxFailures), codes.ResourceExhausted, "2001:db8::2", "try again in a second")
		for _, other := range []string{"2001:db8:0:1::1", "192.0.2.1", "192.0.2.2"} {
			if err := lookUp(other, 0); !errors.Is(err, ErrUnknownToken) {
				t.Errorf("from %s: %v", other, err)
			}
		}
		time.Sleep(time.Second)
		if err := lookUp("2001:db8::2", maxFailures); !errors.Is(err, ErrUnknownToken) {
			t.Errorf("a second later: %v", err)
		}
	})
}

// The memory of unknown tokens is bounded.
func TestMemoryOfUnknownTokensIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tokens refusedTokens
		var from failures
		for i := range 100_000 {
			tokens.add(sha256.Sum256(fmt.Append(nil, i)))
			from.count(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
		}
		if n := len(tokens.young) + len(tokens.old); n > maxRefused {
			t.Errorf("%d refused tokens are remembered", n)
		}
		if n := len(from.counts); n > maxFailing {
			t.Errorf("%d addresses are remembered", n)
		}
	})
}

// prover authenticates callers by a state that a test fills.
type prover struct {
	*Authenticator
	t     *testing.T
	store *state.Store
	count *catchUps
}

func newProver(t *testing.T) *prover {
	store, count := state.New(), &catchUps{}
	part := &core.Core{UID: "s-1", Store: store, Clock: time.Now}
	return &prover{NewAuthenticator(t.Context(), part, "home", count.do), t, store, count}
}

// create puts objects into the state.
func (p *prover) create(objects ...state.Object) {
	p.t.Helper()
	var b state.Batch
	for _, o := range objects {
		b.Create(o)
	}
	if _, err := p.store.Apply(p.store.Snapshot().Index()+1, b.Transaction(time.Now())); err != nil {
		p.t.Fatal(err)
	}
}

// keep puts a token into the state.
func (p *prover) keep(role, id string, hash []byte) {
	p.t.Helper()
	p.create(
		&v1.Token{Metadata: &v1.Metadata{Uid: "t-" + id, Name: "t-" + id}, Spec: &v1.TokenSpec{Role: role, ExpireTime: timestamppb.New(time.Now().Add(time.Hour)), Uses: 1}},
		&statev1.Credential{Metadata: &v1.Metadata{Uid: id}, Hash: hash, TokenUid: "t-" + id},
	)
}

// byRequest and byCall authenticate the bearer of a token by HTTP and by gRPC.
func (p *prover) byRequest(token string) error {
	r := httptest.NewRequestWithContext(p.t.Context(), http.MethodGet, "/v1/nodes", nil)
	r.TLS, r.RemoteAddr = &tls.ConnectionState{}, someAddress.String()+":1"
	r.Header.Set("Authorization", "Bearer "+token)
	_, err := p.AuthenticateRequest(r, "")
	return err
}

func (p *prover) byCall(token string) error {
	ctx := metadata.NewIncomingContext(from(p.t.Context(), someAddress), metadata.Pairs("authorization", "Bearer "+token))
	_, err := p.authenticateCall(ctx, v1.NodeService_ListNodes_FullMethodName)
	return err
}

// from returns the context of a call from a machine.
func from(ctx context.Context, machine netip.Addr) context.Context {
	return peer.NewContext(ctx, &peer.Peer{Addr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(machine, 1)), AuthInfo: credentials.TLSInfo{}})
}

func wantRefusal(t *testing.T, err error, code codes.Code, words ...string) {
	t.Helper()
	got := status.Convert(core.StatusOf(err))
	if got.Code() != code {
		t.Errorf("answered with %v, want %v", err, code)
	}
	for _, w := range words {
		if !strings.Contains(got.Message(), w) {
			t.Errorf("the refusal %q does not say %q", got.Message(), w)
		}
	}
}

// The state is checked first, by gRPC and by HTTP: a known token works however many unknown ones its address sends, and
// even if it was refused before.
func TestUnknownTokensDoNotHarmKnownOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProver(t)
		known, stranger := identity.NewAPIToken(identity.Fingerprint{}), identity.NewAPIToken(identity.Fingerprint{})
		wantRefusal(t, p.byCall(known.Reveal()), codes.Unauthenticated, "cloudless token create") // so it is refused
		for range maxFailures - 1 {
			wantRefusal(t, p.byRequest(identity.NewAPIToken(identity.Fingerprint{}).Reveal()), codes.Unauthenticated)
		}
		for _, prove := range []func(string) error{p.byCall, p.byRequest} {
			wantRefusal(t, prove(stranger.Reveal()), codes.ResourceExhausted, "unknown tokens", someAddress.String())
		}
		p.keep(core.RoleViewer, known.ID(), known.Hash())
		for _, prove := range []func(string) error{p.byCall, p.byRequest} {
			if err := prove(known.Reveal()); err != nil {
				t.Error(err)
			}
		}
	})
}

// Unknown join tokens are refused as cheaply as unknown API tokens.
func TestUnknownJoinTokensShareACatchUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProver(t)
		prove := func(secret identity.JoinToken, machine netip.Addr) error {
			return p.CheckJoinToken(from(t.Context(), machine), secret.Reveal(), secret, core.RoleNode)
		}
		gone := identity.NewJoinToken(identity.Fingerprint{})
		for range 10 {
			wantRefusal(t, prove(gone, someAddress), codes.Unauthenticated, "join token", "cloudless token create --role node")
		}
		if p.count.began != 1 {
			t.Errorf("10 calls with one unknown join token cost %d catch-ups", p.count.began)
		}
		for range maxFailures - 1 {
			wantRefusal(t, prove(identity.NewJoinToken(identity.Fingerprint{}), someAddress), codes.Unauthenticated)
		}
		wantRefusal(t, prove(identity.NewJoinToken(identity.Fingerprint{}), someAddress), codes.ResourceExhausted, "unknown tokens")
		wantRefusal(t, prove(identity.NewJoinToken(identity.Fingerprint{}), netip.MustParseAddr("192.0.2.2")), codes.Unauthenticated)
		p.keep(core.RoleNode, gone.ID(), gone.Hash())
		if err := prove(gone, someAddress); err != nil {
			t.Errorf("the token that was made since is refused: %v", err)
		}
	})
}

// A deleted token is refused, whatever a server says about it.
func TestRelayedRevokedTokenIsRefused(t *testing.T) {
	p := newProver(t)
	p.create(&v1.Server{Metadata: &v1.Metadata{Uid: "s-2", Name: "s-2"}, Spec: &v1.ServerSpec{Address: "192.0.2.2:7700"}})
	server, err := identity.NewID("home", identity.KindServer, "s-2")
	if err != nil {
		t.Fatal(err)
	}
	user, err := identity.NewID("home", identity.KindUser, "ada")
	if err != nil {
		t.Fatal(err)
	}
	gone := core.Principal{ID: user, Role: core.RoleAdmin, TokenUID: "gone", Expires: time.Now().Add(time.Hour)}
	if _, err := p.fromServer(server, MetadataOf(gone)); !errors.Is(err, ErrUnknownToken) {
		t.Errorf("authenticated with %v", err)
	}
}
