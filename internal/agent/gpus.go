package agent

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent/machine"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/spec"
)

// errNoGPU means that the node has too few GPUs at the moment. The scheduler counts GPUs,
// so waiting helps: a GPU is just being released, or a card has failed and the cluster will
// learn of it.
var errNoGPU = errors.New("no GPU is free")

// gpus assigns GPUs to replicas. A replica's GPUs are in its record, too, so that they stay
// the same when the agent restarts.
type gpus struct {
	list func() []machine.GPU

	mu   sync.Mutex
	held map[string][]string // GPU ids by replica uid
}

func newGPUs(list func() []machine.GPU) *gpus { return &gpus{list: list, held: map[string][]string{}} }

// hold restores the GPUs that an earlier agent gave to a replica.
func (g *gpus) hold(replica string, ids []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(ids) > 0 {
		g.held[replica] = ids
	}
}

// claim gives a replica as many GPUs as it asks for: those that it has, if they still
// exist, and then the first free ones.
func (g *gpus) claim(replica string, ask *v1.Gpu) ([]machine.GPU, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	taken := map[string]bool{}
	for owner, ids := range g.held {
		for _, id := range ids {
			taken[id] = taken[id] || owner != replica
		}
	}
	count := int(ask.GetCount())
	var own, free []machine.GPU
	for _, one := range g.list() {
		switch has := slices.Contains(g.held[replica], one.ID); {
		case taken[one.ID] || !spec.ModelMatches(one.Model, ask.GetModel()):
		case has:
			own = append(own, one)
		default:
			free = append(free, one)
		}
	}
	all := slices.Concat(own, free)
	if len(all) < count {
		return nil, fmt.Errorf("%w: it needs %d, and the node has %d for it", errNoGPU, count, len(all))
	}
	given := all[:count]
	ids := make([]string, count)
	for i, one := range given {
		ids[i] = one.ID
	}
	slices.Sort(ids)
	g.held[replica] = ids
	return given, nil
}

func (g *gpus) release(replica string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.held, replica)
}

// addGPUs adds the devices of the replica's GPUs to a task. The choice is on disk before the
// task starts.
func (r *replica) addGPUs(task *driver.Task) error {
	ask := r.rec.Assignment.GetRevision().GetSpec().GetWorkload().GetResources().GetGpu()
	if ask.GetCount() <= 0 {
		return nil
	}
	given, err := r.gpus.claim(r.uid, ask)
	if err != nil {
		return err
	}
	var ids []string
	for _, one := range given {
		ids = append(ids, one.ID)
		for _, device := range one.Devices {
			if !slices.Contains(task.Devices, device) {
				task.Devices = append(task.Devices, device)
			}
		}
	}
	slices.Sort(ids)
	if slices.Equal(ids, r.rec.GPUs) {
		return nil
	}
	return r.advance(func(rec *record) { rec.GPUs = ids })
}
