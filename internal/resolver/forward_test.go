package resolver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/cloudless/cloudless/internal/must"
)

// countingUpstream makes every foreign answer and counts the questions.
func countingUpstream(t *testing.T, r *Resolver, records ...string) *atomic.Int32 {
	var asked atomic.Int32
	fixed(r, func(q *query) (*dns.Msg, error) {
		asked.Add(1)
		m := answerWith(t, q, records...)
		if len(m.Answer) == 0 {
			m.Rcode = dns.RcodeNameError
		}
		return m, nil
	})
	return &asked
}

func TestAnswersAreKeptForTheirTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResolver(t)
		asked := countingUpstream(t, r, "www.example.com. 300 IN CNAME example.com.", "example.com. 60 IN A 192.0.2.1")
		ttls := func() (all []uint32) {
			for _, rr := range lookup(t, r, inShop, "WWW.example.com", dns.TypeA).Answer {
				all = append(all, rr.Header().Ttl)
			}
			return all
		}
		for _, step := range []struct {
			after     time.Duration
			ttls      string
			questions int32
		}{
			{0, "[300 60]", 1},
			{10 * time.Second, "[290 50]", 1},
			{49500 * time.Millisecond, "[241 1]", 1}, // at 59.5 s
			{500 * time.Millisecond, "[300 60]", 2},  // the first record that expires ends all
		} {
			time.Sleep(step.after)
			if got := fmt.Sprint(ttls()); got != step.ttls || asked.Load() != step.questions {
				t.Errorf("after %v: got %s and %d questions, want %s and %d", step.after, got, asked.Load(), step.ttls, step.questions)
			}
		}
	})
}

func TestHowLongAnswersAreKept(t *testing.T) {
	const start = "example.com. 3600 IN SOA a. b. 1 2 3 4 30"
	for text, c := range map[string]struct {
		records []string
		want    time.Duration
	}{
		"negative, by the SOA":           {[]string{start}, 30 * time.Second},
		"negative, by the SOA's own TTL": {[]string{strings.Replace(start, "3600", "7", 1)}, 7 * time.Second},
		"negative, with a limit":         {[]string{"example.com. 86400 IN SOA a. b. 1 2 3 4 86400"}, 5 * time.Minute},
		"negative, without SOA":          {nil, 0},
		"positive, with a limit":         {[]string{"x.example.com. 999999 IN A 192.0.2.1"}, time.Hour},
		"positive, not at all":           {[]string{"x.example.com. 0 IN A 192.0.2.1"}, 0},
	} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newResolver(t)
				asked := countingUpstream(t, r, c.records...)
				ask := func() int32 {
					lookup(t, r, inShop, "x.example.com", dns.TypeA)
					return asked.Load()
				}
				ask()
				if c.want > 0 {
					time.Sleep(c.want - time.Nanosecond)
					if ask() != 1 {
						t.Error("asked again too early")
					}
					time.Sleep(time.Nanosecond)
				}
				if ask() != 2 {
					t.Error("kept for too long")
				}
			})
		})
	}
}

// A failure is kept for a second, so that programs that repeat their question at once do not add to the trouble.
func TestFailuresAreKeptForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResolver(t)
		asked := 0
		fixed(r, func(*query) (*dns.Msg, error) { asked++; return nil, errors.New("unreachable") })
		for range 3 {
			if got := result(lookup(t, r, inShop, "example.com", dns.TypeA)); got != servfail {
				t.Errorf("got %s", got)
			}
		}
		time.Sleep(failureTTL)
		lookup(t, r, inShop, "example.com", dns.TypeA)
		if asked != 2 {
			t.Errorf("asked %d times", asked)
		}
	})
}

func TestEqualQueriesShareOneQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResolver(t)
		asked := 0
		fixed(r, func(q *query) (*dns.Msg, error) {
			asked++
			time.Sleep(time.Second)
			return answerWith(t, q, "example.com. 60 IN A 192.0.2.1"), nil
		})
		answers := make(chan *dns.Msg, 3)
		for i, name := range []string{"example.com", "EXAMPLE.com", "exAMple.COM"} {
			m := question(name, dns.TypeA)
			m.Id = uint16(i)
			go func() { answers <- send(t, r, inShop, m) }()
		}
		for range 3 {
			if got := result(<-answers); got != "192.0.2.1" {
				t.Errorf("got %s", got)
			}
		}
		if s := r.Stats(); asked != 1 || s.Forwarded != 1 || s.Merged != 2 {
			t.Errorf("asked %d times: %+v", asked, s)
		}
		// Another type, or another wish for signatures, is another question.
		lookup(t, r, inShop, "example.com", dns.TypeAAAA)
		send(t, r, inShop, question("example.com", dns.TypeA).SetEdns0(1232, true))
		if asked != 3 {
			t.Errorf("asked %d times", asked)
		}
	})
}

func TestCacheIsBounded(t *testing.T) {
	r := newResolver(t)
	countingUpstream(t, r, "x.example. 3600 IN TXT "+strings.Repeat("x", 200))
	name := func(i int) string { return fmt.Sprintf("%d.example", i) }
	const many = cacheBytes / (entryOverhead + 150)
	for i := range many {
		lookup(t, r, inShop, name(i), dns.TypeTXT)
		lookup(t, r, inShop, name(0), dns.TypeTXT) // used all the time
	}
	before := r.Stats().Cached
	lookup(t, r, inShop, name(0), dns.TypeTXT)
	lookup(t, r, inShop, name(many-1), dns.TypeTXT)
	if got := r.Stats().Cached - before; got != 2 {
		t.Errorf("%d of the last used are kept", got)
	}
	lookup(t, r, inShop, name(1), dns.TypeTXT)
	if got := r.Stats().Cached - before; got != 2 {
		t.Error("the oldest one is kept, too")
	}
	sum := 0
	for e := r.cache.recent.Front(); e != nil; e = e.Next() {
		sum += e.Value.(*entry).bytes
	}
	if sum != r.cache.bytes || sum > cacheBytes || len(r.cache.entries) != r.cache.recent.Len() {
		t.Errorf("%d bytes are counted, %d are there", r.cache.bytes, sum)
	}
}

func TestOtherUpstreamsClearTheCache(t *testing.T) {
	r := newResolver(t)
	asked := countingUpstream(t, r, "example.com. 60 IN A 192.0.2.1")
	one, two := netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("192.0.2.2:53")
	for i, upstreams := range [][]netip.AddrPort{{one}, {one}, {one, two}, {two, one}} {
		r.SetUpstreams(upstreams)
		lookup(t, r, inShop, "example.com", dns.TypeA)
		if want := []int32{1, 1, 2, 3}[i]; asked.Load() != want {
			t.Errorf("%v: asked %d times, want %d", upstreams, asked.Load(), want)
		}
	}
}

// A machine whose resolv.conf names its own resolver must not ask itself.
func TestNothingIsForwardedToTheResolverItself(t *testing.T) {
	r := newResolver(t)
	own, other := netip.MustParseAddrPort("10.64.0.1:53"), netip.MustParseAddrPort("192.0.2.1:53")
	var asked []netip.AddrPort
	r.pool.ask = func(_ context.Context, to netip.AddrPort, q *query) (*dns.Msg, error) {
		asked = append(asked, to)
		return answerWith(t, q, "example.com. 60 IN A 192.0.2.1"), nil
	}
	r.SetUpstreams([]netip.AddrPort{own, other})
	must.Succeed(t, r.SetListen([]netip.AddrPort{own}))
	lookup(t, r, inShop, "example.com", dns.TypeA)
	r.SetUpstreams([]netip.AddrPort{own})
	if got := result(lookup(t, r, inShop, "example.com", dns.TypeA)); got != servfail || fmt.Sprint(asked) != fmt.Sprint([]netip.AddrPort{other}) {
		t.Errorf("got %s, asked %v", got, asked)
	}
}

