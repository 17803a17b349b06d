package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// build adds a change to a batch, and returns false if there is nothing to change.
type build func(s *server, snap *state.Snapshot, b *state.Batch) bool

// operate is a call of the API: it waits for a leader, and is retried when the state has
// moved on or the outcome is unknown.
func (w *World) operate(what string, f build, done func()) { w.attempt(what, f, done, 30) }

func (w *World) attempt(what string, f build, done func(), attempts int) {
	if attempts == 0 {
		w.note("%s: given up", what)
		return
	}
	again := func(d time.Duration) { w.after(d, func() { w.attempt(what, f, done, attempts-1) }) }
	t := w.leader
	if t == nil || t.frozen { // the outcome so far is unknown
		w.after(time.Second, func() { w.attempt(what, f, done, attempts) })
		return
	}
	b := &state.Batch{}
	snap := t.server.store.Snapshot()
	if !f(t.server, snap, b) {
		w.note("%s: nothing to do", what)
		if done != nil {
			done()
		}
		return
	}
	t.propose(what, b, snap, func(err error) {
		switch {
		case err == nil:
			if done != nil {
				done()
			}
		case state.MovedOn(err):
			again(10 * time.Millisecond)
		case errors.Is(err, errNoRoom):
			again(2 * time.Second)
		default:
			again(time.Second)
		}
	})
}

