package agent

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/spec"
)

// until waits in the time of a bubble.
func (n *node) until(what string, is func() bool) {
	n.t.Helper()
	for range 10 * 60 * 10 {
		if is() {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	n.t.Errorf("after ten minutes: not %s", what)
}

// balances reports whether the only service leads exactly to these addresses, by connections and by name.
func (n *node) balances(addresses ...string) func() bool {
	return func() bool {
		n.network.mu.Lock()
		defer n.network.mu.Unlock()
		n.mesh.mu.Lock()
		defer n.mesh.mu.Unlock()
		if len(n.network.services) != 1 {
			return false
		}
		leads, named := shares(n.network.services[0].Backends), map[string]bool{}
		for _, e := range n.mesh.services["api"].Endpoints {
			if e.Ready {
				named[e.V4.String()] = true
			}
		}
		want := slices.Sorted(slices.Values(addresses))
		return slices.Equal(slices.Sorted(maps.Keys(leads)), want) && slices.Equal(slices.Sorted(maps.Keys(named)), want) &&
			n.mesh.services["api"].V4.String() == "10.128.0.1"
	}
}

// A node without any server for 20 minutes restarts, probes, balances, resolves and logs as before. When a server is
// back, it learns what happened, and nothing is restarted.
func TestNodeWorksWithoutServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.mesh = newFakeMesh()
		n.start()
		s := n.join()
		steady, late := newFile(t), newFile(t)
		steady.set(true)
		probed := func(f file) func(*v1.WorkloadSpec) {
			return func(w *v1.WorkloadSpec) {
				w.Ports, w.Probes = []*v1.Port{{Port: 80}}, &v1.Probes{Readiness: f.probe()}
				w.Probes.Readiness.Period = "10s"
			}
		}
		assigned := full(assignment("probed", probed(steady)), assignment("crashes"), assignment("late", probed(late)))
		assigned.Node = &v1.NodeSpec{SubnetV4: "10.64.0.0/24"}
		s.send(t, assigned)
		address := map[string]string{
			"probed": s.awaitReady(t, "probed").GetAddresses()[0], "crashes": s.awaitReady(t, "crashes").GetAddresses()[0],
			"late": s.await(t, "late", spec.PhaseRunning).GetAddresses()[0],
		}
		const remote = "10.64.9.2"
		known := &v1.Network{Full: true, Ranges: []string{"10.64.0.0/10"}, ServiceRanges: []string{"10.128.0.0/12"}, Services: []*v1.NetworkService{{
			Uid: "1", Namespace: "default", Name: "api", Addresses: []string{"10.128.0.1"}, Ports: []*v1.ServicePort{{Port: 80}},
			Endpoints: []*v1.NetworkEndpoint{
				endpoint(address["probed"], spec.EndpointReady, "1", ""), endpoint(address["crashes"], spec.EndpointReady, "1", ""),
				endpoint(address["late"], spec.EndpointUnready, "1", ""), endpoint(remote, spec.EndpointReady, "2", ""),
			},
		}}}
		sendNetwork(t, s, known)
		n.until("balanced at first", n.balances(address["probed"], address["crashes"], remote))
		n.tasks.print(t, "probed-1", "before the outage")

		n.server.setAway(true)
		close(s.end)
		time.Sleep(20 * time.Minute)
		n.until("balanced after 20 minutes", n.balances(address["probed"], address["crashes"], remote))
		late.set(true) // the servers still take it for unready
		n.until("balanced with a replica that has become ready", n.balances(address["probed"], address["crashes"], address["late"], remote))
		steady.set(false)
		n.until("balanced without a replica that is not ready", n.balances(address["crashes"], address["late"], remote))
		steady.set(true)
		n.until("balanced with it again", n.balances(address["probed"], address["crashes"], address["late"], remote))
		n.tasks.exit("crashes-1", driver.Exit{Code: 1})
		n.tasks.awaitStart("crashes-2")
		n.until("balanced with the restarted replica", n.balances(address["probed"], address["crashes"], address["late"], remote))
		n.tasks.print(t, "probed-1", "during the outage")

		n.server.setAway(false)
		s = n.join()
		if got := s.said("crashes"); got.GetRestarts() != 1 || got.GetLastExit().GetCode() != 1 || !spec.ServesNow(got) {
			t.Errorf("hello says %v", got)
		}
		s.send(t, assigned)
		sendNetwork(t, s, known)
		go func() { // a server reads
			for s.stream.Context().Err() == nil {
				select {
				case <-s.ups:
				case <-s.stream.Context().Done():
				}
			}
		}()
		time.Sleep(time.Minute)
		if got := sorted(n.tasks.started()); !slices.Equal(got, []string{"crashes-1", "crashes-2", "late-1", "probed-1"}) || len(n.tasks.stopped()) > 0 {
			t.Errorf("started %v, stopped %v", got, n.tasks.stopped())
		}
		log := logOf(t, n, "probed")
		if !bytes.Contains(log, []byte("before the outage")) || !bytes.Contains(log, []byte("during the outage")) {
			t.Errorf("the log is %q", log)
		}
		n.stop()
	})
}