func TestNamesOfTheClusterAreNeverForwarded(t *testing.T) {
	r := newResolver(t)
	asked := countingUpstream(t, r)
	for _, name := range []string{
		"cloudless.internal", "x.cloudless.internal", "x.y.z.CLOUDLESS.internal", "example.com.shop.cloudless.internal",
		"1.2.64.10.in-addr.arpa", "127.10.in-addr.arpa", "1.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa", "localhost",
	} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypePTR, dns.TypeSOA, dns.TypeANY} {
			lookup(t, r, inShop, name, qtype)
		}
	}
	if asked.Load() > 0 {
		t.Errorf("%d questions were forwarded", asked.Load())
	}
}

// upstreamsIn makes a pool of two upstreams, whose behaviour the test sets, and measures how long a question takes.
func upstreamsIn(t *testing.T) (p *pool, behave map[string]func(context.Context) error, took func() time.Duration) {
	behave = map[string]func(context.Context) error{}
	p = &pool{}
	p.ask = func(ctx context.Context, to netip.AddrPort, q *query) (*dns.Msg, error) {
		if err := behave[to.Addr().String()](ctx); err != nil {
			return nil, err
		}
		return answerWith(t, q, "example.com. 60 IN TXT "+to.Addr().String()), nil
	}
	p.set([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("192.0.2.2:53")})
	return p, behave, func() time.Duration {
		began := time.Now()
		_, err := p.exchange(t.Context(), &query{name: "example.com.", qtype: dns.TypeTXT})
		must.Succeed(t, err)
		elapsed := time.Since(began)
		synctest.Wait() // the attempts that lost have been judged
		return elapsed
	}
}

func silent(ctx context.Context) error  { <-ctx.Done(); return ctx.Err() }
func answers(context.Context) error     { time.Sleep(10 * time.Millisecond); return nil }
func unreachable(context.Context) error { return errors.New("connection refused") }

// A dead upstream costs the first question a moment, and the next ones nothing. When it is back, it is used again.
func TestDeadUpstreamCostsAMomentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, behave, took := upstreamsIn(t)
		behave["192.0.2.1"], behave["192.0.2.2"] = silent, answers
		if got := took(); got != hedgeAfter+10*time.Millisecond {
			t.Errorf("the first question took %v", got)
		}
		for range 600 { // over minutes, in which the dead one is tried again and again
			if got := took(); got != 10*time.Millisecond {
				t.Fatalf("a later question took %v", got)
			}
			time.Sleep(time.Second)
		}
		behave["192.0.2.1"] = answers
		time.Sleep(maxRetry)
		took() // tries it beside the other one
		time.Sleep(20 * time.Millisecond)
		behave["192.0.2.2"] = func(context.Context) error {
			t.Error("the first upstream works again, but the second is asked")
			return nil
		}
		if list, _ := p.order(); list[0].address.Addr() != addr("192.0.2.1") {
			t.Fatalf("the order is %v", list)
		}
		took()
	})
}

func TestRefusingUpstreamCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, behave, took := upstreamsIn(t)
		behave["192.0.2.1"], behave["192.0.2.2"] = unreachable, answers
		if got := took(); got != 10*time.Millisecond {
			t.Errorf("took %v", got)
		}
	})
}

// A packet may get lost: the question is repeated.
func TestLostPacketsAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, behave, took := upstreamsIn(t)
		p.set([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53")})
		var asked atomic.Int32
		behave["192.0.2.1"] = func(ctx context.Context) error {
			if asked.Add(1) <= 2 {
				return silent(ctx)
			}
			return nil
		}
		if got := took(); got != 2*resendAfter {
			t.Errorf("took %v", got)
		}
	})
}