// workload draws one that is not being deleted.
func (w *World) workload(c *rand.Rand) *v1.Workload {
	t := w.leader
	if t == nil {
		return nil
	}
	var all []*v1.Workload
	for one := range t.server.store.Snapshot().Workloads("", "") {
		if one.GetMetadata().GetDeleteTime() == nil {
			all = append(all, one)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[c.IntN(len(all))]
}

// images is how many there are.
const images = 6

func imageName(n int) string { return fmt.Sprintf("app%d:1", n) }

// maxWorkloads keeps worlds small.
const maxWorkloads = 20

// anySpec draws a workload's spec.
func anySpec(c *rand.Rand) *v1.WorkloadSpec {
	s := &v1.WorkloadSpec{
		Image: imageName(c.IntN(images)), Replicas: proto.Int32(int32(c.IntN(6))),
		Resources: &v1.Resources{Requests: &v1.ResourceAmounts{
			Cpu: fmt.Sprintf("%dm", 50*(1+c.IntN(20))), Memory: fmt.Sprintf("%dMi", 32*(1+c.IntN(24))),
		}},
		Restart: &v1.Restart{Policy: []string{"always", "always", "always", "on-failure", "never"}[c.IntN(5)]},
	}
	if c.IntN(3) == 0 {
		s.Ports = []*v1.Port{{Port: 80, Publish: int32(8080 + c.IntN(4))}}
		if c.IntN(3) == 0 {
			s.Network, s.Ports[0].Port = "host", s.Ports[0].GetPublish()
		}
	}
	if c.IntN(4) == 0 {
		s.Placement = &v1.Placement{Labels: map[string]string{"zone": string(rune('a' + c.IntN(3)))}}
	}
	if c.IntN(4) == 0 {
		if s.Placement == nil {
			s.Placement = &v1.Placement{}
		}
		s.Placement.Tolerations = []*v1.Toleration{{Key: taintKey}}
	}
	rank(c, s)
	anyRollout(c, s)
	s.MinAvailable = min(s.GetMinAvailable(), s.GetReplicas())
	return spec.Normalized(s)
}

// actCreate creates a workload.
func (w *World) actCreate(c *rand.Rand) {
	w.names++
	name, wanted := fmt.Sprintf("w%d", w.names), asKind(anySpec(c), anyKind(c))
	w.operate("create "+name, func(s *server, snap *state.Snapshot, b *state.Batch) bool {
		return w.buildCreate(s, snap, b, name, wanted)
	}, nil)
}

func (w *World) buildCreate(s *server, snap *state.Snapshot, b *state.Batch, name string, wanted *v1.WorkloadSpec) bool {
	if snap.WorkloadByName(namespaceOf(name), name) != nil || snap.Count(state.KindWorkload) >= maxWorkloads {
		return false
	}
	one, _ := w.addWorkload(s, snap, b, name, wanted)
	receipt := w.uidsOf(s)()
	b.Create(&statev1.Receipt{Metadata: &v1.Metadata{Uid: receipt, Name: receipt}, ObjectUid: one.GetMetadata().GetUid()})
	return true
}

// revise adds the next revision of a workload.
func (w *World) revise(s *server, b *state.Batch, one *v1.Workload) {
	b.Create(rollout.Revise(one, w.uidsOf(s)()))
}

// change lets an operator change one existing workload.
func (w *World) change(c *rand.Rand, verb string, f func(s *server, snap *state.Snapshot, b *state.Batch, one *v1.Workload) bool) {
	chosen := w.workload(c)
	if chosen == nil {
		return
	}
	uid := chosen.GetMetadata().GetUid()
	w.operate(verb+" "+chosen.GetMetadata().GetName(), func(s *server, snap *state.Snapshot, b *state.Batch) bool {
		old := snap.Workload(uid)
		if old == nil || old.GetMetadata().GetDeleteTime() != nil {
			return false
		}
		one := proto.CloneOf(old)
		if !f(s, snap, b, one) {
			return false
		}
		b.Update(one, old.GetMetadata().GetVersion())
		return true
	}, nil)
}

func (w *World) actUpdate(c *rand.Rand) {
	wanted := anySpec(c)
	w.change(c, "update", func(s *server, snap *state.Snapshot, b *state.Batch, one *v1.Workload) bool {
		if one.GetStatus().GetOwnerUid() != "" {
			return false // the API refuses it
		}
		w.buildUpdate(s, snap, b, one, wanted)
		return true
	})
}

func (w *World) actScale(c *rand.Rand) {
	count := int32(c.IntN(8))
	w.change(c, fmt.Sprintf("scale to %d", count), func(_ *server, _ *state.Snapshot, _ *state.Batch, one *v1.Workload) bool {
		if one.GetSpec().GetKind() != "" || one.GetSpec().GetAutoscale() != nil || one.GetSpec().GetSingleton() && count > 1 || spec.TooFew(one.GetSpec(), count) != "" || count == 0 && broken(one.GetSpec()) {
			return false // the API refuses it, or see breakable
		}
		one.Spec.Replicas = proto.Int32(count)
		return true
	})
}

func (w *World) actRestart(c *rand.Rand) {
	w.change(c, "restart", func(s *server, snap *state.Snapshot, b *state.Batch, one *v1.Workload) bool {
		if spec.IsRelease(one) {
			return false // the API refuses it
		}
		old := proto.CloneOf(one)
		w.revise(s, b, one)
		w.deploy(s, snap, b, old, one, spec.CauseRestart)
		return true
	})
}

func (w *World) actDelete(c *rand.Rand) {
	w.change(c, "delete", func(s *server, _ *state.Snapshot, _ *state.Batch, one *v1.Workload) bool {
		one.Metadata.DeleteTime = timestamppb.New(w.wall(s))
		return true
	})
}

// actToken makes a token that retention has to delete, and its credential.
func (w *World) actToken(c *rand.Rand) {
	lasts := draw(c, time.Minute, 2*time.Hour)
	w.names++
	name := fmt.Sprintf("t%d", w.names)
	w.operate("token "+name, func(s *server, _ *state.Snapshot, b *state.Batch) bool {
		b.Create(&v1.Token{
			ApiVersion: spec.APIVersion, Kind: "Token", Metadata: &v1.Metadata{Uid: w.uidsOf(s)(), Name: name},
			Spec: &v1.TokenSpec{Role: "node", ExpireTime: timestamppb.New(w.wall(s).Add(lasts)), Uses: 1}, Status: &v1.TokenStatus{},
		})
		return true
	}, nil)
}

// actCordon cordons or drains a node, or puts it back into service.
func (w *World) actCordon(c *rand.Rand) {
	m := w.machine(c)
	if m == nil {
		return
	}
	uid, availability := m.uid, []string{"cordoned", "draining", "draining", "", "", ""}[c.IntN(6)]
	how := &v1.DrainNodeRequest{Timeout: []string{"", "0s", "1m", "10m"}[c.IntN(4)], Grace: []string{"", "2s"}[c.IntN(2)], Force: c.IntN(4) == 0}
	w.operate("cordon "+m.name+" "+availability, func(s *server, snap *state.Snapshot, b *state.Batch) bool {
		old := snap.Node(uid)
		if old == nil || old.GetSpec().GetAvailability() == availability {
			return false
		}
		n := proto.CloneOf(old)
		n.Spec.Availability = availability
		n.Spec.Drain = placement.DrainOf(w.wall(s), snap, old, n, how)
		// The state follows in the same transaction, so that nothing is placed in between.
		if st := n.GetStatus().GetState(); st == "ready" || st == "cordoned" || st == "draining" {
			n.Status.State = inService(n)
		}
		b.Update(n, old.GetMetadata().GetVersion())
		return true
	}, nil)
}

// paces are sensible timeouts for nodes.
var paces = []*v1.Liveness{
	nil,
	{Heartbeat: "2s", Silence: "8s", Reconnect: "20s"},
	{Heartbeat: "5s", Silence: "15s", Reconnect: "30s"},
	{Heartbeat: "500ms", Silence: "2s", Reconnect: "10s"},
}

// actConfigure changes the timeouts of all nodes or some, and how long things are kept.
func (w *World) actConfigure(c *rand.Rand) {
	all, some, kept := paces[c.IntN(len(paces))], paces[c.IntN(len(paces))], anyRetention(c)
	w.operate("configure", func(s *server, snap *state.Snapshot, b *state.Batch) bool {
		old := snap.Cluster()
		changed := proto.CloneOf(old)
		changed.Spec.Liveness, changed.Spec.NodeClasses, changed.Spec.Retention = proto.CloneOf(all), nil, proto.CloneOf(kept)
		if some != nil {
			changed.Spec.NodeClasses = []*v1.NodeClass{{Name: "slow", Labels: "disk=hdd", Liveness: proto.CloneOf(some)}}
		}
		changed.Status.Configuration++
		b.Create(&v1.Configuration{
			ApiVersion: spec.APIVersion, Kind: spec.KindConfiguration,
			Metadata: &v1.Metadata{Uid: w.uidsOf(s)(), Name: fmt.Sprintf("configuration-%d", changed.GetStatus().GetConfiguration())},
			Spec:     &v1.ConfigurationSpec{Number: changed.GetStatus().GetConfiguration(), Cluster: proto.CloneOf(changed.GetSpec())},
		})
		b.Update(changed, old.GetMetadata().GetVersion())
		return true
	}, nil)
}

// anyRetention draws how long old objects are kept.
func anyRetention(c *rand.Rand) *v1.Retention {
	hours := func() string { return []string{"", "1h", "4h", "10h"}[c.IntN(4)] }
	return &v1.Retention{Replicas: hours(), Events: hours(), MaxEvents: new(int32(100 + c.IntN(900))), Revisions: new(int32(2 + c.IntN(9))), Tokens: hours()}
}
