package agent

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"testing/synctest"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

func shopService(uid, name, address string) *v1.NetworkService {
	return &v1.NetworkService{
		Uid: uid, Namespace: "shop", Name: name, Addresses: []string{address}, Ports: []*v1.ServicePort{{Name: "http", Port: 80, TargetPort: 8080}},
		Endpoints: []*v1.NetworkEndpoint{{Name: name + "-1", Addresses: []string{"10.64.2.2"}, State: spec.EndpointReady, Weight: 1000, NodeUid: "2"}},
	}
}

// withServices is a node that a server has told of two services.
func withServices(t *testing.T) (*node, *session) {
	t.Helper()
	n := newNode(t)
	n.mesh = newFakeMesh()
	n.start()
	s := n.join()
	s.send(t, &v1.Assignments{Full: true, Epoch: 1, Node: &v1.NodeSpec{SubnetV4: "10.64.3.0/24"}})
	sendNetwork(t, s, &v1.Network{
		Full: true, Ranges: []string{"10.64.0.0/10"}, ServiceRanges: []string{"10.128.0.0/12"}, Relays: []*v1.NetworkRelay{{Id: "s-1", Address: "192.0.2.1:7700"}},
		Services: []*v1.NetworkService{shopService("1", "api", "10.128.0.1"), shopService("2", "db", "10.128.0.2"), shopService("3", "bad", "no address")},
	})
	n.mesh.until(func() bool { return len(n.mesh.services) == 2 })
	return n, s
}

func TestResolverLearnsServices(t *testing.T) {
	n, s := withServices(t)
	n.mesh.until(func() bool { return len(n.mesh.names.Listen) > 0 })
	if want := []netip.AddrPort{netip.MustParseAddrPort("10.64.3.1:53")}; !slices.Equal(n.mesh.names.Listen, want) || len(n.mesh.names.Ranges) != 2 {
		t.Errorf("the resolver is configured with %v", n.mesh.names)
	}
	api := n.mesh.services["api"]
	if api.V4.String() != "10.128.0.1" || api.V6.IsValid() || api.Ports[0].Protocol != "tcp" || api.Endpoints[0].Ports[0] != 8080 || !api.Endpoints[0].Ready {
		t.Errorf("the service is %+v", api)
	}
	sendNetwork(t, s, &v1.Network{RemovedServices: []string{"1"}, Services: []*v1.NetworkService{shopService("4", "new", "10.128.0.4")}})
	n.mesh.until(func() bool { return len(n.mesh.services) == 2 && n.mesh.services["new"].V4.IsValid() })
}

func TestMachineFollowsNamespaces(t *testing.T) {
	n, s := withServices(t)
	events := <-n.mesh.events
	events.Wanted("depot")
	for {
		if asked := (<-s.ups).GetFollow(); asked != nil {
			if !slices.Equal(asked.GetNamespaces(), []string{"depot"}) {
				t.Errorf("asked for %v", asked)
			}
			break
		}
	}
	late := shopService("9", "late", "10.128.0.9")
	late.Namespace = "depot"
	sendNetwork(t, s, &v1.Network{Followed: []string{"depot"}, Services: []*v1.NetworkService{late}})
	n.mesh.until(func() bool { return slices.Equal(n.mesh.fetched, []string{"depot"}) })
	events.Wanted("depot") // is known now
	n.mesh.until(func() bool { return len(n.mesh.fetched) == 2 })
}

// Lookups of names that do not exist must not use up the namespaces that a machine may follow.
func TestNamespaceWithoutServicesIsNotFollowed(t *testing.T) {
	n, s := withServices(t)
	events := <-n.mesh.events
	events.Wanted("typo")
	for (<-s.ups).GetFollow() == nil {
	}
	sendNetwork(t, s, &v1.Network{Followed: []string{"typo"}})
	n.mesh.until(func() bool { return slices.Equal(n.mesh.fetched, []string{"typo"}) })
	if left := n.agent.meshState.follows.all(); len(left) != 0 {
		t.Errorf("the machine still follows %v", left)
	}
}

// At the limit, a lookup in another namespace must fail, not end with the answer that the service does not exist.
func TestNamespaceBeyondTheLimitIsNotSaidToBeFetched(t *testing.T) {
	n, _ := withServices(t)
	events := <-n.mesh.events
	f := &n.agent.meshState.follows
	f.mu.Lock()
	for i := range spec.MaxFollowed {
		f.confirmed[fmt.Sprint("shop-", i)] = true
	}
	f.mu.Unlock()
	events.Wanted("late")
	events.Wanted("shop-0")
	n.mesh.mu.Lock()
	defer n.mesh.mu.Unlock()
	if !slices.Equal(n.mesh.fetched, []string{"shop-0"}) {
		t.Errorf("the machine says that it knows the services of %v", n.mesh.fetched)
	}
	if len(f.all()) != spec.MaxFollowed {
		t.Errorf("the machine asks for %d namespaces", len(f.all()))
	}
}

// After a restart of the machine no server need be there.
func TestNetworkIsRestoredWithoutAServer(t *testing.T) {
	n, _ := withServices(t)
	n.stop()
	n.mesh = newFakeMesh()
	n.start()
	n.mesh.until(func() bool {
		return len(n.mesh.services) == 2 && len(n.mesh.relays) == 1 && len(n.mesh.setup.Addresses) == 1
	})
}

// The rules of an agent that comes back must not refuse connections to services for a moment.
func TestServicesAreKnownBeforeTheRulesAreWritten(t *testing.T) {
	n, _ := withServices(t)
	n.stop()
	n.mesh, n.network = newFakeMesh(), newFakeNetwork()
	n.start()
	n.mesh.until(func() bool { return len(n.mesh.relays) == 1 })
	n.network.mu.Lock()
	defer n.network.mu.Unlock()
	if len(n.network.services) != 2 || n.network.lacked {
		t.Errorf("services %v, rules without them: %v", n.network.services, n.network.lacked)
	}
}

// An agent that is killed right after a change knows it when it is back.
func TestChangeOfTheNetworkIsWrittenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newNetworkCache(t.TempDir())
		ctx, cancel := context.WithCancel(t.Context())
		go c.run(ctx, func(err error) { t.Error(err) })
		for _, name := range []string{"api", "db"} {
			c.merge(&v1.Network{Services: []*v1.NetworkService{shopService(name, name, "10.128.0.1")}})
			synctest.Wait()
		}
		if _, got, err := c.load(); err != nil || len(got.GetServices()) != 2 {
			t.Errorf("loaded %v, %v", got, err)
		}
		cancel()
	})
}

func TestDamagedCacheIsIgnored(t *testing.T) {
	c := newNetworkCache(t.TempDir())
	c.merge(&v1.Network{Full: true, Zone: new("a"), Services: []*v1.NetworkService{shopService("1", "api", "10.128.0.1")}})
	c.merge(&v1.Network{RemovedServices: []string{"1"}, Services: []*v1.NetworkService{shopService("2", "db", "10.128.0.2")}})
	if err := c.save(); err != nil {
		t.Fatal(err)
	}
	_, got, err := c.load()
	if err != nil || len(got.GetServices()) != 1 || got.GetServices()[0].GetName() != "db" || got.GetZone() != "a" || !got.GetFull() {
		t.Errorf("loaded %v, %v", got, err)
	}
	c.path += "-damaged"
	if err := os.WriteFile(c.path, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.load(); err == nil {
		t.Error("a damaged file was read")
	}
}