// Programs wait for five seconds. They get an error before that.
func TestDeadUpstreamsFailInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResolver(t)
		p, behave, _ := upstreamsIn(t)
		behave["192.0.2.1"], behave["192.0.2.2"] = silent, silent
		r.exchange = p.exchange
		began := time.Now()
		if got := result(lookup(t, r, inShop, "example.com", dns.TypeA)); got != servfail || time.Since(began) != giveUpAfter {
			t.Errorf("got %s after %v", got, time.Since(began))
		}
		// Names of the cluster do not need them.
		began = time.Now()
		if got := result(lookup(t, r, inShop, "api.shop.cloudless.internal", dns.TypeA)); got != "10.96.0.1" || time.Since(began) != 0 {
			t.Errorf("got %s after %v", got, time.Since(began))
		}
		synctest.Wait()
	})
}

// An upstream that fails to answer may have a neighbour that does not.
func TestFailingUpstreamIsNotTheLastWord(t *testing.T) {
	p := &pool{}
	codes := map[string]int{"192.0.2.1": dns.RcodeServerFailure, "192.0.2.2": dns.RcodeSuccess}
	p.ask = func(_ context.Context, to netip.AddrPort, q *query) (*dns.Msg, error) {
		m := answerWith(t, q, "example.com. 60 IN A 192.0.2.1")
		m.Rcode = codes[to.Addr().String()]
		return m, nil
	}
	p.set([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("192.0.2.2:53")})
	for _, want := range []int{dns.RcodeSuccess, dns.RcodeServerFailure} {
		m, err := p.exchange(t.Context(), &query{name: "example.com.", qtype: dns.TypeA})
		if err != nil || m.Rcode != want {
			t.Errorf("got %v, %v", m, err)
		}
		codes["192.0.2.2"] = dns.RcodeServerFailure
	}
}

// A client that floods the resolver with names that wait for a dead upstream does not take the places of the others.
func TestGreedyClientLeavesRoomForOthers(t *testing.T) {
	r := newResolver(t)
	replicas := map[netip.Addr]Client{}
	for i := range 200 {
		replicas[netip.AddrFrom4([4]byte{10, 64, 0, byte(i + 2)})] = Client{Namespace: "shop"}
	}
	r.SetClients(replicas, nil)
	release := make(chan struct{})
	fixed(r, func(q *query) (*dns.Msg, error) {
		<-release
		return answerWith(t, q, q.name+" 60 IN A 192.0.2.1"), nil
	})
	waiting := make(chan []byte, 2*maxWaiting)
	flood := func(from netip.Addr, queries int) (admitted int) {
		for i := range queries {
			wire, err := question(fmt.Sprintf("%d.%v.example", i, from), dns.TypeA).Pack()
			must.Succeed(t, err)
			if _, pending := r.handle(wire, from, false, func(answer []byte) { waiting <- answer }); pending {
				admitted++
			}
		}
		return admitted
	}
	total := 0
	for from := range replicas {
		admitted := flood(from, 500)
		if total += admitted; admitted < alwaysFree || admitted > maxWaiting/4 {
			t.Errorf("%v has %d queries waiting, after %d of others", from, admitted, total-admitted)
		}
	}
	if got := result(lookup(t, r, addr("10.64.0.2"), "api.shop.cloudless.internal", dns.TypeA)); got != "10.96.0.1" {
		t.Errorf("a name of the cluster: %s", got)
	}
	close(release)
	for range total {
		<-waiting
	}
	r.background.Wait()
	if r.admission.total != 0 {
		t.Errorf("%d queries still count as waiting", r.admission.total)
	}
}

// Queries above a client's rate are dropped, and do not count against other clients.
func TestRateOfOneClientIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResolver(t)
		wire, err := question("api.shop.cloudless.internal", dns.TypeA).Pack()
		must.Succeed(t, err)
		answered := func(from netip.Addr, queries int) (n int) {
			for range queries {
				if answer, _ := r.handle(wire, from, false, nil); answer != nil {
					n++
				}
			}
			return n
		}
		const burst = int(queryBurst / time.Second * queriesPerSecond)
		if got := answered(inShop, burst+5000); got != burst {
			t.Errorf("%d of a burst are answered", got)
		}
		if got := answered(inBank, 1000); got != 1000 {
			t.Errorf("only %d queries of another client are answered", got)
		}
		time.Sleep(time.Second)
		if got := answered(inShop, burst); got != queriesPerSecond {
			t.Errorf("%d are answered in a second", got)
		}
		if got := r.Stats().Dropped; got != 5000+uint64(burst)-queriesPerSecond {
			t.Errorf("%d are counted as dropped", got)
		}
	})
}

