package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/nodenet"
	"github.com/cloudless/cloudless/internal/spec"
)

// fakeNetwork keeps the promises of a node's network that an agent relies on. It outlives
// agents, as the kernel does.
type fakeNetwork struct {
	mu      sync.Mutex
	subnets nodenet.Subnets
	places  map[string]int
	serving map[string]bool
	taken   error // why no port is available
	problem string
	notice  func(nodenet.Event)

	counters map[string]nodenet.Counters
	services []nodenet.Service
	// lacked is set if the rules were written before the services were known.
	lacked bool
	drops  []nodenet.Drop
	limits map[string]nodenet.Endpoint // with what each replica may do
}

func (n *fakeNetwork) Drops() ([]nodenet.Drop, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.drops, nil
}

func newFakeNetwork() *fakeNetwork {
	return &fakeNetwork{places: map[string]int{}, serving: map[string]bool{}, limits: map[string]nodenet.Endpoint{}}
}

func (n *fakeNetwork) Run(ctx context.Context, notice func(nodenet.Event)) error {
	n.mu.Lock()
	n.notice = notice
	n.mu.Unlock()
	<-ctx.Done()
	return nil
}

func (n *fakeNetwork) Configure(s nodenet.Subnets) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.subnets = s
	return nil
}

func (n *fakeNetwork) Attach(_ context.Context, e nodenet.Endpoint) (nodenet.Attachment, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.taken != nil && len(e.Ports) > 0 {
		return nodenet.Attachment{}, n.taken
	}
	if n.places[e.UID] == 0 {
		n.places[e.UID] = len(n.places) + 2
	}
	n.limits[e.UID] = e
	addr := netip.AddrFrom4([4]byte{10, 64, 0, byte(n.places[e.UID])})
	return nodenet.Attachment{Namespace: "/run/netns/" + e.UID, Addresses: []netip.Addr{addr}}, nil
}

func (n *fakeNetwork) Serve(uid string) error    { return n.set(uid, true) }
func (n *fakeNetwork) Withdraw(uid string) error { return n.set(uid, false) }

func (n *fakeNetwork) set(uid string, serving bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.serving[uid] = serving
	return nil
}

func (n *fakeNetwork) Detach(_ context.Context, uid string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.places, uid)
	delete(n.serving, uid)
	return nil
}

func (n *fakeNetwork) Retain(ctx context.Context, keep func(string) bool) error {
	n.mu.Lock()
	known := slices.Collect(maps.Keys(n.places))
	n.mu.Unlock()
	for _, uid := range known {
		if !keep(uid) {
			_ = n.Detach(ctx, uid)
		}
	}
	return nil
}

func (n *fakeNetwork) Counters(uid string) (nodenet.Counters, error) {
	counted, found := n.counters[uid]
	if !found {
		return nodenet.Counters{}, errors.New("no counters")
	}
	return counted, nil
}

func (*fakeNetwork) UpdateReplicas(map[netip.Addr]string, []netip.Addr) error { return nil }
func (*fakeNetwork) Table() string                                            { return "" }
func (*fakeNetwork) Clients() (map[netip.Addr]nodenet.Client, nodenet.Names)  { return nil, nil }
func (*fakeNetwork) ReplaceReplicas(map[netip.Addr]string) error              { return nil }

func (n *fakeNetwork) SetEgress(uid string, to *nodenet.Egress) (changed bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e, attached := n.limits[uid]
	if !attached || fmt.Sprint(e.Egress) == fmt.Sprint(to) {
		return false, nil
	}
	e.Egress = to
	n.limits[uid] = e
	return true, nil
}

func (n *fakeNetwork) SetBandwidth(uid string, bits int64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e, attached := n.limits[uid]; attached {
		e.Bandwidth = bits
		n.limits[uid] = e
	}
	return nil
}

// limited says what a replica may do.
func (n *fakeNetwork) limited(uid string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.limits[uid]
	if e.Egress == nil {
		return fmt.Sprintf("everything, %d bit/s", e.Bandwidth)
	}
	return fmt.Sprintf("%+v, closed %v, %d bit/s", e.Egress.Rules, e.Egress.Closed, e.Bandwidth)
}

func (n *fakeNetwork) Condition() (bool, string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.problem == "", n.problem
}

