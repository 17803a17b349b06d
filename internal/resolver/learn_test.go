package resolver

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"pgregory.net/rapid"
)

// pupil is a resolver whose client inShop may connect to some names, and what was learned for it.
type pupil struct {
	*Resolver
	mu      sync.Mutex
	learned []Learned
	fails   error
}

const inShop6 = "fd00::64:9"

func newPupil(t testing.TB, patterns ...string) *pupil {
	p := &pupil{Resolver: newResolver(t)}
	p.learn = func(list []Learned) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.learned = append(p.learned, list...)
		return p.fails
	}
	p.allow(patterns...)
	return p
}

func (p *pupil) allow(patterns ...string) {
	var rules []NameRule
	for i, pattern := range patterns {
		rules = append(rules, NameRule{Pattern: pattern, ID: uint32(i + 1)})
	}
	p.SetClients(map[netip.Addr]Client{
		inShop: {Namespace: "shop", Addresses: []netip.Addr{inShop, addr(inShop6)}, Rules: "some"}, inBank: {Namespace: "bank"},
	}, map[string][]NameRule{"some": rules})
}

// news are what was learned since the last call.
func (p *pupil) news() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for _, l := range p.learned {
		text := fmt.Sprintf("%d %v for %v, %v", l.Rule, l.Address, l.Client, l.TTL)
		if l.Again {
			text += " again"
		}
		all = append(all, text)
	}
	p.learned = nil
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// A replica gets the addresses of a name that its rules allow after they were learned for it: by aliases, for the family
// of the address, for each rule. Nothing is learned for others.
func TestAddressesAreLearnedBeforeTheAnswer(t *testing.T) {
	p := newPupil(t, "www.example.com", "*.example.com", "other.example")
	answers := map[uint16][]string{
		dns.TypeA: {
			"www.example.com. 300 IN CNAME edge.example.net.", "edge.example.net. 60 IN A 192.0.2.1", "edge.example.net. 60 IN A 192.0.2.2",
			"unrelated.example.net. 60 IN A 192.0.2.3",
		},
		dns.TypeAAAA:  {"edge.example.net. 60 IN AAAA 2001:db8::1", "www.example.com. 30 IN CNAME edge.example.net."},
		dns.TypeHTTPS: {"www.example.com. 60 IN HTTPS 1 . ipv4hint=192.0.2.4"},
		dns.TypeTXT:   {"www.example.com. 60 IN TXT 192.0.2.5"},
	}
	fixed(p.Resolver, func(q *query) (*dns.Msg, error) { return answerWith(t, q, answers[q.qtype]...), nil })
	lookup(t, p.Resolver, inBank, "www.example.com", dns.TypeA)
	if got := p.news(); got != "" {
		t.Errorf("for a client without rules: %s", got)
	}
	for qtype, want := range map[uint16]string{
		dns.TypeA: "1 192.0.2.1 for 127.0.0.2, 1m0s; 1 192.0.2.2 for 127.0.0.2, 1m0s; " +
			"2 192.0.2.1 for 127.0.0.2, 1m0s; 2 192.0.2.2 for 127.0.0.2, 1m0s", // from the cache
		dns.TypeAAAA:  "1 2001:db8::1 for fd00::64:9, 30s; 2 2001:db8::1 for fd00::64:9, 30s",
		dns.TypeHTTPS: "1 192.0.2.4 for 127.0.0.2, 1m0s; 2 192.0.2.4 for 127.0.0.2, 1m0s",
		dns.TypeTXT:   "",
	} {
		answer := lookup(t, p.Resolver, inShop, "WWW.example.com", qtype)
		if got := p.news(); got != want || answer.Rcode != dns.RcodeSuccess {
			t.Errorf("%s: learned %q, want %q", dns.TypeToString[qtype], got, want)
		}
	}
	lookup(t, p.Resolver, inShop, "example.com", dns.TypeA)
	if got := p.news(); got != "" {
		t.Errorf("for a name that no rule allows: %s", got)
	}
}

// What cannot be learned is not answered, so that programs try again instead of being refused.
func TestLookupFailsIfAddressCannotBeLearned(t *testing.T) {
	p := newPupil(t, "*.example.com")
	p.fails = errors.New("no such table")
	countingUpstream(t, p.Resolver, "www.example.com. 300 IN A 192.0.2.1")
	if got := result(lookup(t, p.Resolver, inShop, "www.example.com", dns.TypeA)); got != "SERVFAIL" {
		t.Errorf("the answer is %s", got)
	}
	p.fails = nil
	if got := result(lookup(t, p.Resolver, inShop, "www.example.com", dns.TypeA)); got != "192.0.2.1" {
		t.Errorf("later the answer is %s", got)
	}
}

// A foreign name does not lead into the cluster, whatever its owner answers. A name of the cluster does.
func TestForeignNamesDoNotLeadIntoTheCluster(t *testing.T) {
	p := newPupil(t, "*.example.com", "api.shop.cloudless.internal")
	countingUpstream(t, p.Resolver, "www.example.com. 300 IN A 10.96.0.1", "www.example.com. 300 IN A 192.0.2.1")
	lookup(t, p.Resolver, inShop, "www.example.com", dns.TypeA)
	if got := p.news(); got != "1 192.0.2.1 for 127.0.0.2, 5m0s" {
		t.Errorf("learned %s", got)
	}
	lookup(t, p.Resolver, inShop, "api.shop.cloudless.internal", dns.TypeA)
	if got := p.news(); got != "2 10.96.0.1 for 127.0.0.2, 5s" {
		t.Errorf("learned %s", got)
	}
}

