package nodenet_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/cloudless/cloudless/internal/nodenet"
	"github.com/cloudless/cloudless/internal/nodenet/learned"
)

// BenchmarkEgress measures a new connection of a replica, from none to many other replicas with rules and rules of its
// own, and what it costs to attach one more replica, to change its rules, and to learn an address. With many more
// replicas, the kernel's table of neighbours is full, which all tests of a machine share.
func BenchmarkEgress(b *testing.B) {
	for _, size := range []struct{ replicas, rules int }{{0, 0}, {0, 1}, {0, 256}, {400, 0}, {400, 10}} {
		b.Run(fmt.Sprintf("replicas=%d/rules=%d", size.replicas, size.rules), func(b *testing.B) { benchEgress(b, size.replicas, size.rules) })
	}
}

func benchEgress(b *testing.B, replicas, rules int) {
	l := newLabWith(b, func(*nodenet.Options) {})
	l.must(l.network.Configure(nodenet.Subnets{V4: netip.MustParsePrefix("10.64.0.0/20"), V6: netip.MustParsePrefix("fd00:64:0:3::/64")}))
	l.serve(l.outside, "outside")
	some := func(seed int) *nodenet.Egress {
		if rules == 0 {
			return nil
		}
		e := &nodenet.Egress{}
		for i := range rules - 1 {
			e.Rules = append(e.Rules, to(fmt.Sprintf("10.%d.%d.0/24", seed%256, i%256), "tcp", uint16(1000+seed/256)))
		}
		e.Rules = append(e.Rules, to(there4+"/32", "")) // the last one matches
		return e
	}
	for i := range replicas {
		_, err := l.network.Attach(b.Context(), nodenet.Endpoint{UID: fmt.Sprint("r", i), Group: "g", Egress: some(i + 1)})
		l.must(err)
	}
	web := l.attachWith("shop", "web", some(0))
	eventually(b, func() error { // neighbours find each other
		_, _, err := ask(web.Namespace, "tcp", outside4)
		return err
	})
	b.Run("connect", func(b *testing.B) {
		l.must(inside(web.Namespace, func() error {
			for b.Loop() {
				conn, err := net.Dial("tcp", outside4)
				if err != nil {
					return err
				}
				_ = conn.(*net.TCPConn).SetLinger(0)
				_ = conn.Close()
			}
			return nil
		}))
	})
	b.Run("attach", func(b *testing.B) {
		for b.Loop() {
			_, err := l.network.Attach(b.Context(), nodenet.Endpoint{UID: "more", Group: "more", Egress: some(9000)})
			l.must(err)
			l.must(l.network.Detach(b.Context(), "more"))
		}
	})
	if rules < 2 {
		return
	}
	b.Run("change", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			_, err := l.network.SetEgress("web", some(5000+i%2))
			l.must(err)
		}
	})
	b.Run("learn", func(b *testing.B) {
		learner := learned.New("cloudless_" + l.opts.ID)
		defer learner.Close()
		for i := 0; b.Loop(); i++ {
			l.must(learner.Learn([]learned.Address{{Replica: web.Addresses[0], Rule: 7, Address: netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})}}))
		}
	})
}
