package nodenet_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/nodenet"
	"github.com/cloudless/cloudless/internal/nodenet/learned"
)

// attachWith attaches an endpoint with egress rules and a program that answers.
func (l *lab) attachWith(namespace, uid string, egress *nodenet.Egress) nodenet.Attachment {
	l.t.Helper()
	a, err := l.network.Attach(context.Background(), nodenet.Endpoint{UID: uid, Hostname: uid, Group: uid, Owner: uid, Namespace: namespace, Egress: egress})
	l.must(err)
	l.serve(a.Namespace, uid)
	l.must(l.network.Serve(uid))
	return a
}

func allow(rules ...nodenet.EgressRule) *nodenet.Egress { return &nodenet.Egress{Rules: rules} }

func to(prefix, protocol string, ports ...uint16) nodenet.EgressRule {
	return nodenet.EgressRule{Prefix: netip.MustParsePrefix(prefix), Protocol: protocol, Ports: ports}
}

func named(name, protocol string, ports ...uint16) nodenet.EgressRule {
	return nodenet.EgressRule{Name: name, Protocol: protocol, Ports: ports}
}

func (l *lab) setEgress(uid string, to *nodenet.Egress) {
	l.t.Helper()
	changed, err := l.network.SetEgress(uid, to)
	l.must(err)
	if !changed {
		l.t.Errorf("new rules for %s change nothing", uid)
	}
}

// refused checks that a connection is refused at once, not dropped.
func (l *lab) refused(from, network, addr string) {
	l.t.Helper()
	_, _, err := ask(from, network, addr)
	// TCP is reset. UDP gets an error that the kernel makes of an ICMP message.
	if !errors.Is(err, syscall.ECONNREFUSED) && !(network == "udp" && (errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.EACCES))) {
		l.t.Errorf("%s %s from %q: want a refusal, got %v", network, addr, from, err)
	}
}

var outside4, outside6 = there4 + ":8000", "[" + there6 + "]:8000"

// An endpoint with rules reaches what they allow, and is told at once about the rest. It is reached like any other, and
// reaches the cluster.
func TestEgressAllowsOnlyItsRules(t *testing.T) {
	l := newLab(t)
	l.serve(l.outside, "outside")
	db := l.attachIn("shop", "db", "db")
	free := l.attachIn("shop", "free", "free")
	for i, c := range []struct {
		egress   *nodenet.Egress
		tcp, udp string // which of the addresses are open
	}{
		{allow(), "", ""},
		{allow(to(there4+"/32", "")), "4", "4"},
		{allow(to("198.51.100.0/24", "tcp", 8000), to("2001:db8::/32", "udp")), "4", "6"},
		{allow(to("0.0.0.0/0", "", 80, 8000), to("::/0", "tcp", 443)), "4", "4"},
		{allow(to("203.0.113.0/24", ""), to(there6+"/128", "", 8000)), "6", "6"},
		{nil, "46", "46"},
	} {
		web := l.attachWith("shop", fmt.Sprint("web", i), c.egress)
		for protocol, open := range map[string]string{"tcp": c.tcp, "udp": c.udp} {
			for family, addr := range map[string]string{"4": outside4, "6": outside6} {
				if len(open) == 2 || open == family {
					l.open(web.Namespace, protocol, addr, "outside")
				} else {
					l.refused(web.Namespace, protocol, addr)
				}
			}
		}
		l.open(web.Namespace, "tcp", netip.AddrPortFrom(db.Addresses[0], insidePort).String(), "db")
		l.open(free.Namespace, "tcp", netip.AddrPortFrom(web.Addresses[1], insidePort).String(), fmt.Sprint("web", i))
		l.must(l.network.Detach(t.Context(), fmt.Sprint("web", i)))
	}
	l.open(free.Namespace, "tcp", outside4, "outside")
	if l.dropped("web0", "egress") == 0 || l.dropped("free", "egress") > 0 {
		t.Error("what egress rules refuse is not counted for the workload that tried it")
	}
}

