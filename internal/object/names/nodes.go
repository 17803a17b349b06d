package names

import (
	"encoding/binary"
	"slices"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// forgetStep is how many chunks one operation gives up, so that it does not delay others for long.
const forgetStep = 1000

func decodeNumber(row []byte) (uint32, error) {
	if len(row) != 4 {
		return 0, errDamagedRow
	}
	return binary.BigEndian.Uint32(row), nil
}

// node returns the number of a node, or 0.
func (c *change) node(uid string) (uint32, error) {
	var number uint32
	_, err := read(c, key(tableNode, uid), func(row []byte) (err error) {
		number, err = decodeNumber(row)
		return err
	})
	return number, err
}

// registerNode gives a node a number that no other node has ever had.
func (c *change) registerNode(op *objectv1.RegisterNode) (*objectv1.Result, error) {
	number, err := c.node(op.GetUid())
	if err != nil || number != 0 {
		return &objectv1.Result{Node: number}, err
	}
	number = c.meta.nextNode
	c.meta.nextNode++
	c.nodes[number] = true
	return &objectv1.Result{Node: number}, c.set(key(tableNode, op.GetUid()), binary.BigEndian.AppendUint32(nil, number))
}

// forgetNode takes a node away from some of its chunks, and removes it once it has none.
func (c *change) forgetNode(op *objectv1.ForgetNode) (*objectv1.Result, error) {
	number, err := c.node(op.GetUid())
	if err != nil || number == 0 {
		return &objectv1.Result{}, err
	}
	hashes, err := c.chunksOn(number, forgetStep+1)
	if err != nil {
		return nil, err
	}
	for _, hash := range hashes[:min(len(hashes), forgetStep)] {
		if err := c.takeFrom(number, hash); err != nil {
			return nil, err
		}
	}
	if len(hashes) > forgetStep {
		return &objectv1.Result{Refused: RefusedNotEmpty, About: op.GetUid(), Node: number}, nil
	}
	delete(c.nodes, number)
	return &objectv1.Result{Node: number}, c.remove(key(tableNode, op.GetUid()))
}

func (c *change) chunksOn(number uint32, limit int) ([]Hash, error) {
	var hashes []Hash
	prefix := onKey(number, Hash{})[:5]
	err := scan(c, prefix, after(prefix), func(k, _ []byte) (bool, error) {
		hashes = append(hashes, Hash(k[5:]))
		return len(hashes) < limit, nil
	})
	return hashes, err
}

func (c *change) takeFrom(number uint32, hash Hash) error {
	old, err := readMessage[objectv1.Chunk](c, hashKey(tableChunk, hash))
	if err != nil {
		return err
	}
	if old == nil {
		return errDamagedRow
	}
	nodes := slices.DeleteFunc(slices.Clone(old.GetNodes()), func(node uint32) bool { return node == number })
	return c.setChunk(hash, old, &objectv1.Chunk{
		Size: old.GetSize(), References: old.GetReferences(), Copies: old.GetCopies(), Nodes: nodes,
	})
}
