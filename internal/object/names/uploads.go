package names

import (
	"bytes"
	"math"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// createUpload begins an upload.
func (c *change) createUpload(op *objectv1.CreateUpload) (*objectv1.Result, error) {
	b, err := c.open(op.GetTarget())
	if err != nil {
		return nil, err
	}
	upload := op.GetUpload()
	k := uploadKey(b.uid, upload.GetKey(), upload.GetId())
	if there, err := has(c, k); err != nil || there {
		return &objectv1.Result{}, err // proposed twice
	}
	b.countUploads(1, 0)
	if err := c.setExpiry(0, upload.GetExpireTime(), uploadExpiry(b, upload)); err != nil {
		return nil, err
	}
	return &objectv1.Result{}, c.setMessage(k, upload)
}

func uploadExpiry(b *bucket, upload *objectv1.Upload) func(int64) []byte {
	return func(time int64) []byte { return uploadExpiryKey(b.uid, upload.GetKey(), time, upload.GetId()) }
}

// upload returns an upload, or refuses the operation.
func (c *change) upload(b *bucket, object string, id []byte) (*objectv1.Upload, error) {
	upload, err := readMessage[objectv1.Upload](c, uploadKey(b.uid, object, id))
	if err == nil && upload == nil {
		return nil, refuse(RefusedNoUpload, "%x", id)
	}
	return upload, err
}

// putPart stores a part, in place of an earlier one with its number.
func (c *change) putPart(op *objectv1.PutPart) (*objectv1.Result, error) {
	b, err := c.open(op.GetTarget())
	if err != nil {
		return nil, err
	}
	if _, err := c.upload(b, op.GetKey(), op.GetUpload()); err != nil {
		return nil, err
	}
	part := op.GetPart()
	k := partKey(op.GetUpload(), part.GetNumber())
	before, err := readMessage[objectv1.Part](c, k)
	if err != nil {
		return nil, err
	}
	if sameList(before, part) {
		return &objectv1.Result{}, nil // proposed twice
	}
	content, err := c.prepare(op.GetTarget(), part.GetBlocks(), op.GetChunks(), op.GetEpoch())
	if err != nil {
		return nil, err
	}
	lists, err := c.prepareSegments(segmentsOf(part))
	if err != nil {
		return nil, err
	}
	more := part.GetSize() - before.GetSize()
	if err := b.admit(op.GetTarget(), more); err != nil {
		return nil, err
	}
	if err := c.refer(content); err != nil {
		return nil, err
	}
	if err := c.adopt(lists); err != nil {
		return nil, err
	}
	b.countUploads(0, more)
	if err := c.dereference(before.GetBlocks()); err != nil {
		return nil, err
	}
	if err := c.unreference(segmentsOf(before)); err != nil {
		return nil, err
	}
	return &objectv1.Result{}, c.setMessage(k, part)
}

func sameList(before, part *objectv1.Part) bool {
	return part.GetSegment() != nil && bytes.Equal(before.GetSegment().GetList(), part.GetSegment().GetList())
}

// completeUpload makes an object of the parts of an upload.
func (c *change) completeUpload(op *objectv1.CompleteUpload) (*objectv1.Result, error) {
	o, err := c.object(op.GetTarget(), op.GetKey())
	if err != nil {
		return nil, err
	}
	if done, err := c.find(o, string(op.GetVersion().GetId())); err != nil || done != nil {
		return found(done), err // proposed twice
	}
	upload, err := c.upload(o.bucket, op.GetKey(), op.GetUpload())
	if err != nil {
		return nil, err
	}
	parts, err := partsOf(c, op.GetUpload())
	if err != nil {
		return nil, err
	}
	chosen, others, err := choose(op, parts)
	if err != nil {
		return nil, err
	}
	if err := o.meets(op.GetCondition()); err != nil {
		return nil, err
	}
	version := op.GetVersion()
	version.Size, version.Blocks, version.Segments = total(chosen), nil, nil
	c.stamp(op.GetTarget(), version)
	replaced, err := c.replacedBy(o, version)
	if err != nil {
		return nil, err
	}
	// No quota is checked: the parts are counted already.
	for _, part := range chosen {
		segment, err := c.segment(op.GetUpload(), part)
		if err != nil {
			return nil, err
		}
		segment.Part, segment.Checksum = part.GetNumber(), part.GetChecksum()
		version.Segments = append(version.Segments, segment)
	}
	if err := c.dropParts(op.GetUpload(), others); err != nil {
		return nil, err
	}
	if err := c.removeUpload(o.bucket, upload, parts); err != nil {
		return nil, err
	}
	return c.push(o, version, replaced)
}

// choose returns the parts that an object is made of, and the others.
func choose(op *objectv1.CompleteUpload, parts []*objectv1.Part) (chosen, others []*objectv1.Part, err error) {
	wanted := op.GetParts()
	if len(wanted) == 0 {
		return nil, nil, refuse(RefusedBadPart, "none")
	}
	for _, part := range parts { // both are in ascending order
		if len(chosen) == len(wanted) || wanted[len(chosen)].GetNumber() != part.GetNumber() {
			others = append(others, part)
			continue
		}
		if want := wanted[len(chosen)]; !matches(want, part) {
			return nil, nil, refuse(RefusedBadPart, "%d", want.GetNumber())
		}
		chosen = append(chosen, part)
	}
	if len(chosen) < len(wanted) {
		return nil, nil, refuse(RefusedBadPart, "%d", wanted[len(chosen)].GetNumber())
	}
	for _, part := range chosen[:len(chosen)-1] {
		if part.GetSize() < op.GetLeast() {
			return nil, nil, refuse(RefusedSmallPart, "%d", part.GetNumber())
		}
	}
	return chosen, others, nil
}

func matches(want *objectv1.CompletedPart, part *objectv1.Part) bool {
	if want.GetEtag() != part.GetEtag() {
		return false
	}
	checksum := want.GetChecksum()
	return checksum.GetValue() == "" ||
		checksum.GetValue() == part.GetChecksum().GetValue() &&
			(checksum.GetAlgorithm() == "" || checksum.GetAlgorithm() == part.GetChecksum().GetAlgorithm())
}

func total(parts []*objectv1.Part) int64 {
	var size int64
	for _, part := range parts {
		size += part.GetSize()
	}
	return size
}

// segment returns the blocks of a part as a segment, without touching them.
func (c *change) segment(upload []byte, part *objectv1.Part) (*objectv1.Segment, error) {
	if part.GetSegment() == nil {
		return c.listBlocks(upload, part)
	}
	segment := proto.CloneOf(part.GetSegment())
	segment.Size = part.GetSize()
	return segment, nil
}

// dropParts gives up the blocks of parts.
func (c *change) dropParts(upload []byte, parts []*objectv1.Part) error {
	for _, part := range parts {
		segment, err := c.segment(upload, part)
		if err != nil {
			return err
		}
		if err := c.unreference([]*objectv1.Segment{segment}); err != nil {
			return err
		}
	}
	return nil
}

// removeUpload removes the rows of an upload and of all of its parts.
func (c *change) removeUpload(b *bucket, upload *objectv1.Upload, parts []*objectv1.Part) error {
	for _, part := range parts {
		if err := c.remove(partKey(upload.GetId(), part.GetNumber())); err != nil {
			return err
		}
	}
	b.countUploads(-1, -total(parts))
	if err := c.setExpiry(upload.GetExpireTime(), 0, uploadExpiry(b, upload)); err != nil {
		return err
	}
	return c.remove(uploadKey(b.uid, upload.GetKey(), upload.GetId()))
}

// abortUpload removes an upload and its parts.
func (c *change) abortUpload(op *objectv1.AbortUpload) (*objectv1.Result, error) {
	b, err := c.open(op.GetTarget())
	if err != nil {
		return nil, err
	}
	upload, err := c.upload(b, op.GetKey(), op.GetUpload())
	if err != nil {
		return nil, err
	}
	if op.GetExpired() && !c.passed(upload.GetExpireTime()) {
		return nil, refuse(RefusedStale, "%x", op.GetUpload())
	}
	parts, err := partsOf(c, op.GetUpload())
	if err != nil {
		return nil, err
	}
	if err := c.dropParts(op.GetUpload(), parts); err != nil {
		return nil, err
	}
	return &objectv1.Result{}, c.removeUpload(b, upload, parts)
}

// partsOf returns all parts of an upload, in the order of their numbers.
func partsOf(r pebble.Reader, upload []byte) ([]*objectv1.Part, error) {
	parts, _, err := scanParts(r, upload, 0, math.MaxInt)
	return parts, err
}

// scanParts returns the parts with numbers from a first one on.
func scanParts(r pebble.Reader, upload []byte, first uint32, limit int) (parts []*objectv1.Part, more bool, err error) {
	err = scan(r, partKey(upload, first), after(key(tablePart, string(upload))), func(_, row []byte) (bool, error) {
		if len(parts) == limit {
			more = true
			return false, nil
		}
		part := new(objectv1.Part)
		parts = append(parts, part)
		return true, decodeMessage(row, part)
	})
	return parts, more, err
}
