package names_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cloudless/cloudless/internal/consensus"
	objectnames "github.com/cloudless/cloudless/internal/object/names"
	"github.com/cloudless/cloudless/internal/server/names"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// lone are the options of a server that is alone.
func lone(dir string) names.Options {
	return names.Options{Dir: filepath.Join(dir, "names"), Reached: filepath.Join(dir, "reached"), ServerID: "server-1", Bootstrap: true, SnapshotThreshold: 50}
}

func open(t *testing.T, o names.Options) *names.Group {
	t.Helper()
	g, err := names.Open(t.Context(), o)
	must(t, err)
	t.Cleanup(func() { _ = g.Close() })
	must(t, g.WaitLeader(t.Context()))
	return g
}

// Proposals that come together share entries, and each gets its own results.
func TestProposalsThatShareAnEntryGetTheirOwnResults(t *testing.T) {
	g := open(t, lone(t.TempDir()))
	before := g.Stats().LastIndex
	const nodes = 200
	var all sync.WaitGroup
	for n := range nodes {
		all.Go(func() {
			register := func(uid string) *objectv1.Operation {
				return &objectv1.Operation{What: &objectv1.Operation_RegisterNode{RegisterNode: &objectv1.RegisterNode{Uid: uid}}}
			}
			a, b := fmt.Sprintf("a-%d", n), fmt.Sprintf("b-%d", n)
			results, err := g.Propose(t.Context(), &objectv1.Entry{Operations: []*objectv1.Operation{register(a), register(b)}})
			if err != nil || len(results.GetResults()) != 2 {
				t.Errorf("got %v, %v", results, err)
				return
			}
			view, err := g.View(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			defer view.Close()
			numbers, err := view.Nodes()
			if err != nil || numbers[a] != results.GetResults()[0].GetNode() || numbers[b] != results.GetResults()[1].GetNode() {
				t.Errorf("the nodes %s and %s have the numbers %d and %d, not %v (%v)", a, b, numbers[a], numbers[b], results, err)
			}
		})
	}
	all.Wait()
	if entries := g.Stats().LastIndex - before; entries >= nodes {
		t.Errorf("%d proposals took %d entries", nodes, entries)
	}
}

// What no server could apply is refused before it is in the log.
func TestEntryThatSaysNothingIsRefused(t *testing.T) {
	g := open(t, lone(t.TempDir()))
	_, err := g.Propose(t.Context(), &objectv1.Entry{Operations: []*objectv1.Operation{{}}})
	if _, invalid := errors.AsType[*objectnames.InvalidError](err); !invalid {
		t.Fatalf("got %v", err)
	}
	must(t, put(t.Context(), g, "cat"))
}

// A restart continues from the names on disk, with and without the entries of the log since.
func TestRestartKeepsTheNames(t *testing.T) {
	o := lone(t.TempDir())
	for round := range 4 {
		g := open(t, o)
		for n := range round * 40 {
			if key := fmt.Sprintf("%d/%d", round-1, n); n < (round-1)*40 && !sees(t, g, key) {
				t.Fatalf("%s is gone", key)
			}
		}
		for n := range round * 40 {
			must(t, put(t.Context(), g, fmt.Sprintf("%d/%d", round, n)))
		}
		if round == 2 {
			must(t, g.Snapshot(t.Context()))
		}
		must(t, g.Close())
	}
}

// Every server writes, and all of them see what was acknowledged at once.
func TestViewHasWhatAnyServerAcknowledged(t *testing.T) {
	c := newCluster(t, 3)
	var all sync.WaitGroup
	for _, writer := range c.all() {
		for lane := range 3 {
			all.Go(func() {
				for n := range 30 {
					key := fmt.Sprintf("%s/%d/%d", writer.id, lane, n)
					if err := put(t.Context(), writer.Group, key); err != nil {
						t.Error(err)
						return
					}
					for _, reader := range c.all() {
						if !sees(t, reader.Group, key) {
							t.Errorf("%s does not see %s", reader.id, key)
						}
					}
				}
			})
		}
	}
	all.Wait()
}

// The leader is cut off while all servers propose. What was acknowledged is there, and nothing is there twice.
func TestLeaderIsLostInTheMiddleOfProposals(t *testing.T) {
	c := newCluster(t, 3)
	lost := c.leader()
	var mu sync.Mutex
	acknowledged, uncertain := map[string]bool{}, 0
	var writers sync.WaitGroup
	half := make(chan struct{}, 1)
	for _, writer := range c.all() {
		if writer == lost {
			continue
		}
		for lane := range 4 {
			writers.Go(func() {
				for n := range 100 {
					key := fmt.Sprintf("%s/%d/%d", writer.id, lane, n)
					err := put(t.Context(), writer.Group, key)
					mu.Lock()
					switch {
					case err == nil:
						acknowledged[key] = true
					case errors.Is(err, consensus.ErrUncertain):
						uncertain++
					default:
						t.Errorf("%s: %v", key, err)
					}
					if len(acknowledged) == 300 {
						half <- struct{}{}
					}
					mu.Unlock()
				}
			})
		}
	}
	<-half
	lost.network.setCut(true)
	writers.Wait()
	if len(acknowledged)+uncertain != 800 || uncertain > 50 {
		t.Errorf("%d are acknowledged, %d uncertain", len(acknowledged), uncertain)
	}
	lost.network.setCut(false)
	for _, reader := range c.all() {
		view, err := reader.View(t.Context())
		must(t, err)
		for key := range acknowledged {
			if !has(t, view, key) {
				t.Errorf("%s has lost %s", reader.id, key)
			}
		}
		view.Close()
	}
}

// A server that joins late gets the files of another one, because the log does not have everything any more.
func TestNewServerGetsTheFiles(t *testing.T) {
	c := newCluster(t, 1)
	first := c.leader()
	for n := range 100 {
		must(t, put(t.Context(), first.Group, fmt.Sprint(n)))
	}
	must(t, first.Snapshot(t.Context()))
	for n := range 10 {
		must(t, put(t.Context(), first.Group, fmt.Sprint("later-", n)))
	}
	second := c.start("server-2", filepath.Join(t.TempDir(), "names"))
	c.waitVoters(2)
	for n := range 100 {
		if !sees(t, second.Group, fmt.Sprint(n)) {
			t.Fatalf("%d is missing", n)
		}
	}
	// What it got survives a restart, and it can lead.
	dir := second.dir
	second.stop()
	second = c.start("server-2", dir)
	if !sees(t, second.Group, "99") || !sees(t, second.Group, "later-9") {
		t.Fatal("names are missing after a restart")
	}
}

// Servers that the control group has removed take no part, also when the removed one leads.
func TestMembersFollowTheControlGroup(t *testing.T) {
	c := newCluster(t, 3)
	for _, left := range []int{2, 1} {
		gone := c.leader()
		other := c.all()[0]
		if other == gone {
			other = c.all()[1]
		}
		must(t, other.Release(t.Context(), gone.id))
		c.leave(gone.id)
		gone.stop()
		c.mu.Lock()
		delete(c.servers, gone.id)
		c.mu.Unlock()
		eventually(t, "the removed server takes no part", func() bool { return len(c.leader().Servers()) == left })
		must(t, put(t.Context(), other.Group, gone.id))
	}
	c.start("server-4", filepath.Join(t.TempDir(), "names"))
	c.waitVoters(2)
}

// Two of three servers are lost for good. The third continues with what it has.
func TestRecoveredServerContinuesAlone(t *testing.T) {
	c := newCluster(t, 3)
	for n := range 70 {
		must(t, put(t.Context(), c.leader().Group, fmt.Sprint(n)))
	}
	left := c.all()[2]
	if !sees(t, left.Group, "69") {
		t.Fatal("it lags")
	}
	for _, s := range c.all() {
		s.stop()
	}
	o := names.Options{Dir: left.dir, Reached: left.dir + ".reached", ServerID: left.id}
	was, err := names.Recover(o)
	if err != nil || was.Index < 70 {
		t.Fatalf("recovered at %+v: %v", was, err)
	}
	alone := open(t, o)
	for n := range 70 {
		if !sees(t, alone, fmt.Sprint(n)) {
			t.Errorf("%d is lost", n)
		}
	}
	must(t, put(t.Context(), alone, "new"))
	if _, err := names.Recover(lone(t.TempDir())); err != nil {
		t.Errorf("a server without a part in the group: %v", err)
	}
}
