package objecttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/blake3"

	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/sleep"
)

// ErrGone is what calls to a node that is gone fail with.
var ErrGone = errors.New("the node does not answer")

// Faults are what is wrong with a node.
type Faults struct {
	// Gone nodes fail every call, though they are listed as connected.
	Gone bool
	// Full nodes store nothing.
	Full bool
	// Delay is how long each call takes.
	Delay time.Duration
	// Stalled calls wait until their context ends.
	Stalled bool
	// Lies is whether the node sends damaged chunks without a word.
	Lies bool
}

// Disks are nodes that keep their chunks in memory, and large ones in a file that is gone with them.
type Disks struct {
	mu      sync.Mutex
	nodes   []object.Node
	disks   map[string]*disk
	changed chan struct{}
	damage  func(string, []object.Hash)
	large   *spool
}

type disk struct {
	chunks map[object.Hash]held
	faults Faults
	gets   int
	puts   int
}

type held struct {
	data  []byte
	epoch uint64
}

// NewDisks returns nodes that are connected and have 100 GiB each. The first one is local.
func NewDisks(names ...string) *Disks {
	d := &Disks{disks: map[string]*disk{}, changed: make(chan struct{}), large: &spool{}}
	runtime.AddCleanup(d, (*spool).close, d.large)
	for i, name := range names {
		d.nodes = append(d.nodes, object.Node{
			UID: "uid-" + name, Name: name, Class: "ssd", Capacity: 200 << 30, Free: 100 << 30, Connected: true, Local: i == 0,
		})
		d.disks["uid-"+name] = &disk{chunks: map[object.Hash]held{}}
	}
	return d
}

// Change changes what is known of a node.
func (d *Disks) Change(uid string, change func(*object.Node)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nodes = slices.Clone(d.nodes)
	for i := range d.nodes {
		if d.nodes[i].UID == uid {
			change(&d.nodes[i])
		}
	}
	close(d.changed)
	d.changed = make(chan struct{})
}

// Break sets the faults of a node.
func (d *Disks) Break(uid string, f Faults) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.disks[uid].faults = f
}

// Corrupt changes a byte of a chunk, and returns whether the node has it.
func (d *Disks) Corrupt(uid string, hash object.Hash) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	h, there := d.disks[uid].chunks[hash]
	if there {
		h.data = bytes.Clone(h.data)
		h.data[len(h.data)/2] ^= 1
		d.disks[uid].chunks[hash] = h
	}
	return there
}

// Lose removes a chunk from a node.
func (d *Disks) Lose(uid string, hash object.Hash) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.disks[uid].chunks, hash)
}

// Has is whether a node has a chunk with the right bytes.
func (d *Disks) Has(uid string, hash object.Hash) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	h, there := d.disks[uid].chunks[hash]
	return there && blake3.Sum256(h.data) == hash
}

// Count returns how many chunks a node has.
func (d *Disks) Count(uid string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.disks[uid].chunks)
}

// Calls returns how many chunks a node was asked for, and how many it was asked to store.
func (d *Disks) Calls(uid string) (gets, puts int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.disks[uid].gets, d.disks[uid].puts
}

// Nodes implements object.Disks.
func (d *Disks) Nodes() []object.Node {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nodes
}

// Changed implements object.Disks.
func (d *Disks) Changed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

// begin lets a call have the faults of its node.
func (d *Disks) begin(ctx context.Context, uid string, count func(*disk)) (Faults, error) {
	d.mu.Lock()
	disk := d.disks[uid]
	if disk == nil {
		d.mu.Unlock()
		return Faults{}, fmt.Errorf("node %s: %w", uid, ErrGone)
	}
	f := disk.faults
	count(disk)
	d.mu.Unlock()
	if f.Stalled {
		<-ctx.Done()
	}
	if f.Delay > 0 {
		if err := sleep.For(ctx, f.Delay); err != nil {
			return f, err
		}
	}
	if f.Gone {
		return f, fmt.Errorf("node %s: %w", uid, ErrGone)
	}
	return f, ctx.Err()
}

func nothing(*disk) {}