// An address is learned again before it stops to count, after the rules have lost it, and not at every lookup. Rules that
// change keep what was learned for those that stay.
func TestAddressesAreLearnedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPupil(t, "www.example.com")
		countingUpstream(t, p.Resolver, "www.example.com. 5 IN A 192.0.2.1")
		ask := func() string {
			lookup(t, p.Resolver, inShop, "www.example.com", dns.TypeA)
			return p.news()
		}
		const again = "1 192.0.2.1 for 127.0.0.2, 5s again"
		for _, step := range []struct {
			after time.Duration
			want  string
		}{
			{0, "1 192.0.2.1 for 127.0.0.2, 5s"}, {0, ""}, {3 * time.Minute, ""}, {2 * time.Minute, again}, {time.Minute, ""},
		} {
			time.Sleep(step.after)
			if got := ask(); got != step.want {
				t.Errorf("after %v more: learned %q, want %q", step.after, got, step.want)
			}
		}
		p.Relearn()
		if got := p.news(); got != "1 192.0.2.1 for 127.0.0.2, 59m0s again" {
			t.Errorf("the rules were lost: %q", got)
		}
		p.allow("www.example.com", "*.example.org")
		if got := ask(); got != "" {
			t.Errorf("after a rule was added: %q", got)
		}
		p.allow()
		p.allow("www.example.com")
		if got := ask(); got == "" {
			t.Error("a rule that was gone meanwhile has kept its addresses")
		}
	})
}

// A replica that looks up everything below a wildcard fills neither the memory nor the sets of the others.
func TestOneClientLearnsSoMuch(t *testing.T) {
	p := newPupil(t, "*.example.com")
	n := 0
	fixed(p.Resolver, func(q *query) (*dns.Msg, error) {
		n++
		return answerWith(t, q, fmt.Sprintf("%s 300 IN A 10.%d.%d.%d", q.name, n>>16, n>>8&0xff, n&0xff)), nil
	})
	refused := ""
	for i := range maxLearned + 1 {
		refused = result(lookup(t, p.Resolver, inShop, fmt.Sprintf("n%d.example.com", i), dns.TypeA))
	}
	if learned := len(p.learned); refused != "SERVFAIL" || learned != maxLearned {
		t.Errorf("%d addresses were learned, and the answer to one more is %s", learned, refused)
	}
}

func TestMatchesName(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"api.example.com", "api.example.com.", true},
		{"API.example.com.", "api.EXAMPLE.com", true},
		{"api.example.com", "x.api.example.com", false},
		{"*.example.com", "api.example.com", true},
		{"*.example.com", "a.b.example.com", true},
		{"*.example.com", "example.com", false},
		{"*.example.com", "badexample.com", false},
		{"*.example.com", ".example.com", false},
		{"*.example.com", `evil\.example.com`, false},
		{"example.com", "example.com.evil.net", false},
		{"", "", false},
	} {
		if got := MatchesName(c.pattern, c.name); got != c.want {
			t.Errorf("%q allows %q: %v", c.pattern, c.name, got)
		}
	}
}

// A pattern allows exactly what its labels say, compared one by one from the end.
func TestMatchesNameLabelByLabel(t *testing.T) {
	label := rapid.StringMatching(`[a-cA-C]{1,2}`)
	rapid.Check(t, func(t *rapid.T) {
		below := rapid.SliceOfN(label, 1, 3).Draw(t, "pattern")
		name := rapid.SliceOfN(label, 1, 5).Draw(t, "name")
		wildcard := rapid.Bool().Draw(t, "wildcard")
		if rapid.Bool().Draw(t, "under") {
			name = append(name, below...)
		}
		same := len(name) >= len(below) && slices.EqualFunc(name[len(name)-len(below):], below, strings.EqualFold)
		want := same && (wildcard && len(name) > len(below) || !wildcard && len(name) == len(below))
		pattern := strings.Join(below, ".")
		if wildcard {
			pattern = "*." + pattern
		}
		if got := MatchesName(pattern, strings.Join(name, ".")+"."); got != want {
			t.Fatalf("%q allows %q: %v", pattern, strings.Join(name, "."), got)
		}
	})
}

func FuzzMatchesName(f *testing.F) {
	f.Add("*.example.com", "a.example.com.")
	f.Add("example.com", `a\.example.com`)
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if !MatchesName(pattern, name) {
			return
		}
		below, wildcard := strings.CutPrefix(canonicalName(pattern), "*.")
		if !wildcard && canonicalName(name) != below || wildcard && !dns.IsSubDomain(dns.Fqdn(below), dns.Fqdn(canonicalName(name))) && below != "" && dnsName(below) && dnsName(canonicalName(name)) {
			t.Errorf("%q allows %q", pattern, name)
		}
	})
}

func dnsName(name string) bool {
	_, ok := dns.IsDomainName(name)
	return ok
}

// An answer is parsed only once it is known to matter; one that is broken is passed on as it is.
func TestBrokenAnswersAreNotLearned(t *testing.T) {
	p := newPupil(t, "www.example.com")
	c := p.clients.of(inShop)
	q := request{client: c}
	q.msg.SetQuestion("www.example.com.", dns.TypeA)
	out, pending := p.teach(&q, []byte{1, 2, 3}, func([]byte) { t.Error("called") })
	if pending || string(out) != "\x01\x02\x03" {
		t.Errorf("%v, %v", out, pending)
	}
}
