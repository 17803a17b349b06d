package names

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// change is what a batch of entries changes. Every operation first reads and checks, and may then be refused; from its
// first write on it must succeed. An error that is no refusal makes the whole change useless.
type change struct {
	// Batch has the rows, and finds those that were written before.
	*pebble.Batch
	meta meta
	// nodes are the numbers of all nodes.
	nodes map[uint32]bool
	// buckets and namespaces were used in this change. They are written at its end.
	buckets    map[string]*bucket
	namespaces map[string]*int64

	// Of the operation that is being applied.
	index     uint64
	operation uint32
	time      int64
}

func newChange(db *pebble.DB, m meta, nodes map[uint32]bool) *change {
	return &change{
		Batch: db.NewIndexedBatch(), meta: m, nodes: nodes,
		buckets: map[string]*bucket{}, namespaces: map[string]*int64{},
	}
}

// apply applies an entry.
func (c *change) apply(index uint64, entry *objectv1.Entry) (*objectv1.Results, error) {
	results := &objectv1.Results{Index: index}
	for i, operation := range entry.GetOperations() {
		c.index, c.operation, c.time = index, uint32(i), operation.GetTime()
		result, err := c.do(operation)
		if r, refused := errors.AsType[*refusal](err); refused {
			result, err = r.result(), nil
		}
		if err != nil {
			return nil, fmt.Errorf("operation %d: %w", i, err)
		}
		results.Results = append(results.Results, result)
	}
	c.meta.applied = index
	return results, nil
}

func (c *change) do(operation *objectv1.Operation) (*objectv1.Result, error) {
	if wrong := malformed(operation); wrong != "" {
		return nil, refuse(RefusedMalformed, "%s", wrong)
	}
	switch what := operation.GetWhat().(type) {
	case *objectv1.Operation_Put:
		return c.put(what.Put)
	case *objectv1.Operation_Delete:
		return c.delete(what.Delete)
	case *objectv1.Operation_Retag:
		return c.retag(what.Retag)
	case *objectv1.Operation_StageBlocks:
		return c.stageBlocks(what.StageBlocks)
	case *objectv1.Operation_CreateUpload:
		return c.createUpload(what.CreateUpload)
	case *objectv1.Operation_PutPart:
		return c.putPart(what.PutPart)
	case *objectv1.Operation_CompleteUpload:
		return c.completeUpload(what.CompleteUpload)
	case *objectv1.Operation_AbortUpload:
		return c.abortUpload(what.AbortUpload)
	case *objectv1.Operation_CloseBucket:
		return c.closeBucket(what.CloseBucket)
	case *objectv1.Operation_RegisterNode:
		return c.registerNode(what.RegisterNode)
	case *objectv1.Operation_ForgetNode:
		return c.forgetNode(what.ForgetNode)
	case *objectv1.Operation_Locate:
		return c.locate(what.Locate)
	case *objectv1.Operation_Release:
		return c.release(what.Release)
	case *objectv1.Operation_Forget:
		return c.forget(what.Forget)
	case *objectv1.Operation_AdvanceEpoch:
		return c.advanceEpoch(what.AdvanceEpoch)
	}
	return nil, fmt.Errorf("this release does not know %T: update this server", operation.GetWhat())
}

// commit writes everything to the store, but not to the disk.
func (c *change) commit() error {
	for uid, b := range c.buckets {
		if !b.changed {
			continue
		}
		if err := c.setMessage(key(tableBucket, uid), b.usage); err != nil {
			return err
		}
	}
	for uid, size := range c.namespaces {
		if err := c.set(key(tableNamespace, uid), binary.BigEndian.AppendUint64(nil, uint64(*size))); err != nil {
			return err
		}
	}
	if err := c.set(key(tableMeta), c.meta.encode()); err != nil {
		return err
	}
	return c.Commit(pebble.NoSync)
}

func (c *change) set(k, row []byte) error { return c.Set(k, row, nil) }
func (c *change) remove(k []byte) error   { return c.Delete(k, nil) }

func (c *change) setMessage(k []byte, m proto.Message) error {
	row, err := encoding.Marshal(m)
	if err != nil {
		return err
	}
	return c.set(k, row)
}

// setExpiry moves an expiry row from one time to another; 0 is none.
func (c *change) setExpiry(from, to int64, row func(time int64) []byte) error {
	if from == to {
		return nil
	}
	if from != 0 {
		if err := c.remove(row(from)); err != nil {
			return err
		}
	}
	if to == 0 {
		return nil
	}
	return c.set(row(to), nil)
}
