package names_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// enroll makes servers known to the control group. They need not run.
func (c *cluster) enroll(ids ...string) {
	c.t.Helper()
	c.change(func(b *state.Batch) {
		for _, id := range ids {
			b.Create(&v1.Server{Metadata: &v1.Metadata{Uid: id, Name: id}})
		}
	})
}

// lose removes a server from the cluster for good.
func (c *cluster) lose(id string) {
	c.t.Helper()
	c.change(func(b *state.Batch) {
		b.Delete(state.KindServer, id)
		b.Put(&statev1.Revocation{Metadata: &v1.Metadata{Uid: id}, Id: "spiffe://test/server/" + id})
	})
}

func (c *cluster) founder() string {
	return c.store.Snapshot().Cluster().GetStatus().GetNamesFounder()
}

// chooseOn lets a server lead the control group until the test or the returned function ends that.
func (c *cluster) chooseOn(s *server) (stop func()) {
	c.t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background()) // that of the test ends before its cleanups
	ended := make(chan error, 1)
	go func() { ended <- s.ChooseFounder(ctx, c.store, c) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel(errDeposed)
		if err := <-ended; !errors.Is(err, errDeposed) {
			c.t.Errorf("server %s chose founders until %v", s.id, err)
		}
	}
	c.t.Cleanup(stop)
	return stop
}

var errDeposed = errors.New("another server leads the control group")

func (c *cluster) folder(id string) string { return filepath.Join(c.t.TempDir(), id) }

// A cluster that is older than the object store has no founder. The server that leads the control group becomes the one,
// and all others join it.
func TestAnOlderClusterFoundsTheGroup(t *testing.T) {
	c := emptyCluster(t, "")
	c.enroll("server-1", "server-2", "server-3")
	c.start("server-1", c.folder("1"))
	leads := c.start("server-2", c.folder("2"))
	c.start("server-3", c.folder("3"))
	c.chooseOn(leads)
	c.waitVoters(3)
	if c.founder() != "server-2" {
		t.Errorf("server %q has founded the group", c.founder())
	}
	must(t, put(t.Context(), c.all()[0].Group, "cat"))
	if !sees(t, c.all()[2].Group, "cat") {
		t.Error("the servers are not in one group")
	}
}

// The server that should have founded the group was removed before it did.
func TestAnotherServerFoundsTheGroupOfALostOne(t *testing.T) {
	c := emptyCluster(t, "server-1")
	c.enroll("server-1", "server-2", "server-3")
	leads := c.start("server-2", c.folder("2"))
	c.start("server-3", c.folder("3"))
	stop := c.chooseOn(leads)
	c.lose("server-1")
	c.waitVoters(2)
	stop()
	if c.founder() != "server-2" {
		t.Errorf("server %q has founded the group", c.founder())
	}
	must(t, put(t.Context(), leads.Group, "cat"))
}

// A server that does not answer may have names. A second group would lose them.
func TestNoGroupIsFoundedBeforeAllServersHaveAnswered(t *testing.T) {
	c := emptyCluster(t, "")
	c.enroll("server-1", "server-2")
	leads := c.start("server-1", c.folder("1"))
	asked := make(chan struct{}, 100)
	c.watch = func(id string) {
		if id == "server-2" {
			select {
			case asked <- struct{}{}:
			default:
			}
		}
	}
	c.chooseOn(leads)
	<-asked
	<-asked // the second question comes after the decision about the first one
	if c.founder() != "" {
		t.Fatalf("server %q has founded the group without the other one", c.founder())
	}
	c.start("server-2", c.folder("2"))
	c.waitVoters(2)
	if c.founder() != "server-1" {
		t.Errorf("server %q has founded the group", c.founder())
	}
}

// After the founder was lost, the others have the names, so nothing is founded: a new server joins them.
func TestTheGroupOutlivesItsFounder(t *testing.T) {
	c := newCluster(t, 3)
	c.enroll("server-1", "server-2", "server-3")
	must(t, put(t.Context(), c.all()[0].Group, "cat"))
	founder := c.all()[0]
	c.lose(founder.id)
	must(t, c.all()[1].Release(t.Context(), founder.id))
	c.leave(founder.id)
	founder.stop()
	c.mu.Lock()
	delete(c.servers, founder.id)
	c.mu.Unlock()
	c.enroll("server-4")
	added := c.start("server-4", c.folder("4"))
	c.chooseOn(added)
	c.waitVoters(3)
	if c.founder() != "server-1" {
		t.Errorf("server %q has founded another group", c.founder())
	}
	if !sees(t, added.Group, "cat") {
		t.Error("the new server does not have the names of the group")
	}
}

// Problems of the group are known on every server.
func TestEveryServerKnowsTheHealthOfTheGroup(t *testing.T) {
	c := newCluster(t, 3)
	for _, s := range c.all() {
		eventually(t, "server "+s.id+" knows that all are healthy", func() bool {
			members, err := s.Health(t.Context())
			healthy := 0
			for _, m := range members {
				if m.GetHealthy() {
					healthy++
				}
			}
			return err == nil && healthy == 3
		})
	}
	leader := c.leader()
	var cut *server
	for _, s := range c.all() {
		if s != leader {
			cut = s
		}
	}
	cut.network.setCut(true)
	eventually(t, "the leader knows that one is not healthy, and why", func() bool {
		members, err := leader.Health(t.Context())
		for _, m := range members {
			if m.GetServer() == cut.id && !m.GetHealthy() && m.GetReason() != "" {
				return err == nil
			}
		}
		return false
	})
	eventually(t, "the one that is cut off knows of no leader", func() bool { return cut.Leader() == "" && cut.Leaderless() > 0 })
}