func (n *fakeNetwork) fail(taken error, problem string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.taken, n.problem = taken, problem
}

// String lists the attached replicas, with a star for those that serve.
func (n *fakeNetwork) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []string
	for _, uid := range slices.Sorted(maps.Keys(n.places)) {
		if n.serving[uid] {
			uid += "*"
		}
		list = append(list, uid)
	}
	return fmt.Sprint(list)
}

func published(w *v1.WorkloadSpec) { w.Ports = []*v1.Port{{Port: 80, Publish: 8080}} }

// A replica has its address before it starts, keeps it across restarts, serves only while
// it runs, and releases everything when it is removed.
func TestNetworkOfAReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		first := full(assignment("a", published, restart("always", "1s", "1s")))
		first.Node = &v1.NodeSpec{SubnetV4: "10.64.7.0/24", SubnetV6: "fd00::/64"}
		s.send(t, first)
		status := s.awaitReady(t, "a")
		if got := status.GetAddresses(); !slices.Equal(got, []string{"10.64.0.2"}) {
			t.Errorf("addresses %v", got)
		}
		if n.network.subnets.V4.String() != "10.64.7.0/24" || n.network.subnets.V6.String() != "fd00::/64" {
			t.Errorf("subnets %v", n.network.subnets)
		}
		if task := n.tasks.byID["a-1"]; task.Network != driver.NetworkNode || task.NetworkNamespace != "/run/netns/a" {
			t.Errorf("the task is %+v", task.Task)
		}
		if got := n.network.String(); got != "[a*]" {
			t.Errorf("while it runs: %s", got)
		}
		n.tasks.exit("a-1", driver.Exit{Code: 1})
		s.awaitRestart(t, "a", 1)
		n.tasks.exit("a-2", driver.Exit{Code: 1})
		s.await(t, "a", spec.PhaseBackoff)
		if got := n.network.String(); got != "[a]" {
			t.Errorf("while it does not run: %s", got)
		}
		if got := s.awaitRestart(t, "a", 2).GetAddresses(); !slices.Equal(got, []string{"10.64.0.2"}) {
			t.Errorf("after a restart it has %v", got)
		}
		s.send(t, full())
		s.await(t, "a", spec.PhaseStopped)
		synctest.Wait()
		if got := n.network.String(); got != "[]" {
			t.Errorf("after its removal: %s", got)
		}
	})
}

// A restarted agent tells the network which replicas still serve, and removes unknown ones.
func TestNetworkAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a"), assignment("b", restart("always", "1h", "1h"))))
		s.awaitReady(t, "a")
		s.await(t, "b", spec.PhaseRunning)
		n.tasks.exit("b-1", driver.Exit{Code: 1})
		s.awaitRestart(t, "b", 1) // at once
		n.tasks.exit("b-2", driver.Exit{Code: 1})
		s.await(t, "b", spec.PhaseBackoff)
		n.crash()
		_, _ = n.network.Attach(t.Context(), nodenet.Endpoint{UID: "orphan"})
		_ = n.network.Serve("b")
		n.start()
		n.join()
		synctest.Wait()
		if got := n.network.String(); got != "[a* b]" {
			t.Errorf("after a crash: %s", got)
		}
	})
}

// A replica whose start was not recorded still has an address, and the cluster learns it.
func TestUnrecordedStartHasAnAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.tasks.hold = make(chan struct{})
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		n.tasks.awaitStart("a-1")
		n.crash()
		n.server.setAway(true)
		n.start()
		synctest.Wait()
		n.server.setAway(false)
		s = n.join()
		if got := s.said("a"); got.GetPhase() != spec.PhaseRunning || !slices.Equal(got.GetAddresses(), []string{"10.64.0.2"}) {
			t.Errorf("hello says %v", got)
		}
	})
}

// A port that is in use is reported in a sentence and retried.
func TestPortInUseIsReportedAndRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.network.fail(errors.New("port 8080 is used by nginx (process 7) on this machine"), "")
		n.start()
		s := n.join()
		s.send(t, full(assignment("a", published, restart("always", "1s", "2s"))))
		if reason := s.await(t, "a", spec.PhaseBackoff).GetReason(); !strings.Contains(reason, "nginx (process 7)") {
			t.Errorf("reason %q", reason)
		}
		n.network.fail(nil, "")
		s.await(t, "a", spec.PhaseRunning)
	})
}