// The machine's own programs may look up any service. One that is not here is fetched first, once for all who ask.
func TestServicesAreFetchedForTheMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResolver(t)
		var fetched []Name
		var fail error
		r.fetch = func(_ context.Context, name Name) error {
			fetched = append(fetched, name)
			time.Sleep(time.Second)
			if name.Name == "far" && fail == nil {
				r.Update([]Service{{Name: name, V4: addr("10.96.7.7")}}, nil)
			}
			return fail
		}
		answers := make(chan string, 3)
		for range 3 {
			go func() { answers <- result(lookup(t, r, host, "far.away.cloudless.internal", dns.TypeA)) }()
		}
		for range 3 {
			if got := <-answers; got != "10.96.7.7" {
				t.Errorf("got %s", got)
			}
		}
		if got := result(lookup(t, r, host, "_x._tcp.None.away.cloudless.internal", dns.TypeSRV)); got != nxdomain {
			t.Errorf("a service that does not exist: %s", got)
		}
		if want := []Name{{"away", "far"}, {"away", "none"}}; fmt.Sprint(fetched) != fmt.Sprint(want) {
			t.Errorf("fetched %v, want %v", fetched, want)
		}
		fail = errors.New("no server can be reached")
		if got := result(lookup(t, r, host, "other.away.cloudless.internal", dns.TypeA)); got != servfail {
			t.Errorf("without a server: %s", got)
		}
		// What is here needs no fetching, and replicas get only what is here.
		for name, from := range map[string]netip.Addr{"x.far.away": host, "away": host, "none.shop": inShop, "no.bank": inBank} {
			if got := result(lookup(t, r, from, name+".cloudless.internal", dns.TypePTR)); got != nxdomain && name != "away" {
				t.Errorf("%s: %s", name, got)
			}
		}
		if len(fetched) != 3 || r.admission.total != 0 {
			t.Errorf("fetched %v, %d still wait", fetched, r.admission.total)
		}
	})
}

// The upstream may be a forwarder whose own upstream is the resolver. Equal queries are merged, so that a question goes
// round once, and fails in time.
func TestLoopThroughAnotherForwarderEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResolver(t)
		var asked atomic.Int32
		r.pool.ask = func(ctx context.Context, _ netip.AddrPort, q *query) (*dns.Msg, error) {
			asked.Add(1)
			back := make(chan *dns.Msg, 1)
			go func() { back <- send(t, r, host, q.message(true)) }()
			select {
			case m := <-back:
				return m, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		r.SetUpstreams([]netip.AddrPort{netip.MustParseAddrPort("127.0.0.53:53")})
		if got := result(lookup(t, r, inShop, "example.com", dns.TypeA)); got != servfail {
			t.Errorf("got %s", got)
		}
		if s := r.Stats(); asked.Load() > maxAttempts || s.Forwarded != 1 {
			t.Errorf("asked %d times: %+v", asked.Load(), s)
		}
	})
}

// Setting the machine's clock neither expires nor prolongs anything, because every time has a monotonic reading.
func TestTimesAreMonotonic(t *testing.T) {
	r := newResolver(t)
	countingUpstream(t, r, "example.com. 60 IN A 192.0.2.1")
	lookup(t, r, inShop, "example.com", dns.TypeA)
	r.SetUpstreams([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53")})
	lookup(t, r, inShop, "example.com", dns.TypeA)
	r.pool.report(r.pool.upstreams[0], false)
	e := r.cache.recent.Front().Value.(*entry)
	for what, at := range map[string]time.Time{"stored": e.stored, "expire": e.expire, "retry": r.pool.upstreams[0].retry, "began": r.began} {
		if at == at.Round(0) { // which removes the monotonic reading
			t.Errorf("%s is %v, by the machine's clock", what, at)
		}
	}
}
