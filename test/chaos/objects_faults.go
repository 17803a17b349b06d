package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// The kinds of faults that only the object store knows. A run of any length has both.
const (
	losingMidway = "lose-node-in-upload"
	rotting      = "rot-node"
)

// kinds are the faults that the object store must survive.
func (o *objects) kinds() map[string]fault {
	return map[string]fault{
		"kill-leader":   onLeader(killed),
		"kill-names":    o.onNames(killed),
		"kill-follower": onFollower(killed),
		"kill-servers":  onServers(killed),
		"kill-agent":    onNode(killed),
		"kill-node":     onNode(killedWhole),
		losingMidway:    o.lostMidway,

		"pause-names": o.onNames(paused),
		"pause-agent": onNode(paused),

		"isolate-names":  o.onNames(isolated),
		"isolate-server": onFollower(isolated),
		"cut-names":      o.onNames(cutFromServers),
		"cut-node":       onNode(cutFromServers),
		"isolate-node":   onNode(isolated),
		"cut-nodes":      cutNodes,

		"fill-names": o.onNames(filled),
		"fill-node":  onNode(filled),
		"slow-names": o.onNames(slowed),
		"slow-node":  onNode(slowed),

		rotting: o.rotted,
	}
}

// first lets a schedule begin with some kinds.
func first(steps []step, kinds ...string) {
	for i, kind := range kinds {
		if i >= len(steps) {
			return
		}
		for j := i; j < len(steps); j++ {
			if steps[j].kind == kind {
				steps[j].kind = steps[i].kind
				break
			}
		}
		steps[i].kind = kind
	}
}

// onNames is a fault of the server that leads the names of objects.
func (o *objects) onNames(f onMachine) fault {
	return func(ctx context.Context, l *lab, s step) (string, func() error, error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		m := l.servers[s.dice%uint64(len(l.servers))]
		status, err := o.storage().GetStorageStatus(ctx, &v1.GetStorageStatusRequest{})
		if err != nil {
			l.told.note("%s: no leader of the names is known: %v", s.kind, err)
		}
		for _, server := range l.servers {
			if server.name == status.GetLeader() {
				m = server
			}
		}
		return f(l, m, s)
	}
}

// lostMidway ends everything on a node while a client waits in the middle of an upload.
func (o *objects) lostMidway(ctx context.Context, l *lab, s step) (string, func() error, error) {
	select {
	case goOn := <-o.midway:
		defer close(goOn)
	case <-ctx.Done():
		return "", nil, ctx.Err()
	case <-time.After(patience):
		return "", nil, errors.New("no client had an upload in parts")
	}
	m := l.nodes[s.dice%uint64(len(l.nodes))]
	what, undo, err := killedWhole(l, m, s)
	return what + " in the middle of an upload", undo, err
}

// rot is the damage on disks. Only one node at a time has some, so that two of three copies are intact: another node is
// chosen when the object store has checked and repaired the one before.
type rot struct {
	mu    sync.Mutex
	node  *machine
	last  time.Time
	flips int
}

// rotPause is how long after damage another node may be damaged. A report of damage can be lost with a leader; the next
// leader compares all nodes with the names after a minute, and finds what is missing.
const rotPause = 100 * time.Second

// rotted flips bits in the chunks of a node, and stops nothing.
func (o *objects) rotted(ctx context.Context, l *lab, s step) (string, func() error, error) {
	o.rot.mu.Lock()
	defer o.rot.mu.Unlock()
	random := rand.New(rand.NewPCG(s.dice, 0))
	if wanted := l.nodes[s.dice%uint64(len(l.nodes))]; o.rot.node != wanted && (o.rot.node == nil || o.mended(ctx)) {
		o.rot.node = wanted
	}
	m := o.rot.node
	packs, err := filepath.Glob(filepath.Join(m.data, "agent", "chunks", "packs", "*.pack"))
	if err != nil || len(packs) == 0 {
		return m.name + " has no chunks to rot", func() error { return nil }, err
	}
	flips := 0
	for range 5 + random.IntN(20) {
		flipped, err := flip(packs[random.IntN(len(packs))], random)
		if err != nil {
			return "", nil, err
		}
		flips += flipped
	}
	o.rot.flips, o.rot.last = o.rot.flips+flips, time.Now()
	return fmt.Sprintf("%d bits flipped in the chunks of %s", flips, m.name), func() error { return nil }, nil
}

// mended is whether the damage of the node that rots is over.
func (o *objects) mended(ctx context.Context) bool {
	if time.Since(o.rot.last) < rotPause {
		return false
	}
	if err := o.mend(ctx, o.rot.node.name); err != nil {
		o.lab.told.note("%s rots on: %v", o.rot.node.name, err)
		return false
	}
	o.lab.told.note("%s has no damage any more", o.rot.node.name)
	return true
}

// flip flips a bit somewhere in a file, and returns whether there was one.
func flip(path string, random *rand.Rand) (count int, err error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil // it was compacted meanwhile
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return 0, err
	}
	var one [1]byte
	at := random.Int64N(info.Size())
	if _, err := file.ReadAt(one[:], at); err != nil {
		if errors.Is(err, io.EOF) {
			return 0, nil // it was cut off meanwhile
		}
		return 0, err
	}
	one[0] ^= 1 << random.IntN(8)
	_, err = file.WriteAt(one[:], at)
	return 1, err
}
