package resolver

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/resolvconf"
)

// inNamespace runs the test in network and mount namespaces of its own, and reports whether this is the process there.
func inNamespace(t *testing.T) bool {
	t.Helper()
	const inside = "CLOUDLESS_RESOLVER_TEST"
	if os.Getenv(inside) != "" {
		command(t, "ip", "link", "set", "lo", "up")
		return true
	}
	if testing.Short() || os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	self := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	self.Env = append(os.Environ(), inside+"=1")
	self.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:   syscall.CLONE_NEWNET,
		Unshareflags: syscall.CLONE_NEWNS, // which also makes mounts private
		Pdeathsig:    syscall.SIGKILL,
	}
	runtime.LockOSThread() // the death of this thread would count as that of the process
	defer runtime.UnlockOSThread()
	if out, err := self.CombinedOutput(); err != nil {
		t.Fatalf("in the namespace: %v\n%s", err, out)
	}
	return false
}

func command(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

// The addresses where replicas find the resolver. Programs of the test send from the same addresses, so that they stand
// for replicas.
var bridgeAddress, bridgeAddress6 = netip.MustParseAddr("10.64.0.1"), netip.MustParseAddr("fd00:0:0:1::1")

// serveBridge runs a resolver that follows a file, and returns it and a function that waits until it listens.
func serveBridge(t *testing.T, files []string) (r *Resolver, listens func()) {
	t.Helper()
	reports := make(chan error, 100)
	r, err := New(Options{
		Log: slog.New(slog.DiscardHandler), ResolvConf: files, Listening: func(_ netip.AddrPort, err error) { reports <- err },
	})
	must.Succeed(t, err)
	var many []Endpoint
	for i := range 200 {
		many = append(many, Endpoint{V4: netip.AddrFrom4([4]byte{10, 65, 0, byte(i)}), Ready: true})
	}
	r.Replace(append(slices.Clone(testServices), Service{Name: Name{"shop", "many"}, Endpoints: many}))
	r.SetRanges([]netip.Prefix{netip.MustParsePrefix("10.64.0.0/10"), netip.MustParsePrefix("fd00::/48")})
	r.SetClients(map[netip.Addr]Client{bridgeAddress: {Namespace: "shop"}, bridgeAddress6: {Namespace: "shop"}}, nil)
	must.Succeed(t, r.SetListen([]netip.AddrPort{netip.AddrPortFrom(bridgeAddress, 53), netip.AddrPortFrom(bridgeAddress6, 53)}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() { cancel(); must.Succeed(t, <-ended) })
	return r, func() {
		must.Succeed(t, <-reports) // of one family
		must.Succeed(t, <-reports) // of the other
	}
}

// serveUpstream answers every question for one of its names with its own address.
func serveUpstream(t *testing.T, address string) {
	t.Helper()
	packets, err := net.ListenPacket("udp", address+":53")
	must.Succeed(t, err)
	server := &dns.Server{PacketConn: packets, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if name := q.Question[0].Name; name != "example.com." {
			m.Rcode = dns.RcodeNameError
		} else if q.Question[0].Qtype == dns.TypeA {
			rr, _ := dns.NewRR(name + " 0 IN A " + address)
			m.Answer = []dns.RR{rr}
		}
		_ = w.WriteMsg(m)
	})}
	started := make(chan struct{})
	server.NotifyStartedFunc = func() { close(started) }
	go func() { _ = server.ActivateAndServe() }()
	<-started
	t.Cleanup(func() { _ = server.Shutdown() })
}

// useResolvConf makes this the file that programs read.
func useResolvConf(t *testing.T, namespace string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	text := resolvconf.ForReplica([]netip.Addr{bridgeAddress}, []string{namespace + "." + Zone, Zone}, resolvconf.Config{})
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o644))
	must.Succeed(t, unix.Mount(path, "/etc/resolv.conf", "", unix.MS_BIND, ""))
}

// words are the sorted, different words of a text.
func words(text string) string {
	all := strings.Fields(text)
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}

// The programs that people use find everything: the resolvers of glibc, musl, Go and busybox, and dig.
func TestUsualProgramsResolveNames(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	machine := filepath.Join(t.TempDir(), "resolv.conf")
	must.Succeed(t, os.WriteFile(machine, []byte("nameserver 127.0.0.53\n"), 0o600))
	serveUpstream(t, "127.0.0.53")
	r, listens := serveBridge(t, []string{machine})
	listens()
	command(t, "ip", "address", "add", "10.64.0.1/24", "dev", "lo")
	useResolvConf(t, "shop")
	programs := map[string]func(name string) string{
		"dig": func(name string) string { return command(t, "dig", "+search", "+short", name, "A", name, "AAAA") },
		"dig/tcp": func(name string) string {
			return command(t, "dig", "+tcp", "+search", "+short", name, "A", name, "AAAA")
		},
		"glibc": withLibrary(t, "gcc"),
		"musl":  withLibrary(t, "musl-gcc", "-static"),
		"go": func(name string) string {
			found, _ := (&net.Resolver{PreferGo: true}).LookupHost(t.Context(), name)
			return strings.Join(found, " ")
		},
	}
	check := func(name, want string) {
		t.Helper()
		for program, look := range programs {
			if got := words(look(name)); got != want {
				t.Errorf("%s looks up %s: got %q, want %q", program, name, got, want)
			}
		}
	}
	check("api", "10.96.0.1 fd00::96:1")
	check("api.shop", "10.96.0.1 fd00::96:1")
	check("api.shop.cloudless.internal", "10.96.0.1 fd00::96:1")
	check("db-0.db", "10.64.0.3 fd00::64:3")
	check("db", "10.64.0.3 10.64.1.4 198.51.100.9 fd00::64:3")
	check("example.com", "127.0.0.53")
	for _, program := range []string{"dig", "dig/tcp", "glibc", "go"} { // musl 1.2.3 has no TCP and takes what fits
		if got := strings.Fields(words(programs[program]("many"))); len(got) != 200 {
			t.Errorf("%s finds %d of 200 addresses", program, len(got))
		}
	}
	if got := strings.Fields(words(programs["musl"]("many"))); len(got) < 20 {
		t.Errorf("musl finds %v", got)
	}
	checkOtherRecords(t)
	delete(programs, "dig") // prints nothing for a name that does not exist
	delete(programs, "dig/tcp")
	r.SetClients(map[netip.Addr]Client{bridgeAddress: {Namespace: "bank"}}, nil)
	check("api.shop", "10.96.0.1 fd00::96:1")
	for program, look := range programs {
		for _, name := range []string{"secret.shop", "db.shop", "db-0.db.shop.cloudless.internal"} {
			if got := look(name); strings.ContainsAny(got, "0123456789") {
				t.Errorf("%s looks up %s in another namespace: got %s", program, name, got)
			}
		}
	}
}

