// Package lease keeps the leases of a node's singleton replicas, and writes them into files for the shims, which
// outlive the agent: a shim kills its container when the lease in the file has expired.
//
// Time is CLOCK_BOOTTIME, which also counts while the machine sleeps and cannot be set. A lease counts from the moment
// when the agent asked for it, which is before the leader granted it.
//
// The package must not know sessions, nor what a replica is.
package lease

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Renewal is how long a lease is used before a new one is asked for.
const Renewal = 3 * time.Second

// Keeper holds the leases of one boot.
type Keeper struct {
	dir string
	// Now is the time since the boot, including sleep. Tests replace it.
	Now func() time.Duration

	mu       sync.Mutex
	number   uint64
	asked    map[uint64]time.Duration // when the leases with a number were asked for
	deadline map[string]time.Duration // by replica
	granted  map[string]time.Duration // when the lease began
	changed  chan struct{}            // closed when a lease is granted
}

// NewKeeper returns a keeper with the leases in a folder. Those of earlier boots are removed: their time means nothing
// any more.
func NewKeeper(folder, boot string) (*Keeper, error) {
	k := &Keeper{
		dir: filepath.Join(folder, boot), Now: bootTime, asked: map[uint64]time.Duration{}, deadline: map[string]time.Duration{},
		granted: map[string]time.Duration{}, changed: make(chan struct{}),
	}
	boots, err := os.ReadDir(folder)
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	for _, one := range boots {
		if one.Name() != boot {
			if err := os.RemoveAll(filepath.Join(folder, one.Name())); err != nil {
				return nil, fmt.Errorf("remove the leases of an earlier boot: %w", err)
			}
		}
	}
	files, _ := os.ReadDir(k.dir)
	for _, file := range files {
		if text, err := os.ReadFile(filepath.Join(k.dir, file.Name())); err == nil {
			if until, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
				k.deadline[file.Name()] = time.Duration(until)
			}
		}
	}
	return k, nil
}

// bootTime is the time since the boot, including sleep.
func bootTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("CLOCK_BOOTTIME: " + err.Error()) // every Linux has it
	}
	return time.Duration(t.Nano())
}

// Ask returns those of the replicas that need a new lease, and a number for the request that is about to be sent.
func (k *Keeper) Ask(replicas []string) (need []string, number uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.Now()
	for _, uid := range replicas {
		if began, known := k.granted[uid]; !known || now-began >= Renewal {
			need = append(need, uid)
		}
	}
	if len(need) == 0 {
		return nil, 0
	}
	k.number++
	k.asked[k.number] = now
	delete(k.asked, k.number-maxAsked)
	return need, k.number
}

// maxAsked is how many requests may be open. Answers to older ones are worthless.
const maxAsked = 64

// Grant notes leases that a server has granted in answer to a request.
func (k *Keeper) Grant(number uint64, length time.Duration, replicas []string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	began, known := k.asked[number]
	if !known {
		return nil
	}
	delete(k.asked, number)
	for _, uid := range replicas {
		if until := began + length; until > k.deadline[uid] {
			if err := k.write(uid, until); err != nil { // a lease that the shim does not know is none
				return err
			}
			k.deadline[uid], k.granted[uid] = until, began
		}
	}
	close(k.changed)
	k.changed = make(chan struct{})
	return nil
}

// write writes a deadline in place: that also works on a full disk, and a reader sees the old or the new one, because
// both have the same length.
func (k *Keeper) write(uid string, until time.Duration) error {
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return fmt.Errorf("write a lease: %w", err)
	}
	file, err := os.OpenFile(k.Path(uid), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write a lease: %w", err)
	}
	_, err = file.WriteAt(fmt.Appendf(nil, "%020d\n", until.Nanoseconds()), 0)
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("write a lease: %w", err)
	}
	return nil
}

// Path is the file with the lease of a replica.
func (k *Keeper) Path(replica string) string { return filepath.Join(k.dir, replica) }

// Left is how long the lease of a replica is still valid; 0 or less if it is not. The channel is closed when a lease is
// granted.
func (k *Keeper) Left(replica string) (left time.Duration, changed <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.deadline[replica] - k.Now(), k.changed
}

// Forget removes the lease of a replica that is gone.
func (k *Keeper) Forget(replica string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.deadline, replica)
	delete(k.granted, replica)
	_ = os.Remove(k.Path(replica)) // one that stays is removed after the next boot
}