// A name is open by the addresses that were learned for it, for the replica that asked and the ports of the rule. What
// was learned outlives the process, and a table that another program has flushed is closed.
func TestEgressByName(t *testing.T) {
	l := newLab(t)
	l.serve(l.outside, "outside")
	rule := named("*.example.org", "tcp", insidePort)
	egress := allow(rule, named("other.example.net", ""))
	web := l.attachWith("shop", "web", egress)
	sibling := l.attachWith("shop", "sibling", egress)
	l.refused(web.Namespace, "tcp", outside4)
	learner := learned.New("cloudless_" + l.opts.ID)
	defer learner.Close()
	learn := func(again bool) {
		t.Helper()
		var list []learned.Address
		for i, address := range []string{there4, there6} {
			list = append(list, learned.Address{Replica: web.Addresses[i], Address: netip.MustParseAddr(address), Rule: rule.ID(), TTL: time.Minute, Again: again})
		}
		l.must(learner.Learn(list))
	}
	learn(false)
	both := func() {
		t.Helper()
		l.open(web.Namespace, "tcp", outside4, "outside")
		l.open(web.Namespace, "tcp", outside6, "outside")
	}
	both()
	l.refused(web.Namespace, "udp", outside4)
	l.refused(web.Namespace, "tcp", there4+":8001")
	l.refused(sibling.Namespace, "tcp", outside4)
	learn(true)
	both()
	l.restart()
	both()
	l.setEgress("web", allow(named("*.example.org", "tcp", 443)))
	l.refused(web.Namespace, "tcp", outside4)
	l.setEgress("web", egress)
	both()
	l.refused(sibling.Namespace, "tcp", outside4)
	learn(true)
	l.events.mu.Lock()
	for _, e := range l.events.list {
		if e.Reason == "RulesRestored" {
			t.Error("what the resolver adds counts as a change by another program")
		}
	}
	l.events.mu.Unlock()
	l.run("", "nft", "flush", "ruleset")
	l.events.await(t, "RulesRestored")
	l.refused(web.Namespace, "tcp", outside4)
	learn(true)
	both()
}

// With a closed inside, services are open only by a name that a rule has.
func TestEgressClosedInside(t *testing.T) {
	for _, setting := range []string{"0", "1"} { // whether rules see bridged packets
		t.Run("bridge-nf-call-iptables="+setting, func(t *testing.T) {
			l := newLab(t)
			l.bridgeRulesSeeAll(setting)
			closedInside(l)
		})
	}
}

func closedInside(l *lab) {
	l.t.Helper()
	l.must(l.network.SetRanges(nodenet.Ranges{
		Replicas: []netip.Prefix{netip.MustParsePrefix("10.64.0.0/10")}, Services: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/16")},
	}))
	db := l.attachIn("shop", "db", "db")
	spy := l.attachIn("other", "spy", "spy")
	vip := netip.MustParseAddr("10.128.0.7")
	l.must(l.network.SetServices([]nodenet.Service{{
		ID: "db.shop", Addresses: []netip.Addr{vip}, Ports: []nodenet.ServicePort{{Protocol: "tcp", Port: 5432, Target: insidePort}},
		Backends: []nodenet.Backend{{Addresses: db.Addresses[:1], Weight: 1}},
	}}))
	rule := named("db.shop.cloudless.internal", "tcp", 5432)
	web := l.attachWith("shop", "web", &nodenet.Egress{Closed: true, Rules: []nodenet.EgressRule{rule, to("10.0.0.0/8", "")}})
	direct := netip.AddrPortFrom(db.Addresses[0], insidePort).String()
	l.refused(web.Namespace, "tcp", "10.128.0.7:5432")
	l.refused(web.Namespace, "tcp", direct)
	learner := learned.New("cloudless_" + l.opts.ID)
	defer learner.Close()
	l.must(learner.Learn([]learned.Address{
		{Replica: web.Addresses[0], Address: vip, Rule: rule.ID()},
		{Replica: web.Addresses[0], Address: spy.Addresses[0], Rule: rule.ID()},
	}))
	l.open(web.Namespace, "tcp", "10.128.0.7:5432", "db")
	l.refused(web.Namespace, "tcp", direct)
	l.setEgress("web", &nodenet.Egress{Closed: true, Rules: []nodenet.EgressRule{named("db.shop.cloudless.internal", "")}})
	l.must(learner.Learn([]learned.Address{{Replica: web.Addresses[0], Address: spy.Addresses[0], Rule: named("db.shop.cloudless.internal", "").ID()}}))
	l.closed(web.Namespace, "tcp", netip.AddrPortFrom(spy.Addresses[0], insidePort).String(), "web", "namespace") // as without egress rules
}

// New rules count at once: a connection that they do not allow is cut, and any other goes on.
func TestEgressChangesInPlace(t *testing.T) {
	l := newLab(t)
	l.serve(l.outside, "outside")
	db := l.attachIn("shop", "db", "db")
	web := l.attachWith("shop", "web", nil)
	four, six := l.dial(web.Namespace, "tcp", outside4), l.dial(web.Namespace, "tcp", outside6)
	inside := l.dial(web.Namespace, "tcp", netip.AddrPortFrom(db.Addresses[0], insidePort).String())
	l.setEgress("web", allow(to(there4+"/32", "tcp", insidePort)))
	for name, conn := range map[string]net.Conn{"allowed": four, "inside": inside} {
		if _, _, err := speak(conn); err != nil {
			t.Errorf("the %s connection: %v", name, err)
		}
	}
	if _, _, err := speak(six); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the connection that is not allowed any more: %v, want a reset", err)
	}
	l.setEgress("web", allow(to("198.51.100.0/24", "")))
	if _, _, err := speak(four); err != nil {
		t.Errorf("the connection that is still allowed: %v", err)
	}
	l.setEgress("web", nil)
	l.open(web.Namespace, "tcp", outside6, "outside")
}