// Put implements object.Disks.
func (d *Disks) Put(ctx context.Context, uid string, hash object.Hash, data []byte, epoch uint64) error {
	f, err := d.begin(ctx, uid, func(k *disk) { k.puts++ })
	if err != nil {
		return err
	}
	if f.Full {
		return fmt.Errorf("node %s: %w", uid, object.ErrDiskFull)
	}
	if blake3.Sum256(data) != hash {
		return fmt.Errorf("node %s: %w", uid, object.ErrChunkDamaged)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	chunks := d.disks[uid].chunks
	if old, there := chunks[hash]; there && bytes.Equal(old.data, data) {
		chunks[hash] = held{old.data, max(old.epoch, epoch)}
		return nil
	}
	kept, err := d.keep(hash, data)
	if err != nil {
		return fmt.Errorf("node %s: %w", uid, err)
	}
	chunks[hash] = held{kept, epoch}
	return nil
}

// keep returns a copy of a chunk, which all nodes that have it share.
func (d *Disks) keep(hash object.Hash, data []byte) ([]byte, error) {
	for _, other := range d.disks {
		if h, there := other.chunks[hash]; there && bytes.Equal(h.data, data) {
			return h.data, nil
		}
	}
	if len(data) >= largeChunk {
		return d.large.keep(data)
	}
	return bytes.Clone(data), nil
}

// Get implements object.Disks. A node that finds a damaged chunk does not have it any more.
func (d *Disks) Get(ctx context.Context, uid string, hash object.Hash, offset, length uint32, buf []byte) ([]byte, error) {
	f, err := d.begin(ctx, uid, func(k *disk) { k.gets++ })
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	h, there := d.disks[uid].chunks[hash]
	if !there {
		return nil, fmt.Errorf("node %s: %w", uid, object.ErrChunkMissing)
	}
	if !f.Lies && blake3.Sum256(h.data) != hash {
		delete(d.disks[uid].chunks, hash)
		return nil, fmt.Errorf("node %s: %w", uid, object.ErrChunkDamaged)
	}
	if length == 0 {
		length = uint32(len(h.data)) - offset
	}
	return append(buf, h.data[offset:offset+length]...), nil
}

// Fetch implements object.Disks.
func (d *Disks) Fetch(ctx context.Context, uid string, chunks []object.Fetch, epoch uint64, done func(object.Hash, error)) error {
	if _, err := d.begin(ctx, uid, nothing); err != nil {
		return err
	}
	for _, c := range chunks {
		done(c.Hash, d.fetch(ctx, uid, c, epoch))
	}
	return nil
}

func (d *Disks) fetch(ctx context.Context, uid string, c object.Fetch, epoch uint64) error {
	if d.Has(uid, c.Hash) {
		d.mu.Lock()
		defer d.mu.Unlock()
		h := d.disks[uid].chunks[c.Hash]
		h.epoch = max(h.epoch, epoch)
		d.disks[uid].chunks[c.Hash] = h
		return nil
	}
	err := fmt.Errorf("node %s: %w", uid, object.ErrChunkMissing)
	for _, from := range c.Nodes {
		var data []byte
		if data, err = d.Get(ctx, from, c.Hash, 0, 0, nil); err == nil {
			return d.Put(ctx, uid, c.Hash, data, epoch)
		}
	}
	return err
}

// Delete implements object.Disks.
func (d *Disks) Delete(ctx context.Context, uid string, hashes []object.Hash, epoch uint64) ([]object.Hash, error) {
	if _, err := d.begin(ctx, uid, nothing); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var deleted []object.Hash
	for _, hash := range hashes {
		if h, there := d.disks[uid].chunks[hash]; there && h.epoch > epoch {
			continue
		}
		delete(d.disks[uid].chunks, hash)
		deleted = append(deleted, hash)
	}
	return deleted, nil
}

// List implements object.Disks.
func (d *Disks) List(ctx context.Context, uid string, after object.Hash, limit int) ([]object.Held, bool, error) {
	if _, err := d.begin(ctx, uid, nothing); err != nil {
		return nil, false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	chunks := d.disks[uid].chunks
	hashes := slices.SortedFunc(maps.Keys(chunks), func(a, b object.Hash) int { return bytes.Compare(a[:], b[:]) })
	var page []object.Held
	for _, hash := range hashes {
		if bytes.Compare(hash[:], after[:]) <= 0 {
			continue
		}
		if len(page) == limit {
			return page, false, nil
		}
		page = append(page, object.Held{Hash: hash, Epoch: chunks[hash].epoch})
	}
	return page, true, nil
}

// Scrub implements object.Disks.
func (d *Disks) Scrub(ctx context.Context, uid string, _ int64, progress func(checked, total, damaged int64)) error {
	if _, err := d.begin(ctx, uid, nothing); err != nil {
		return err
	}
	d.mu.Lock()
	var bad []object.Hash
	total := int64(len(d.disks[uid].chunks))
	for hash, h := range d.disks[uid].chunks {
		if blake3.Sum256(h.data) != hash {
			bad = append(bad, hash)
			delete(d.disks[uid].chunks, hash)
		}
	}
	report := d.damage
	d.mu.Unlock()
	progress(total, total, int64(len(bad)))
	if report != nil && len(bad) > 0 {
		report(uid, bad)
	}
	return nil
}

// OnDamage implements object.Disks.
func (d *Disks) OnDamage(f func(node string, hashes []object.Hash)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.damage = f
}
