package chunks

import (
	"sync/atomic"
	"time"
)

const (
	// restAfter is how long this machine is not idle after somebody used it.
	restAfter = 5 * time.Second
	// busyShare is the share of the CPUs that other processes may use while it is idle.
	busyShare = 0.5
)

// idleness is whether this machine has time for work that nobody waits for: no server reads or stores chunks for clients,
// and other processes leave half of the CPUs unused.
type idleness struct {
	others func() (float64, error)
	asked  atomic.Bool
	busy   time.Time // the machine was in use until then
}

// look is called about once a second, by one goroutine.
func (i *idleness) look() bool {
	share, err := i.others()
	if asked := i.asked.Swap(false); asked || err != nil || share > busyShare {
		i.busy = time.Now()
	}
	return time.Since(i.busy) > restAfter
}
