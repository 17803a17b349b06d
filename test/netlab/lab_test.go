package netlab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/test/sandbox"
)

const (
	// marker is in every byte stream between replicas, and workload in every name: neither may cross a wire.
	marker   = "what replicas say to each other"
	workload = "lab-daemon"
	// patience ends a lab that hangs. Nothing else has a limit.
	patience = 10 * time.Minute
)

// lab is a cluster on all kinds of networks.
type lab struct {
	t   *testing.T
	ctx context.Context
	dir string

	server   *machine
	machines []*machine // with the server
	// captures are tcpdump on the internet and in both homes.
	internet, homeA, homeB *capture
	// before is what was on this computer before Cloudless.
	before map[string]string
	// miniupnpd runs on one of the routers, whose rules were withoutMapping.
	miniupnpd      *exec.Cmd
	withoutMapping string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	l := &lab{t: t, ctx: ctx, dir: filepath.Join(sandbox.Dir(), "lab")}
	l.must(os.Mkdir(l.dir, 0o700))
	l.nameServer()
	l.connect()
	l.before = l.inventory()
	l.watch()
	t.Cleanup(l.keepLogs)
	l.start()
	return l
}

// nameServer gives the server its name, on all machines.
func (l *lab) nameServer() {
	hosts := filepath.Join(l.dir, "hosts")
	text := fmt.Sprintf("127.0.0.1 localhost\n::1 localhost\n%s %s\n%s %s\n", serverV4, apiName, serverV6, apiName)
	l.must(os.WriteFile(hosts, []byte(text), 0o644))
	l.must(unix.Mount(hosts, "/etc/hosts", "", unix.MS_BIND, "")) // only in this sandbox
}

// connect makes the networks and the machines.
func (l *lab) connect() {
	w := &wires{t: l.t}
	w.internet()
	w.home("home-a", homeA, homeGateway, "masquerade")
	w.home("home-b", homeB, homeGateway, "masquerade")
	w.home("home-s", symmetric, "192.168.9.1", "masquerade random,fully-random")
	w.tunnel()
	l.server = l.add(w, "server", serverV4, serverV4)
	w.online("server", serverV4+"/24", serverV6+"/64")
	l.add(w, "lan-a", "192.168.7.11", homeA)
	w.inside("lan-a", "home-a", "192.168.7.11", homeGateway)
	l.add(w, "lan-b", "192.168.7.12", homeA)
	w.inside("lan-b", "home-a", "192.168.7.12", homeGateway)
	l.add(w, "nat", "192.168.7.11", homeB)
	w.inside("nat", "home-b", "192.168.7.11", homeGateway)
	l.add(w, "sym", "192.168.9.11", symmetric)
	w.inside("sym", "home-s", "192.168.9.11", "192.168.9.1")
	l.add(w, "narrow", "203.0.113.11", "203.0.113.11")
	w.inside("narrow", "tunnel", "203.0.113.11", "203.0.113.1")
	l.add(w, "six", "2001:db8::11", "2001:db8::11")
	w.online("six", "2001:db8::11/64")
	l.add(w, "noudp", "45.0.0.11", "45.0.0.11")
	w.online("noudp", "45.0.0.11/24")
	w.nft("noudp", "table inet company { chain in { type filter hook input priority 0; iifname eth0 meta l4proto udp drop; }; "+
		"chain out { type filter hook output priority 0; oifname eth0 meta l4proto udp drop; }; }")
	l.add(w, "laptop", "45.0.0.12", "45.0.0.12")
	w.online("laptop", "45.0.0.12/24")
	w.plug("laptop", "wlan0", "home-b", "wire") // with an address when it moves there
	for _, m := range l.machines {
		l.until("the network of "+m.name+" settles", func() error {
			last := m.before
			if m.before = m.inventory(); !maps.Equal(last, m.before) {
				return errors.New("it changes")
			}
			return nil
		})
	}
}

// add makes a machine that has rules of its own.
func (l *lab) add(w *wires, name, private, public string) *machine {
	w.space(name)
	w.nft(name, "table inet mine { set allowed { type inet_service; elements = { 22, 443 }; }; "+
		"chain in { type filter hook input priority 10; policy accept; tcp dport @allowed accept; ct state established accept; }; }; "+
		"table ip old { chain nat { type nat hook postrouting priority 90; ip daddr 203.0.113.200 masquerade; }; }")
	m := &machine{lab: l, name: name, private: netip.MustParseAddr(private), public: netip.MustParseAddr(public)}
	l.machines = append(l.machines, m)
	return m
}

