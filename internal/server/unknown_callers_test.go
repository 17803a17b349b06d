package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
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

func nobody() (Principal, error) { return Principal{}, errUnknownToken }

var someAddress = netip.MustParseAddr("192.0.2.1")

// Calls that come while a catch-up runs wait for the next one: the running one may
// have asked the leader before their token was made.
func TestUnknownCallersShareOneCatchUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		count := &catchUps{took: time.Second}
		unknown := newUnknownCallers(t.Context(), count.do)
		var made atomic.Bool // when the first catch-up has ended
		prove := func() (Principal, error) {
			if !made.Load() {
				return nobody()
			}
			return Principal{Role: roleViewer}, nil
		}
		var calls sync.WaitGroup
		call := func(from, token int, want error) {
			calls.Go(func() {
				by := shown{address: netip.AddrFrom4([4]byte{192, 0, 2, byte(from)}), token: fmt.Sprint(token)}
				if _, err := unknown.prove(t.Context(), by, prove); !errors.Is(err, want) {
					t.Errorf("token %d from machine %d: %v", token, from, err)
				}
			})
		}
		call(0, 0, errUnknownToken)
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

func TestCatchUpsKeepTheirDistance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		count := &catchUps{}
		unknown := newUnknownCallers(t.Context(), count.do)
		begun := time.Now()
		for i := range 100 {
			by := shown{address: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), token: fmt.Sprint(i)}
			if _, err := unknown.prove(t.Context(), by, nobody); !errors.Is(err, errUnknownToken) {
				t.Error(err)
			}
		}
		if least := 99 * catchUpPause; time.Since(begun) < least {
			t.Errorf("%d catch-ups within %s, want at least %s", count.began, time.Since(begun), least)
		}
	})
}

// A caller that leaves, or a server that stops, does not wait for a catch-up.
func TestCatchUpThatHangsHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopping, stop := context.WithCancel(t.Context())
		unknown := newUnknownCallers(stopping, func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := unknown.prove(ctx, shown{}, nobody)
		if _, behind := errors.AsType[behindError](err); !behind || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Errorf("the caller that left: %v", err)
		}
		stop()
		synctest.Wait()
		_, err = unknown.prove(t.Context(), shown{}, nobody)
		if _, behind := errors.AsType[behindError](err); !behind {
			t.Errorf("after the server stopped: %v", err)
		}
	})
}

// A token is looked up again soon: a server that lags may have refused it before it
// was made.
func TestRefusedTokenIsLookedUpAgainAfterASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		count := &catchUps{}
		unknown := newUnknownCallers(t.Context(), count.do)
		by := shown{address: someAddress, token: "made-up"}
		for range 100 {
			if _, err := unknown.prove(t.Context(), by, nobody); !errors.Is(err, errUnknownToken) {
				t.Error(err)
			}
		}
		if count.began != 1 {
			t.Errorf("100 calls with one unknown token cost %d catch-ups", count.began)
		}
		time.Sleep(refusalTime)
		p, err := unknown.prove(t.Context(), by, func() (Principal, error) { return Principal{Role: roleViewer}, nil })
		if err != nil || p.Role != roleViewer {
			t.Errorf("the token that was made since is refused: %v", err)
		}
	})
}

func TestUnknownTokensOfOneAddressAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		count := &catchUps{}
		unknown := newUnknownCallers(t.Context(), count.do)
		lookUp := func(from string, token int) error {
			_, err := unknown.prove(t.Context(), shown{address: netip.MustParseAddr(from), token: fmt.Sprint(token)}, nobody)
			return err
		}
		for i := range maxFailures {
			if err := lookUp("2001:db8::1", i); !errors.Is(err, errUnknownToken) {
				t.Errorf("token %d: %v", i, err)
			}
		}
		wantCode(t, statusOf(lookUp("2001:db8::2", maxFailures)), codes.ResourceExhausted, "2001:db8::2", "try again in a second")
		for _, other := range []string{"2001:db8:0:1::1", "192.0.2.1", "192.0.2.2"} {
			if err := lookUp(other, 0); !errors.Is(err, errUnknownToken) {
				t.Errorf("from %s: %v", other, err)
			}
		}
		time.Sleep(time.Second)
		if err := lookUp("2001:db8::2", maxFailures); !errors.Is(err, errUnknownToken) {
			t.Errorf("a second later: %v", err)
		}
	})
}

// Whatever strangers send, what is remembered of them stays small.
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