// logOf is what is on disk of a replica's output.
func logOf(t *testing.T, n *node, uid string) (all []byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.dir, "logs", uid, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, data...)
	}
	return all
}

// Only servers know whether the new revision of a blue-green workload gets traffic.
func TestBlueGreenReplicaWaitsForTheSwitch(t *testing.T) {
	given := &v1.NetworkService{Endpoints: []*v1.NetworkEndpoint{endpoint("10.64.0.2", spec.EndpointUnready, "1", ""), endpoint("10.64.0.3", spec.EndpointDraining, "1", "")}}
	for name, c := range map[string]struct{ own, want string }{
		"serves":                           {spec.EndpointReady, spec.EndpointReady},
		"serves and is not up to the node": {"", spec.EndpointUnready},
		"does not serve":                   {spec.EndpointUnready, spec.EndpointUnready},
	} {
		got := withOwnStates(given, map[string]string{"10.64.0.2": c.own, "10.64.0.3": spec.EndpointReady})
		if got.GetEndpoints()[0].GetState() != c.want || got.GetEndpoints()[1].GetState() != spec.EndpointDraining {
			t.Errorf("%s: the endpoints are %v", name, got.GetEndpoints())
		}
	}
}

// A replica that is being stopped serves until its node knows of another endpoint, and gets nothing new afterwards.
func TestStoppingReplicaIsTheLastResort(t *testing.T) {
	given := &v1.NetworkService{Endpoints: []*v1.NetworkEndpoint{endpoint("10.64.0.2", spec.EndpointReady, "1", ""), endpoint("10.64.0.3", spec.EndpointReady, "2", "")}}
	stopping := map[string]string{"10.64.0.2": spec.EndpointDraining}
	alone := &v1.NetworkService{Endpoints: given.GetEndpoints()[:1]}
	for name, c := range map[string]struct {
		service *v1.NetworkService
		want    string
	}{"beside another endpoint": {given, "10.64.0.3"}, "alone": {alone, "10.64.0.2"}} {
		backends, err := (place{}).backends(withOwnStates(c.service, stopping).GetEndpoints(), false)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range backends {
			if takes := b.Weight > 0; takes != (b.Addresses[0].String() == c.want) {
				t.Errorf("%s: new connections go to %v: %t", name, b.Addresses, takes)
			}
		}
	}
}

// A release that ends soon after its start must not get connections from its own node either, so a node does not speak
// for a replica that has just begun to serve.
func TestNodeSpeaksOnlyForSteadyReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a", published)))
		status := s.awaitReady(t, "a")
		if state := n.agent.ownStates()[status.GetAddresses()[0]]; !status.GetSettling() || state != "" {
			t.Errorf("while it settles, %v: the endpoint is %q", status, state)
		}
		s.awaitStatus(t, "a", "steady", func(st *v1.ReplicaStatus) bool { return spec.ServesNow(st) && !st.GetSettling() })
		if state := n.agent.ownStates()[status.GetAddresses()[0]]; state != spec.EndpointReady {
			t.Errorf("when it is steady, the endpoint is %q", state)
		}
		n.stop()
	})
}
