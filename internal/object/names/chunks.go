package names

import (
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// reference is a chunk that an operation is about to refer to.
type reference struct {
	hash Hash
	// count is how many blocks of the operation have the chunk.
	count uint64
	// old is the chunk's row before, and row the one that it gets.
	old, row *objectv1.Chunk
	// dead is whether nothing referred to the chunk.
	dead bool
}

// counted are the different chunks of blocks, in the order of their first block.
func counted(blocks []*objectv1.Block) []reference {
	if len(blocks) == 1 {
		return []reference{{hash: Hash(blocks[0].GetHash()), count: 1}}
	}
	references := make([]reference, 0, len(blocks))
	at := make(map[Hash]int, len(blocks))
	for _, block := range blocks {
		hash := Hash(block.GetHash())
		i, known := at[hash]
		if !known {
			i = len(references)
			at[hash] = i
			references = append(references, reference{hash: hash})
		}
		references[i].count++
	}
	return references
}

// prepare returns the references of an operation to its chunks, and writes nothing yet.
func (c *change) prepare(
	target *objectv1.Target, blocks []*objectv1.Block, chunks []*objectv1.StoredChunk, epoch uint64,
) ([]reference, error) {
	if len(blocks) == 0 {
		return nil, nil
	}
	if epoch+1 < c.meta.epoch {
		return nil, refuse(RefusedEpoch, "%d is before %d", epoch, c.meta.epoch-1)
	}
	acknowledged := make(map[Hash]*objectv1.StoredChunk, len(chunks))
	for _, chunk := range chunks {
		acknowledged[Hash(chunk.GetHash())] = chunk
	}
	references := counted(blocks)
	for i := range references {
		if err := c.prepareChunk(&references[i], acknowledged[references[i].hash], max(1, target.GetCopies())); err != nil {
			return nil, err
		}
	}
	return references, nil
}

func (c *change) prepareChunk(r *reference, stored *objectv1.StoredChunk, copies uint32) error {
	var err error
	if r.old, err = readMessage[objectv1.Chunk](c, hashKey(tableChunk, r.hash)); err != nil {
		return err
	}
	r.row = &objectv1.Chunk{Size: stored.GetSize()}
	if r.old != nil {
		r.row.Size, r.row.References, r.row.Nodes = r.old.GetSize(), r.old.GetReferences(), r.old.GetNodes()
	} else if err := c.prepareDead(r); err != nil {
		return err
	}
	r.row.References += r.count
	r.row.Copies = max(copies, r.old.GetCopies())
	r.row.Nodes = c.merge(r.row.GetNodes(), stored.GetNodes())
	if r.old == nil && len(r.row.GetNodes()) == 0 {
		return refuse(RefusedEpoch, "no node has the chunk %x", r.hash)
	}
	return nil
}

// prepareDead takes the nodes of a dead chunk over, unless a collection may already be deleting it from them.
func (c *change) prepareDead(r *reference) error {
	dead, err := readMessage[objectv1.DeadChunk](c, hashKey(tableDead, r.hash))
	if err != nil || dead == nil {
		return err
	}
	r.dead = true
	if dead.GetEpoch()+1 >= c.meta.epoch {
		r.row.Size, r.row.Nodes = dead.GetSize(), c.merge(nil, dead.GetNodes())
	}
	return nil
}

// merge returns nodes with others among them. Numbers of nodes that are not in the cluster are left out.
func (c *change) merge(nodes, others []uint32) []uint32 {
	merged := slices.Clone(nodes)
	for _, node := range others {
		if at, found := slices.BinarySearch(merged, node); !found && c.nodes[node] {
			merged = slices.Insert(merged, at, node)
		}
	}
	return merged
}

// refer writes what prepare has returned.
func (c *change) refer(references []reference) error {
	for _, r := range references {
		if r.dead {
			c.meta.totals.Dead--
			if err := c.remove(hashKey(tableDead, r.hash)); err != nil {
				return err
			}
		}
		if err := c.setChunk(r.hash, r.old, r.row); err != nil {
			return err
		}
	}
	return nil
}

// dereference gives up a reference of each block. Chunks that nothing refers to any more are dead.
func (c *change) dereference(blocks []*objectv1.Block) error {
	for _, r := range counted(blocks) {
		old, err := readMessage[objectv1.Chunk](c, hashKey(tableChunk, r.hash))
		if err != nil {
			return err
		}
		if old.GetReferences() < r.count {
			return fmt.Errorf("chunk %x has %d references and not %d: restore this server's copy from another server",
				r.hash, old.GetReferences(), r.count)
		}
		if old.GetReferences() == r.count {
			err = c.kill(r.hash, old)
		} else {
			err = c.setChunk(r.hash, old, &objectv1.Chunk{
				Size: old.GetSize(), References: old.GetReferences() - r.count, Copies: old.GetCopies(), Nodes: old.GetNodes(),
			})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *change) kill(hash Hash, old *objectv1.Chunk) error {
	if err := c.setChunk(hash, old, nil); err != nil {
		return err
	}
	c.meta.totals.Dead++
	return c.setMessage(hashKey(tableDead, hash), &objectv1.DeadChunk{
		Size: old.GetSize(), Nodes: old.GetNodes(), Epoch: c.meta.epoch,
	})
}

// setChunk is the only writer of chunks, so that the tables about them always agree. A chunk that is nil does not exist.
func (c *change) setChunk(hash Hash, from, to *objectv1.Chunk) error {
	if err := c.setOn(hash, from.GetNodes(), to.GetNodes()); err != nil {
		return err
	}
	if err := c.setShort(hash, isShort(from), isShort(to)); err != nil {
		return err
	}
	if from != nil {
		c.meta.totals.Chunks--
		c.meta.totals.ChunkBytes -= int64(from.GetSize())
	}
	if to == nil {
		return c.remove(hashKey(tableChunk, hash))
	}
	c.meta.totals.Chunks++
	c.meta.totals.ChunkBytes += int64(to.GetSize())
	return c.setMessage(hashKey(tableChunk, hash), to)
}

func isShort(chunk *objectv1.Chunk) bool {
	return chunk.GetReferences() > 0 && len(chunk.GetNodes()) < int(chunk.GetCopies())
}

func (c *change) setOn(hash Hash, from, to []uint32) error {
	for _, node := range from {
		if !slices.Contains(to, node) {
			if err := c.remove(onKey(node, hash)); err != nil {
				return err
			}
		}
	}
	for _, node := range to {
		if !slices.Contains(from, node) {
			if err := c.set(onKey(node, hash), nil); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *change) setShort(hash Hash, from, to bool) error {
	switch {
	case to && !from:
		c.meta.totals.Short++
		return c.set(hashKey(tableShort, hash), nil)
	case from && !to:
		c.meta.totals.Short--
		return c.remove(hashKey(tableShort, hash))
	}
	return nil
}

// locate adds nodes to chunks and removes nodes from them.
func (c *change) locate(op *objectv1.Locate) (*objectv1.Result, error) {
	for _, located := range op.GetChunks() {
		hash := Hash(located.GetHash())
		old, err := readMessage[objectv1.Chunk](c, hashKey(tableChunk, hash))
		if err != nil {
			return nil, err
		}
		if old == nil {
			continue
		}
		nodes := c.merge(old.GetNodes(), located.GetAdd())
		left := slices.DeleteFunc(slices.Clone(nodes), func(node uint32) bool { return slices.Contains(located.GetRemove(), node) })
		if len(left) >= int(located.GetLeast()) {
			nodes = left
		}
		if slices.Equal(nodes, old.GetNodes()) {
			continue
		}
		if err := c.setChunk(hash, old, &objectv1.Chunk{
			Size: old.GetSize(), References: old.GetReferences(), Copies: old.GetCopies(), Nodes: nodes,
		}); err != nil {
			return nil, err
		}
	}
	return &objectv1.Result{}, nil
}

// forget removes dead chunks.
func (c *change) forget(op *objectv1.Forget) (*objectv1.Result, error) {
	for _, hash := range op.GetHashes() {
		k := hashKey(tableDead, Hash(hash))
		dead, err := readMessage[objectv1.DeadChunk](c, k)
		if err != nil {
			return nil, err
		}
		if dead == nil || dead.GetEpoch() > op.GetEpoch() {
			continue
		}
		c.meta.totals.Dead--
		if err := c.remove(k); err != nil {
			return nil, err
		}
	}
	return &objectv1.Result{}, nil
}

func (c *change) advanceEpoch(op *objectv1.AdvanceEpoch) (*objectv1.Result, error) {
	if op.GetFrom() != c.meta.epoch {
		return nil, refuse(RefusedStale, "the epoch is %d", c.meta.epoch)
	}
	c.meta.epoch++
	return &objectv1.Result{}, nil
}

// loadNodes returns the numbers of all nodes by their uids.
func loadNodes(r pebble.Reader) (map[string]uint32, error) {
	nodes := map[string]uint32{}
	err := scan(r, key(tableNode), key(tableNode+1), func(k, row []byte) (bool, error) {
		number, err := decodeNumber(row)
		nodes[string(k[1:])] = number
		return true, err
	})
	return nodes, err
}