// withLibrary compiles a program against a C library, and returns how it looks up names.
func withLibrary(t *testing.T, compiler ...string) func(name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "lookup")
	command(t, append(compiler, "-o", program, "testdata/lookup.c")...)
	return func(name string) string {
		out, _ := exec.CommandContext(t.Context(), program, name).Output() // fails for names that do not exist
		return string(out)
	}
}

// checkOtherRecords looks at names of addresses and SRV records.
func checkOtherRecords(t *testing.T) {
	t.Helper()
	resolver := &net.Resolver{PreferGo: true}
	names, err := resolver.LookupAddr(t.Context(), "10.96.0.1")
	must.Succeed(t, err)
	_, services, err := resolver.LookupSRV(t.Context(), "pg", "tcp", "db.shop.cloudless.internal")
	must.Succeed(t, err)
	if fmt.Sprint(names) != "[api.shop.cloudless.internal.]" || len(services) != 3 {
		t.Errorf("Go finds %v and %v", names, services)
	}
	for want, args := range map[string]string{
		"api.shop.cloudless.internal.":                    "dig +short -x 10.96.0.1",
		"db-0.db.shop.cloudless.internal.":                "dig +short -x fd00::64:3",
		"0 0 80 api.shop.cloudless.internal.":             "dig +short SRV _http._tcp.api.shop.cloudless.internal",
		"status: NXDOMAIN":                                "dig none.shop.cloudless.internal",
		"flags: qr aa rd ra":                              "dig +cookie api.shop.cloudless.internal",
		"ANSWER: 200":                                     "dig +noedns many.shop.cloudless.internal",
		"retrying in TCP mode":                            "dig +noedns many.shop.cloudless.internal",
		"EDNS: version: 0, flags:; udp: 1232":             "dig api.shop.cloudless.internal",
		"cloudless.internal.	5	IN	NS	cloudless.internal.": "dig NS cloudless.internal",
		"Address: fd00::96:1":                             "busybox nslookup api.shop.cloudless.internal",
		"name = api.shop.cloudless.internal":              "busybox nslookup 10.96.0.1",
	} {
		if got := command(t, strings.Fields(args)...); !strings.Contains(got, want) {
			t.Errorf("%s prints no %q:\n%s", args, want, got)
		}
	}
}

// The bridge may come later than the resolver, and may be recreated. The machine's name servers may change.
func TestFollowsTheMachine(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	machine := filepath.Join(t.TempDir(), "resolv.conf")
	_, listens := serveBridge(t, []string{machine})
	listens()
	server := netip.AddrPortFrom(bridgeAddress, 53)
	for range 2 {
		command(t, "ip", "address", "add", "10.64.0.1/24", "dev", "lo")
		command(t, "ip", "address", "add", "fd00:0:0:1::1/64", "dev", "lo", "nodad")
		for _, address := range []netip.Addr{bridgeAddress, bridgeAddress6} {
			for _, network := range []string{"udp", "tcp"} {
				got := result(over(t, network, address, netip.AddrPortFrom(address, 53), question("api.shop.cloudless.internal", dns.TypeA)))
				if got != "10.96.0.1" {
					t.Errorf("at %v by %s: got %s", address, network, got)
				}
			}
		}
		command(t, "ip", "address", "del", "10.64.0.1/24", "dev", "lo")
		command(t, "ip", "address", "del", "fd00:0:0:1::1/64", "dev", "lo")
	}
	command(t, "ip", "address", "add", "10.64.0.1/24", "dev", "lo")
	if got := result(over(t, "udp", bridgeAddress, server, question("example.com", dns.TypeA))); got != servfail {
		t.Errorf("without a name server: got %s", got)
	}
	for _, upstream := range []string{"127.0.0.53", "127.0.0.54"} {
		serveUpstream(t, upstream)
		must.Succeed(t, os.WriteFile(machine, []byte("nameserver 10.64.0.1\nnameserver "+upstream+"\n"), 0o600))
		for got := ""; got != upstream; {
			got = result(over(t, "udp", bridgeAddress, server, question("example.com", dns.TypeA)))
		}
	}
}
