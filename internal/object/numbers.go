package object

import (
	"context"
	"fmt"
	"sync"
	"time"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object/names"
)

// numbers translates between the UIDs of nodes and their numbers in the names. The zero value knows none.
type numbers struct {
	mu  sync.RWMutex
	of  map[string]uint32
	uid map[uint32]string
	// asking lets one goroutine register nodes.
	asking sync.Mutex
}

func (n *numbers) learn(view *names.View) error {
	all, err := view.Nodes()
	if err != nil {
		return fmt.Errorf("reading the numbers of nodes: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.of, n.uid = all, make(map[uint32]string, len(all))
	for uid, number := range all {
		n.uid[number] = uid
	}
	return nil
}

func (n *numbers) number(uid string) (uint32, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	number, known := n.of[uid]
	return number, known
}

// uids returns the UIDs of nodes, without those that no longer exist.
func (n *numbers) uids(view *names.View, all []uint32) ([]string, error) {
	for attempt := 0; ; attempt++ {
		uids := n.known(all)
		if len(uids) == len(all) || attempt > 0 {
			return uids, nil
		}
		if err := n.learn(view); err != nil {
			return nil, err
		}
	}
}

func (n *numbers) known(all []uint32) []string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	uids := make([]string, 0, len(all))
	for _, number := range all {
		if uid, known := n.uid[number]; known {
			uids = append(uids, uid)
		}
	}
	return uids
}

// numberOf returns the number of a node, and gives it one if it has none.
func (s *Store) numberOf(ctx context.Context, uid string) (uint32, error) {
	if number, known := s.numbers.number(uid); known {
		return number, nil
	}
	s.numbers.asking.Lock()
	defer s.numbers.asking.Unlock()
	if number, known := s.numbers.number(uid); known {
		return number, nil
	}
	result, err := s.proposeAgain(ctx, &objectv1.Operation{What: &objectv1.Operation_RegisterNode{
		RegisterNode: &objectv1.RegisterNode{Uid: uid},
	}})
	if err == nil {
		err = refusal(result, 0)
	}
	if err != nil {
		return 0, fmt.Errorf("registering node %s: %w", s.fleet.name(uid), err)
	}
	view, err := s.view(ctx)
	if err != nil {
		return 0, err
	}
	defer view.Close()
	return result.GetNode(), s.numbers.learn(view)
}

// epochs remembers the epoch of the collection of garbage. An epoch that is a little old does no harm: an operation
// that names one that is too old is refused.
type epochs struct {
	mu    sync.Mutex
	epoch uint64
	asked time.Time
}

// epochFor is how long an epoch is used without asking again. Epochs last for minutes.
const epochFor = 30 * time.Second

// epochNow returns the current epoch.
func (s *Store) epochNow(ctx context.Context) (uint64, error) {
	s.epoch.mu.Lock()
	defer s.epoch.mu.Unlock()
	if s.epoch.epoch != 0 && time.Since(s.epoch.asked) < epochFor {
		return s.epoch.epoch, nil
	}
	view, err := s.view(ctx)
	if err != nil {
		return 0, err
	}
	defer view.Close()
	s.epoch.epoch, s.epoch.asked = view.Epoch(), time.Now()
	return s.epoch.epoch, s.numbers.learn(view)
}

// epochPassed makes the next call of epochNow ask.
func (s *Store) epochPassed() {
	s.epoch.mu.Lock()
	defer s.epoch.mu.Unlock()
	s.epoch.epoch = 0
}
