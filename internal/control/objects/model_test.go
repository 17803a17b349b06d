package objects_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/control/objects"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/objecttest"
)

// Whatever happens to nodes and leaders, nothing that is referred to is deleted; and when the faults are over, every chunk
// has its copies and nothing dead remains.
func TestLoopsKeepTheirPromises(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		names := objecttest.NewNames(t)
		synctest.Test(t, func(t *testing.T) {
			m := &model{world: newWorld(t, names, modelNodes...), rt: rt, objects: map[string]uint64{}, down: map[string]bool{}}
			m.lead()
			for range rapid.IntRange(5, 40).Draw(rt, "steps") {
				m.step()
				m.check("after a step")
			}
			m.recover()
		})
	})
}

var modelNodes = []string{"a", "b", "c", "d"}

// model is a world whose objects, by key, are known.
type model struct {
	*world
	rt      *rapid.T
	objects map[string]uint64
	down    map[string]bool
	rivals  []func()
}

// step does one thing. Of the four nodes, two at most are down or removed, so that each chunk has a copy left: all have
// three.
func (m *model) step() {
	actions := map[string]func(){
		"put": m.putOne, "put again": m.putOne, "delete": m.deleteOne, "pass": m.passSome, "cut": m.cutOne, "join": m.joinOne,
		"damage": m.damageOne, "lose": m.loseOne, "drain": m.drainOne, "change of the leader": m.changeLeader, "slow": m.slowPut,
	}
	actions[rapid.SampledFrom([]string{
		"put", "put again", "delete", "pass", "cut", "join", "damage", "lose", "drain", "change of the leader", "slow",
	}).Draw(m.rt, "step")]()
	synctest.Wait()
}

func (m *model) bucket() object.Bucket {
	b := photos
	b.Replicas = 3
	return b
}

func (m *model) putOne() {
	key := rapid.SampledFrom([]string{"k1", "k2", "k3", "k4", "k5"}).Draw(m.rt, "key")
	// Few contents, so that a chunk dies and lives again.
	seed := rapid.Uint64Range(1, 4).Draw(m.rt, "content")
	m.putInto(key, seed, 0)
}

func (m *model) putInto(key string, seed uint64, pause time.Duration) {
	body := &slowBody{pieces: [][]byte{content(2000, seed)[:1000], content(2000, seed)[1000:]}, pause: pause}
	_, err := m.store.Put(context.Background(), m.bucket(), object.PutRequest{Key: key, Body: body, Size: 2000})
	switch {
	case err == nil:
		m.objects[key] = seed
	case errors.Is(err, object.ErrNoQuorum) || errors.Is(err, object.ErrUnreachable):
	default:
		m.rt.Fatalf("putting: %v", err)
	}
}

func (m *model) slowPut() {
	key := rapid.SampledFrom([]string{"k1", "k2"}).Draw(m.rt, "key")
	pause := time.Duration(rapid.IntRange(1, 40).Draw(m.rt, "minutes")) * time.Minute
	m.putInto(key, rapid.Uint64Range(1, 4).Draw(m.rt, "content"), pause)
}

func (m *model) deleteOne() {
	key := rapid.SampledFrom([]string{"k1", "k2", "k3", "k4", "k5"}).Draw(m.rt, "key")
	_, err := m.store.Delete(context.Background(), m.bucket(), key, "", object.Condition{})
	if err != nil && !errors.Is(err, object.ErrNoKey) {
		m.rt.Fatalf("deleting: %v", err)
	}
	delete(m.objects, key)
}

func (m *model) passSome() {
	m.pass(time.Duration(rapid.IntRange(1, 90).Draw(m.rt, "minutes")) * time.Minute)
}

func (m *model) node() string { return rapid.SampledFrom(modelNodes).Draw(m.rt, "node") }

func (m *model) cutOne() {
	if node := m.node(); len(m.down) == 0 {
		m.down[node] = true
		m.cut(node)
	}
}

func (m *model) joinOne() {
	for node := range m.down {
		m.join(node)
		delete(m.down, node)
	}
}