// The guard and the HTTP side ask the state first: a token that this server knows
// works however many unknown ones its address sends, and if it was refused before.
func TestUnknownTokensDoNotHarmKnownOnes(t *testing.T) {
	c := newCluster(t)
	stranger := c.newTokenSecret(&v1.CreateTokenRequest{Role: roleViewer, Name: "gone"})
	_, err := c.as(roleAdmin).DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "gone"})
	must(t, err)
	later := time.Now().Add(time.Hour) // so that neither is forgotten during the test
	unknown := c.router.unknown
	unknown.failures.began, unknown.failures.counts = later, map[netip.Prefix]int{netip.MustParsePrefix("127.0.0.1/32"): maxFailures}
	_, err = c.dial(nil, stranger).ListNodes(c.ctx, &v1.ListNodesRequest{})
	wantCode(t, err, codes.ResourceExhausted, "unknown tokens", "127.0.0.1")
	if got := c.get(t, stranger, "/v1/nodes"); got != http.StatusTooManyRequests {
		t.Errorf("by HTTP the stranger gets %d", got)
	}
	known := c.newTokenSecret(&v1.CreateTokenRequest{Role: roleViewer})
	unknown.refused.began, unknown.refused.young = later, map[[sha256.Size]byte]struct{}{
		sha256.Sum256([]byte(known)): {}, sha256.Sum256([]byte(stranger)): {},
	}
	_, err = c.dial(nil, known).ListNodes(c.ctx, &v1.ListNodesRequest{})
	must(t, err)
	if got := c.get(t, known, "/v1/nodes"); got != http.StatusOK {
		t.Errorf("by HTTP the known token gets %d", got)
	}
	_, err = c.dial(nil, stranger).ListNodes(c.ctx, &v1.ListNodesRequest{})
	wantCode(t, err, codes.Unauthenticated, "cloudless token create")
}

// Machines that join are refused as cheaply as callers of the API.
func TestUnknownJoinTokensShareACatchUp(t *testing.T) {
	c := newCluster(t)
	gone := c.newTokenSecret(&v1.CreateTokenRequest{Role: roleNode, Name: "gone"})
	_, err := c.as(roleAdmin).DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "gone"})
	must(t, err)
	unknown := c.router.unknown
	var catchUps atomic.Int64
	catchUp := unknown.catchUp.do
	unknown.catchUp.do = func(ctx context.Context) error {
		catchUps.Add(1)
		return catchUp(ctx)
	}
	later := time.Now().Add(time.Hour) // so that nothing is forgotten during the test
	unknown.refused.began, unknown.refused.young = later, map[[sha256.Size]byte]struct{}{}
	unknown.failures.began, unknown.failures.counts = later, map[netip.Prefix]int{}
	for range 10 {
		_, err := c.enroll("machine", gone)
		wantCode(t, err, codes.Unauthenticated, "join token", "cloudless token create --role node")
	}
	if got := catchUps.Load(); got != 1 {
		t.Errorf("10 calls with one unknown join token cost %d catch-ups", got)
	}
	home := netip.MustParsePrefix("127.0.0.1/32")
	if got := unknown.failures.counts[home]; got != 1 {
		t.Errorf("%d unknown tokens are counted for the address", got)
	}
	unknown.failures.counts[home] = maxFailures
	made := c.newTokenSecret(&v1.CreateTokenRequest{Role: roleNode})
	unknown.refused.young[sha256.Sum256([]byte(made))] = struct{}{}
	_, err = c.enroll("machine", made)
	must(t, err)
	delete(unknown.refused.young, sha256.Sum256([]byte(gone)))
	_, err = c.enroll("machine", gone)
	wantCode(t, err, codes.ResourceExhausted, "unknown tokens", "127.0.0.1")
}

// A follower passes the calls of many machines on. Each counts for itself.
func TestUnknownJoinTokensCountForTheMachineThatShowsThem(t *testing.T) {
	c := newCluster(t)
	gone := c.newTokenSecret(&v1.CreateTokenRequest{Role: roleNode, Name: "gone"})
	_, err := c.as(roleAdmin).DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "gone"})
	must(t, err)
	unknown := c.router.unknown
	unknown.failures.began, unknown.failures.counts = time.Now().Add(time.Hour), map[netip.Prefix]int{}
	c.enter("s-2")
	follower := c.dial(c.certificateOf(identity.KindServer, "s-2"), "")
	ctx := metadata.AppendToOutgoingContext(c.ctx, metadataForwarded, "true", metadataMachine, someAddress.String())
	_, err = follower.Enroll(ctx, &v1.EnrollRequest{Token: gone, Name: "machine"})
	wantCode(t, err, codes.Unauthenticated, "join token")
	if counts := unknown.failures.counts; len(counts) != 1 || counts[netip.PrefixFrom(someAddress, 32)] != 1 {
		t.Errorf("counted: %v", counts)
	}
}

// get asks by HTTP, as the bearer of a token.
func (c *cluster) get(t *testing.T, token, path string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(c.ctx, http.MethodGet, "https://"+c.Address()+path, nil)
	must(t, err)
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := c.web(nil).Do(request)
	must(t, err)
	must(t, response.Body.Close())
	return response.StatusCode
}