// Problems of the network reach the server, as an event and as a condition.
func TestNetworkProblemsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.machine.conditions = []*v1.Condition{{Type: "NetworkAvailable", Status: true}}
		n.start()
		s := n.join()
		s.send(t, full())
		<-n.agent.Ready()
		synctest.Wait()
		n.network.fail(nil, "A foreign rule drops the traffic.")
		n.network.notice(nodenet.Event{Warning: true, Reason: "Obstructed", Message: "A foreign rule drops the traffic.", UID: "a"})
		var event *v1.EventReport
		var condition *v1.Condition
		for event == nil || condition == nil {
			up := <-s.ups
			for _, e := range up.GetReport().GetEvents() {
				event = e
			}
			for _, c := range up.GetHeartbeat().GetStatus().GetConditions() {
				if c.GetType() == "NetworkAvailable" && !c.GetStatus() {
					condition = c
				}
			}
		}
		if event.GetReason() != "Obstructed" || event.GetSeverity() != "warning" || event.GetReplicaUid() != "a" {
			t.Errorf("the event is %v", event)
		}
		if condition.GetReason() != "A foreign rule drops the traffic." || condition.GetChangeTime() == nil {
			t.Errorf("the condition is %v", condition)
		}
	})
}

// However long a server is away, the queue of events is bounded.
func TestEventsAreBounded(t *testing.T) {
	r := newReports()
	for i := range 1000 {
		r.addEvent(&v1.EventReport{Reason: fmt.Sprint(i)})
	}
	if got := r.takeEvents(); len(got) != maxEvents || got[maxEvents-1].GetReason() != "999" {
		t.Errorf("%d events wait", len(got))
	}
}

func (n *fakeNetwork) SetIngress([]nodenet.Port) error { return nil }

func (n *fakeNetwork) SetRanges(nodenet.Ranges) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lacked = n.lacked || len(n.services) == 0
	return nil
}

func (n *fakeNetwork) SetServices(all []nodenet.Service) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.services = all
	return nil
}

// UpdateServices replaces services of the same id.
func (n *fakeNetwork) UpdateServices(changed []nodenet.Service, removed []string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range changed {
		removed = append(removed, s.ID)
	}
	n.services = append(slices.DeleteFunc(slices.Clone(n.services), func(s nodenet.Service) bool { return slices.Contains(removed, s.ID) }), changed...)
	return nil
}

// Egress rules and limits of the bandwidth hold before a replica starts, change without restarting it, and are in its
// record: an agent that starts again without a server applies the newest ones.
func TestLimitsOfTheNetworkChangeInPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		a := assignment("a")
		a.Egress = &v1.Egress{Allow: []*v1.EgressRule{{Cidr: "10.0.0.0/8", Ports: []int32{5432}}, {Name: "*.example.com", Protocol: "tcp"}}}
		s.send(t, full(a))
		s.awaitReady(t, "a")
		if got, want := n.network.limited("a"), "[{Prefix:10.0.0.0/8 Name: Protocol: Ports:[5432]} {Prefix:invalid Prefix Name:*.example.com Protocol:tcp Ports:[]}], closed false, 0 bit/s"; got != want {
			t.Errorf("at first: %s, want %s", got, want)
		}
		a = assignment("a")
		a.Egress, a.Bandwidth = &v1.Egress{Services: proto.Bool(false)}, 1e6
		s.send(t, delta(a))
		synctest.Wait()
		const closed = "[], closed true, 1000000 bit/s"
		if got := n.network.limited("a"); got != closed || len(n.tasks.byID) != 1 {
			t.Errorf("after a change: %s, and %d tasks", got, len(n.tasks.byID))
		}
		n.crash()
		n.start()
		synctest.Wait()
		if got := n.network.limited("a"); got != closed {
			t.Errorf("after a restart without a server: %s", got)
		}
		s = n.join()
		s.send(t, full(assignment("a")))
		synctest.Wait()
		if got := n.network.limited("a"); got != "everything, 0 bit/s" {
			t.Errorf("without rules: %s", got)
		}
	})
}