// anyChunk returns a chunk of a node that has two more good copies on nodes that answer.
func (m *model) anyChunk(node string) (object.Hash, bool) {
	for _, hash := range m.places()["uid-"+node] {
		good := 0
		for _, other := range modelNodes {
			if other != node && !m.down[other] && m.disks.Has("uid-"+other, hash) && m.lists(other, hash) {
				good++
			}
		}
		if good >= 2 {
			return hash, true
		}
	}
	return object.Hash{}, false
}

func (m *model) lists(node string, hash object.Hash) bool {
	for _, one := range m.places()["uid-"+node] {
		if one == hash {
			return true
		}
	}
	return false
}

// damageOne damages a copy, and lets the node notice some time later.
func (m *model) damageOne() {
	node := m.node()
	if hash, some := m.anyChunk(node); some && !m.down[node] {
		m.disks.Corrupt("uid-"+node, hash)
		m.pass(time.Second)
		_ = m.loops.Scrub(context.Background(), []string{"uid-" + node}, 0, nil)
		m.pass(5 * time.Minute)
	}
}

func (m *model) loseOne() {
	node := m.node()
	if hash, some := m.anyChunk(node); some && !m.down[node] {
		m.disks.Lose("uid-"+node, hash)
		m.again(node)
		m.pass(5 * time.Minute) // until it is noticed: the next loss might be the last copy
	}
}

// again lets a node connect again, so that it is compared with the names soon.
func (m *model) again(node string) {
	m.cut(node)
	m.pass(2 * time.Second)
	m.join(node)
}

func (m *model) drainOne() {
	node, drains := m.node(), rapid.Bool().Draw(m.rt, "drains")
	m.disks.Change("uid-"+node, func(n *object.Node) { n.Draining = drains })
	m.pass(5 * time.Minute)
}

// changeLeader lets another server lead. The one before may not have noticed yet.
func (m *model) changeLeader() {
	if len(m.rivals) == 0 && rapid.Bool().Draw(m.rt, "rival") {
		rival := m.loopsWith(func(*objects.Options) {})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = rival.Run(ctx)
		}()
		m.rivals = append(m.rivals, func() { cancel(); <-ended })
		m.t.Cleanup(func() { cancel(); <-ended })
		return
	}
	for _, end := range m.rivals {
		end()
	}
	m.rivals = nil
	m.resign()
	m.lead()
}

// check fails unless every object can be read.
func (m *model) check(when string) {
	for key, seed := range m.objects {
		_, r, err := m.store.Open(context.Background(), m.bucket(), key, "")
		if err != nil {
			m.rt.Fatalf("%s: opening %s: %v", when, key, err)
		}
		g := r.ReadRange(context.Background(), 0, -1)
		var got bytes.Buffer
		_, err = got.ReadFrom(g)
		g.Close()
		r.Close()
		if err != nil || !bytes.Equal(got.Bytes(), content(2000, seed)) {
			m.rt.Fatalf("%s: reading %s: %v", when, key, err)
		}
	}
}

// recover ends all faults, and fails unless everything is as it should be some hours later.
func (m *model) recover() {
	for _, node := range modelNodes {
		m.disks.Break("uid-"+node, objecttest.Faults{})
		m.disks.Change("uid-"+node, func(n *object.Node) { n.Connected, n.Draining = true, false })
	}
	for _, end := range m.rivals {
		end()
	}
	for _, node := range modelNodes {
		m.again(node)
	}
	m.pass(6 * time.Hour)
	m.check("at the end")
	if totals := m.totals(); totals.Dead != 0 || totals.Short != 0 {
		m.rt.Fatalf("at the end: %+v", totals)
	}
	for hash, count := range m.copies() {
		if count != 3 {
			m.rt.Fatalf("chunk %x has %d copies at the end", hash[:4], count)
		}
	}
	if problem := m.disagreement(); problem != "" {
		m.rt.Fatal(problem)
	}
}

func (m *model) disagreement() string {
	for _, node := range modelNodes {
		if has, listed := m.disks.Count("uid-"+node), m.on(node); has != listed {
			return fmt.Sprintf("node %s has %d chunks at the end, and the names list %d", node, has, listed)
		}
	}
	return ""
}