func (l *lab) machine(name string) *machine {
	for _, m := range l.machines {
		if m.name == name {
			return m
		}
	}
	l.t.Fatalf("there is no machine %s", name)
	return nil
}

// watch captures every wire that two machines share.
func (l *lab) watch() {
	from := func(name, to string) func(string) {
		m := l.machine(name)
		return func(text string) {
			// The answer says that nobody listens, which does not matter.
			_ = m.command("bash", "-c", "echo '"+text+"' > /dev/udp/"+to+"/9").Run()
		}
	}
	secrets := []string{marker, workload}
	l.internet = startCapture(l.t, "internet", "wire", secrets, from("server", gateway))
	l.homeA = startCapture(l.t, "home-a", "wire", secrets, from("lan-a", homeGateway))
	l.homeB = startCapture(l.t, "home-b", "wire", secrets, from("nat", homeGateway))
	for _, c := range l.captures() {
		c.sync(l)
	}
}

func (l *lab) captures() []*capture { return []*capture{l.internet, l.homeA, l.homeB} }

// start makes the cluster and runs a daemon on it.
func (l *lab) start() {
	l.t.Helper()
	_, err := l.server.cloudless("up", "--detach", "--api-addr", "[::]:7700", "--advertise", apiName+":7700", "--name", l.server.name)
	l.must(err)
	l.must(l.server.noteGroup())
	token := filepath.Join(l.dir, "token")
	secret, err := l.server.cloudless("token", "create", "--role", "node", "--uses", fmt.Sprint(len(l.machines)))
	l.must(err)
	l.must(os.WriteFile(token, []byte(secret), 0o600))
	l.must(l.each(l.machines, func(m *machine) error {
		if m == l.server {
			return nil
		}
		return m.join(token)
	}))
	_, err = l.server.cloudless("run", sandbox.Program("replica"), "--name", workload, "--kind", "daemon", "--publish", "8000:8000", "--", marker)
	l.must(err)
	l.until("a replica runs on every machine", l.findReplicas)
}

// each does something on all machines, several at a time.
func (l *lab) each(machines []*machine, do func(*machine) error) error {
	var mu sync.Mutex
	var all []error
	var tasks sync.WaitGroup
	slots := make(chan struct{}, 4)
	for _, m := range machines {
		tasks.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := do(m); err != nil {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, fmt.Errorf("%s: %w", m.name, err))
			}
		})
	}
	tasks.Wait()
	return errors.Join(all...)
}

// findReplicas learns where the replicas run and which addresses they have.
func (l *lab) findReplicas() error {
	out, err := l.server.cloudless("ps", workload, "-o", "json")
	if err != nil {
		return err
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ Node string }
			Status   struct {
				Phase     string
				Pid       int
				Addresses []string
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return err
	}
	running := map[string]replica{}
	for _, r := range list.Items {
		if s := r.Status; s.Phase == "running" && len(s.Addresses) == 2 {
			running[r.Spec.Node] = replica{r.Metadata.Name, s.Pid, s.Addresses[0], s.Addresses[1]}
		}
	}
	var missing []string
	for _, m := range l.machines {
		r, ok := running[m.name]
		if !ok {
			missing = append(missing, m.name)
			continue
		}
		m.replica = r
		if err := m.copyResolvConf(); err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("no replica runs on %s:\n%s", strings.Join(missing, ", "), out)
	}
	return nil
}

// keepLogs copies the logs of a failed lab to where they outlive it.
func (l *lab) keepLogs() {
	if !l.t.Failed() {
		return
	}
	to, err := filepath.Abs("../../build/netlab")
	if err == nil {
		err = os.MkdirAll(to, 0o755)
	}
	for _, m := range l.machines {
		logs, _ := filepath.Glob(filepath.Join(m.data(), "*.log"))
		for _, log := range logs {
			data, readErr := os.ReadFile(log)
			err = errors.Join(err, readErr, os.WriteFile(filepath.Join(to, m.name+"-"+filepath.Base(log)), data, 0o644))
		}
	}
	l.t.Logf("the logs of all machines are in %s (%v)", to, err)
}
