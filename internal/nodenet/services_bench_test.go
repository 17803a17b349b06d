package nodenet_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/nodenet"
)

// manyServices are 1,000 services of 10 backends on other nodes.
func manyServices() []nodenet.Service {
	var all []nodenet.Service
	for i := range 1000 {
		v6 := vip6.As16()
		v6[12], v6[13] = byte(1+i/250), byte(i%250)
		s := nodenet.Service{
			ID:        fmt.Sprintf("service-%d.shop", i),
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(1 + i/250), byte(i % 250)}), netip.AddrFrom16(v6)},
			Ports:     []nodenet.ServicePort{{Protocol: "tcp", Port: 80, Target: insidePort}},
		}
		for j := range 10 {
			s.Backends = append(s.Backends, nodenet.Backend{Weight: 1000, Addresses: []netip.Addr{
				netip.AddrFrom4([4]byte{10, 64, byte(4 + i/25), byte(2 + i%25*10 + j)}),
				netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x64, 0, 0, 0, byte(4 + i/25), 14: 1, 15: byte(2 + i%25*10 + j)}),
			}})
		}
		all = append(all, s)
	}
	return all
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

func milliseconds(f func() error) (float64, error) {
	began := time.Now()
	err := f()
	return float64(time.Since(began).Microseconds()) / 1000, err
}

// BenchmarkProgramServices writes 1,000 services of 10 backends into a table that has none. Its floor is nft, which
// loads the same chains and maps into another table.
func BenchmarkProgramServices(b *testing.B) {
	l := newServiceLab(b)
	l.attach("client", "client")
	all := manyServices()
	rules := nftRules(all)
	var took, byNft []float64
	for b.Loop() {
		ms, err := milliseconds(func() error { return l.network.SetServices(all) })
		l.must(err)
		took = append(took, ms)
		l.must(l.network.SetServices(nil))
		byNft = append(byNft, l.loadByNft(rules))
	}
	b.ReportMetric(median(took), "program-ms")
	b.ReportMetric(median(byNft), "nft-ms")
}

// loadByNft is how many milliseconds nft takes to load a table with the same chains and maps for services.
func (l *lab) loadByNft(rules []byte) float64 {
	l.t.Helper()
	load := exec.Command("nft", "-f", "-")
	load.Stdin = bytes.NewReader(rules)
	ms, err := milliseconds(func() error {
		out, err := load.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("nft -f: %w: %.500s", err, out)
		}
		return err
	})
	l.must(err)
	l.run("", "nft", "delete", "table", "inet", "floor")
	return ms
}

// nftRules describes services for nft as our own table has them: for each family a map of slots, and a chain for each
// service that draws from them.
func nftRules(all []nodenet.Service) []byte {
	var text, services4, services6 bytes.Buffer
	text.WriteString("table inet floor {\n")
	for _, s := range all {
		fmt.Fprintf(&text, "map slots4_%[1]s { typeof numgen random mod 10 : ip daddr . tcp dport; elements = { ", chainName(s))
		for i, b := range s.Backends {
			fmt.Fprintf(&text, "%d : %v . %d, ", i, b.Addresses[0], insidePort)
		}
		fmt.Fprintf(&text, "}; }\nmap slots6_%[1]s { typeof numgen random mod 10 : ip6 daddr . tcp dport; elements = { ", chainName(s))
		for i, b := range s.Backends {
			fmt.Fprintf(&text, "%d : %v . %d, ", i, b.Addresses[1], insidePort)
		}
		fmt.Fprintf(&text, "}; }\nchain %[1]s {\nmeta l4proto tcp dnat ip to numgen random mod 10 map @slots4_%[1]s\n"+
			"meta l4proto tcp dnat ip6 to numgen random mod 10 map @slots6_%[1]s\n}\n", chainName(s))
		fmt.Fprintf(&services4, "%v . tcp . 80 : goto %s, ", s.Addresses[0], chainName(s))
		fmt.Fprintf(&services6, "%v . tcp . 80 : goto %s, ", s.Addresses[1], chainName(s))
	}
	fmt.Fprintf(&text, "map services4 { type ipv4_addr . inet_proto . inet_service : verdict; elements = { %s}; }\n", &services4)
	fmt.Fprintf(&text, "map services6 { type ipv6_addr . inet_proto . inet_service : verdict; elements = { %s}; }\n}\n", &services6)
	return text.Bytes()
}

func chainName(s nodenet.Service) string { return "service_" + s.ID + "_tcp_80" }

// BenchmarkUpdateService takes a backend from one of 1,000 services and gives it back.
func BenchmarkUpdateService(b *testing.B) {
	l := newServiceLab(b)
	l.attach("client", "client")
	all := manyServices()
	l.must(l.network.SetServices(all))
	var took []float64
	for i := 0; b.Loop(); i++ {
		s := all[i/2%len(all)]
		if i%2 == 0 {
			s.Backends = s.Backends[1:]
		}
		ms, err := milliseconds(func() error { return l.network.UpdateServices([]nodenet.Service{s}, nil) })
		l.must(err)
		took = append(took, ms)
	}
	b.ReportMetric(median(took), "update-ms")
}

const (
	connectRound   = 2000 // connections of each kind in a round
	connectWorkers = 4
)

// BenchmarkConnect connects from a replica to others on the same node in turns: by a virtual address, and by their own.
// There are 1,000 other services.
func BenchmarkConnect(b *testing.B) {
	l := newServiceLab(b)
	client := l.attach("client", "client")
	s := service("api")
	var direct []netip.AddrPort
	for i := range 4 {
		a := l.attach(fmt.Sprint("api-", i), "api")
		s.Backends = append(s.Backends, backend(a, 1))
		direct = append(direct, netip.AddrPortFrom(a.Addresses[0], insidePort))
	}
	l.must(l.network.SetServices(append(manyServices(), s)))
	var through, straight []float64
	l.connections(client.Namespace, netip.AddrPortFrom(vip4, 80)) // warms up
	for b.Loop() {
		through = append(through, l.connections(client.Namespace, netip.AddrPortFrom(vip4, 80)))
		straight = append(straight, l.connections(client.Namespace, direct...))
	}
	b.ReportMetric(median(through), "virtual/s")
	b.ReportMetric(median(straight), "direct/s")
}

// connections is how many connections a second can be made from a namespace to some addresses in turns.
func (l *lab) connections(from string, to ...netip.AddrPort) float64 {
	l.t.Helper()
	errs := make([]error, connectWorkers)
	var workers sync.WaitGroup
	began := time.Now()
	for w := range connectWorkers {
		workers.Go(func() {
			errs[w] = inside(from, func() error {
				for i := range connectRound / connectWorkers {
					if err := connectOnce(to[i%len(to)]); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	workers.Wait()
	l.must(errors.Join(errs...))
	return connectRound / time.Since(began).Seconds()
}

// connectOnce makes a connection and resets it, so that it leaves no port in TIME_WAIT.
func connectOnce(to netip.AddrPort) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	peer := &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	err = unix.Connect(socket, peer)
	for errors.Is(err, unix.EINTR) {
		err = unix.Connect(socket, peer)
	}
	if errors.Is(err, unix.EISCONN) {
		err = nil
	}
	if err == nil {
		err = unix.SetsockoptLinger(socket, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	return errors.Join(err, unix.Close(socket))
}
