package names

import (
	"crypto/sha256"
	"encoding/binary"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// stageBlocks stores a list that nothing has adopted yet.
func (c *change) stageBlocks(op *objectv1.StageBlocks) (*objectv1.Result, error) {
	if _, err := c.open(op.GetTarget()); err != nil {
		return nil, err
	}
	before, err := c.staged(op.GetList())
	if err != nil {
		return nil, err
	}
	if before == nil {
		if err := c.refuseUsed(op.GetList()); err != nil {
			return nil, err
		}
	}
	there, err := has(c, listKey(op.GetList(), op.GetNumber()))
	if err != nil {
		return nil, err
	}
	if there {
		return &objectv1.Result{}, nil // proposed twice
	}
	content, err := c.prepare(op.GetTarget(), op.GetBlocks(), op.GetChunks(), op.GetEpoch())
	if err != nil {
		return nil, err
	}
	if err := c.refer(content); err != nil {
		return nil, err
	}
	if err := c.setList(op.GetList(), op.GetNumber(), op.GetBlocks()); err != nil {
		return nil, err
	}
	return &objectv1.Result{}, c.addStaged(op, before)
}

// refuseUsed refuses to stage more of a list that was adopted or has expired.
func (c *change) refuseUsed(list []byte) error {
	prefix, used := key(tableList, string(list)), false
	err := scan(c, prefix, after(prefix), func(_, _ []byte) (bool, error) {
		used = true
		return false, nil
	})
	if err == nil && used {
		err = refuse(RefusedStale, "list %x was adopted or has expired", list)
	}
	return err
}

func (c *change) addStaged(op *objectv1.StageBlocks, before *staged) error {
	now, from := staged{}, int64(0)
	if before != nil {
		now, from = *before, before.expires
	}
	now.count++
	now.last = max(now.last, op.GetNumber())
	now.expires = max(now.expires, op.GetExpireTime())
	if err := c.setExpiry(from, now.expires, listExpiry(op.GetList())); err != nil {
		return err
	}
	return c.set(key(tableStaged, string(op.GetList())), now.encode())
}

func listExpiry(list []byte) func(int64) []byte {
	return func(time int64) []byte { return listExpiryKey(time, list) }
}

func (c *change) setList(list []byte, number uint32, blocks []*objectv1.Block) error {
	row, err := encodeList(&objectv1.BlockList{Blocks: blocks})
	if err != nil {
		return err
	}
	return c.set(listKey(list, number), row)
}

// staged returns what is known of a list that nothing has adopted, or nil.
func (c *change) staged(list []byte) (*staged, error) {
	s := new(staged)
	found, err := read(c, key(tableStaged, string(list)), s.decode)
	if err != nil || !found {
		return nil, err
	}
	return s, nil
}

// adoption is a staged list that a version or part is about to adopt.
type adoption struct {
	list []byte
	*staged
}

// prepareSegments returns the lists of segments, all of which must be staged, and writes nothing yet.
func (c *change) prepareSegments(segments []*objectv1.Segment) ([]adoption, error) {
	var lists []adoption
	seen := map[string]bool{}
	for _, segment := range segments {
		s, err := c.staged(segment.GetList())
		if err != nil {
			return nil, err
		}
		complete := s != nil && s.count == segment.GetLists() && s.last == segment.GetLists()-1
		if !complete || seen[string(segment.GetList())] {
			return nil, refuse(RefusedStale, "list %x is not staged", segment.GetList())
		}
		seen[string(segment.GetList())] = true
		lists = append(lists, adoption{list: segment.GetList(), staged: s})
	}
	return lists, nil
}

// adopt writes what prepareSegments has returned: the lists do not expire any more.
func (c *change) adopt(lists []adoption) error {
	for _, a := range lists {
		if err := c.unstage(a.list, a.staged); err != nil {
			return err
		}
	}
	return nil
}

func (c *change) unstage(list []byte, s *staged) error {
	if err := c.setExpiry(s.expires, 0, listExpiry(list)); err != nil {
		return err
	}
	return c.remove(key(tableStaged, string(list)))
}

// unreference gives up lists. Their blocks are given up later, by release.
func (c *change) unreference(segments []*objectv1.Segment) error {
	for _, segment := range segments {
		for number := range segment.GetLists() {
			if err := c.set(unreferencedKey(segment.GetList(), number), nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// release gives up the references of lists that nothing refers to. The first one of a staged list that has expired
// gives up the whole list.
func (c *change) release(op *objectv1.Release) (*objectv1.Result, error) {
	for _, released := range op.GetLists() {
		if err := c.expireStaged(released.GetList()); err != nil {
			return nil, err
		}
		if err := c.releaseList(released.GetList(), released.GetNumber()); err != nil {
			return nil, err
		}
	}
	return &objectv1.Result{}, nil
}

func (c *change) expireStaged(list []byte) error {
	s, err := c.staged(list)
	if err != nil || s == nil || !c.passed(s.expires) {
		return err
	}
	prefix := key(tableList, string(list))
	var numbers []uint32
	err = scan(c, prefix, after(prefix), func(k, _ []byte) (bool, error) {
		numbers = append(numbers, binary.BigEndian.Uint32(k[1+idSize:]))
		return true, nil
	})
	if err != nil {
		return err
	}
	for _, number := range numbers {
		if err := c.set(unreferencedKey(list, number), nil); err != nil {
			return err
		}
	}
	return c.unstage(list, s)
}

func (c *change) releaseList(list []byte, number uint32) error {
	there, err := has(c, unreferencedKey(list, number))
	if err != nil || !there {
		return err
	}
	var blocks *objectv1.BlockList
	there, err = read(c, listKey(list, number), func(row []byte) (err error) {
		blocks, err = decodeList(row)
		return err
	})
	if err != nil {
		return err
	}
	if !there {
		return errDamagedRow
	}
	if err := c.dereference(blocks.GetBlocks()); err != nil {
		return err
	}
	if err := c.remove(listKey(list, number)); err != nil {
		return err
	}
	return c.remove(unreferencedKey(list, number))
}

// listBlocks stores the blocks of a small part as a list of their own, because only lists can be adopted or given up
// without touching their blocks.
func (c *change) listBlocks(upload []byte, part *objectv1.Part) (*objectv1.Segment, error) {
	list := newList(upload, part.GetNumber(), c.index, c.operation)
	return &objectv1.Segment{List: list, Lists: 1, Size: part.GetSize()}, c.setList(list, 0, part.GetBlocks())
}

// newList is the id of a list that an operation makes of a part. No other operation makes one with this id.
func newList(upload []byte, part uint32, index uint64, operation uint32) []byte {
	seed := binary.BigEndian.AppendUint32(append(make([]byte, 0, 32), upload...), part)
	seed = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(seed, index), operation)
	id := sha256.Sum256(seed)
	return id[:idSize]
}