// Rules are on disk and in the kernel: an endpoint is never without them, whatever happens to the process, and
// whatever address it uses.
func TestEgressIsNeverOpen(t *testing.T) {
	l := newLab(t)
	l.serve(l.outside, "outside")
	web := l.attachWith("shop", "web", allow())
	l.stop()
	l.refused(web.Namespace, "tcp", outside4)
	l.start()
	l.attachIn("shop", "db", "db") // writes the rules of a new process
	l.refused(web.Namespace, "tcp", outside4)
	// A replica that pretends to be one without rules does not get out.
	free := l.attachIn("shop", "free", "free")
	heard := l.hear(l.outside, 9000)
	l.must(say(web.Namespace, free.Addresses[0].String(), there4+":9000"))
	l.must(say(web.Namespace, free.Addresses[1].String(), "["+there6+"]:9000"))
	eventually(t, func() error {
		if n := l.dropped("web", "spoofed"); n < 2 {
			return fmt.Errorf("%d spoofed packets", n)
		}
		return nil
	})
	l.must(say(free.Namespace, free.Addresses[0].String(), there4+":9000"))
	if from := <-heard; from != here4 || len(heard) > 0 {
		t.Errorf("the outside got something from %s, and %d more", from, len(heard))
	}
}

// A kernel that cannot hold an endpoint to its addresses attaches none with rules.
func TestEgressNeedsRulesForBridges(t *testing.T) {
	l := newLabWith(t, (*nodenet.Options).WithoutBridgeRules)
	if _, err := l.network.Attach(t.Context(), nodenet.Endpoint{UID: "a", Egress: allow()}); !errors.Is(err, nodenet.ErrUnguarded) {
		t.Errorf("attached: %v", err)
	}
}

// Whoever runs a workload learns what its rules refused, without being flooded.
func TestRefusedConnectionsAreTold(t *testing.T) {
	l := newLab(t)
	web := l.attachWith("shop", "web", allow(to(there4+"/32", "tcp", 443)))
	l.refused(web.Namespace, "tcp", outside4)
	for port := range 5 {
		l.refused(web.Namespace, "udp", fmt.Sprintf("[%s]:%d", there6, 9000+port))
	}
	event := l.events.await(t, "EgressRefused")
	if event.UID != "web" || !event.Warning || !strings.Contains(event.Message, "198.51.100.2:8000/tcp, [2001:db8::2]:9000/udp") && !strings.Contains(event.Message, "198.51.100.2:8000/tcp.") {
		t.Errorf("the event is %+v", event)
	}
}

// A new process writes the whole table again, with as many addresses of names as the replicas of a node have.
func TestManyLearnedAddressesAreKept(t *testing.T) {
	l := newLab(t)
	l.serve(l.outside, "outside")
	rule := named("*.example.org", "")
	web := l.attachWith("shop", "web", allow(rule))
	learner := learned.New("cloudless_" + l.opts.ID)
	defer learner.Close()
	const many, each = 100_000, 5000
	for start := 0; start < many; start += each {
		var list []learned.Address
		for i := range each {
			n := start + i
			list = append(list, learned.Address{Replica: web.Addresses[0], Rule: rule.ID(), Address: netip.AddrFrom4([4]byte{192, byte(n >> 16), byte(n >> 8), byte(n)})})
		}
		l.must(learner.Learn(list))
	}
	l.must(learner.Learn([]learned.Address{{Replica: web.Addresses[0], Rule: rule.ID(), Address: netip.MustParseAddr(there4)}}))
	l.restart()
	l.attachIn("shop", "db", "db") // writes the rules
	l.open(web.Namespace, "tcp", outside4, "outside")
	if n := l.learnedAddresses(); n <= many {
		t.Errorf("%d addresses are left of %d", n, many+1)
	}
}

// learnedAddresses counts them. The kernel moves a set that grows to a larger table in the background, and whoever reads
// it meanwhile misses some: it is read until that finds nothing new.
func (l *lab) learnedAddresses() int {
	l.t.Helper()
	all := map[string]bool{}
	for {
		before := len(all)
		out, err := exec.Command("nft", "list", "set", "inet", "cloudless_"+l.opts.ID, "learned4").Output()
		l.must(err)
		_, elements, _ := strings.Cut(string(out), "elements = {")
		for element := range strings.SplitSeq(elements, ",") {
			if key, _, found := strings.Cut(strings.TrimSpace(element), " timeout "); found {
				all[key] = true
			}
		}
		if len(all) == before {
			return before
		}
	}
}
