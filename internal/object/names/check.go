package names

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

const (
	maxKey  = 1024
	maxUID  = 255
	maxSize = 1 << 48
	maxPart = 10_000
	// nonceSize is that of the nonce of an encrypted block.
	nonceSize = 16
	// maxBlocks is how many blocks one row may have.
	maxBlocks = 1024
)

// decodeEntry returns an entry that this release understands completely.
func decodeEntry(data []byte) (*objectv1.Entry, error) {
	entry := new(objectv1.Entry)
	if err := proto.Unmarshal(data, entry); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	return entry, Validate(entry)
}

// InvalidError says why an entry must not be proposed: no server could apply it.
type InvalidError struct{ reason string }

// Error implements error.
func (e *InvalidError) Error() string { return e.reason }

// Validate returns an InvalidError unless this release understands an entry completely.
func Validate(entry *objectv1.Entry) error {
	if hasUnknown(entry.ProtoReflect()) {
		return &InvalidError{"it has fields that this release does not know: update this server"}
	}
	for i, operation := range entry.GetOperations() {
		if operation.GetWhat() == nil {
			return &InvalidError{fmt.Sprintf("its operation %d says nothing", i)}
		}
	}
	return nil
}

// hasUnknown reports whether a message has fields that this release does not know. Ignoring them would let the servers'
// copies diverge.
func hasUnknown(m protoreflect.Message) bool {
	unknown := len(m.GetUnknown()) > 0
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case unknown || field.IsMap() || field.Message() == nil: // no map here has messages
		case field.IsList():
			for i := range value.List().Len() {
				unknown = unknown || hasUnknown(value.List().Get(i).Message())
			}
		default:
			unknown = hasUnknown(value.Message())
		}
		return !unknown
	})
	return unknown
}

// checks collects what is wrong with the form of an operation.
type checks struct{ wrong string }

func (c *checks) must(ok bool, wrong string) {
	if !ok && c.wrong == "" {
		c.wrong = wrong
	}
}

func (c *checks) target(t *objectv1.Target) {
	c.must(len(t.GetBucket()) > 0 && len(t.GetBucket()) <= maxUID, "bucket")
	c.must(len(t.GetNamespace()) <= maxUID, "namespace")
	c.must(t.GetQuota() >= 0 && t.GetNamespaceQuota() >= 0, "quota")
	switch t.GetVersioning() {
	case "", versioningEnabled, versioningSuspended:
	default:
		c.must(false, "versioning")
	}
}

func (c *checks) key(key string) { c.must(len(key) > 0 && len(key) <= maxKey, "key") }

func (c *checks) id(id []byte, name string) { c.must(len(id) == idSize, name) }

func (c *checks) size(size int64)    { c.must(size >= 0 && size <= maxSize, "size") }
func (c *checks) expireTime(t int64) { c.must(t >= 0, "expire_time") }
func (c *checks) hash(hash []byte)   { c.must(len(hash) == hashSize, "hash") }
func (c *checks) anyVersion(id []byte) {
	c.must(len(id) == 0 || len(id) == idSize || string(id) == nullID, "version")
}

func (c *checks) content(blocks []*objectv1.Block, segments []*objectv1.Segment, chunks []*objectv1.StoredChunk) {
	c.must(len(blocks) <= maxBlocks, "blocks")
	c.must(len(blocks) == 0 || len(segments) == 0, "blocks and segments")
	for _, block := range blocks {
		c.hash(block.GetHash())
		c.must(len(block.GetNonce()) == 0 || len(block.GetNonce()) == nonceSize, "nonce")
	}
	for _, chunk := range chunks {
		c.hash(chunk.GetHash())
	}
	for _, segment := range segments {
		c.id(segment.GetList(), "segment")
		c.must(segment.GetLists() > 0, "segment")
		c.size(segment.GetSize())
	}
}

// malformed returns which field of an operation has a wrong form, or nothing. The rest of the package relies on it.
func malformed(operation *objectv1.Operation) string {
	c := new(checks)
	c.must(operation.GetTime() >= 0, "time")
	switch what := operation.GetWhat().(type) {
	case *objectv1.Operation_Put:
		c.put(what.Put)
	case *objectv1.Operation_Delete:
		c.delete(what.Delete)
	case *objectv1.Operation_Retag:
		c.target(what.Retag.GetTarget())
		c.key(what.Retag.GetKey())
		c.anyVersion(what.Retag.GetVersion())
	case *objectv1.Operation_StageBlocks:
		c.stageBlocks(what.StageBlocks)
	case *objectv1.Operation_CreateUpload:
		c.createUpload(what.CreateUpload)
	case *objectv1.Operation_PutPart:
		c.putPart(what.PutPart)
	case *objectv1.Operation_CompleteUpload:
		c.completeUpload(what.CompleteUpload)
	case *objectv1.Operation_AbortUpload:
		c.target(what.AbortUpload.GetTarget())
		c.key(what.AbortUpload.GetKey())
		c.id(what.AbortUpload.GetUpload(), "upload")
	case *objectv1.Operation_CloseBucket:
		c.target(what.CloseBucket.GetTarget())
	case *objectv1.Operation_RegisterNode:
		c.must(what.RegisterNode.GetUid() != "" && len(what.RegisterNode.GetUid()) <= maxUID, "uid")
	case *objectv1.Operation_Locate:
		for _, located := range what.Locate.GetChunks() {
			c.hash(located.GetHash())
		}
	case *objectv1.Operation_Release:
		for _, list := range what.Release.GetLists() {
			c.id(list.GetList(), "list")
		}
	case *objectv1.Operation_Forget:
		for _, hash := range what.Forget.GetHashes() {
			c.hash(hash)
		}
	}
	return c.wrong
}

func (c *checks) put(put *objectv1.Put) {
	version := put.GetVersion()
	c.target(put.GetTarget())
	c.key(put.GetKey())
	c.id(version.GetId(), "version")
	c.size(version.GetSize())
	c.expireTime(version.GetExpireTime())
	c.must(!version.GetDeleteMarker(), "delete_marker")
	c.content(version.GetBlocks(), version.GetSegments(), put.GetChunks())
}

func (c *checks) delete(del *objectv1.Delete) {
	c.target(del.GetTarget())
	c.key(del.GetKey())
	c.anyVersion(del.GetVersion())
	c.must(len(del.GetMarker()) == 0 || len(del.GetMarker()) == idSize, "marker")
}

func (c *checks) stageBlocks(stage *objectv1.StageBlocks) {
	c.target(stage.GetTarget())
	c.id(stage.GetList(), "list")
	c.must(len(stage.GetBlocks()) > 0, "blocks")
	c.must(stage.GetExpireTime() > 0, "expire_time")
	c.content(stage.GetBlocks(), nil, stage.GetChunks())
}

func (c *checks) createUpload(create *objectv1.CreateUpload) {
	c.target(create.GetTarget())
	c.key(create.GetUpload().GetKey())
	c.id(create.GetUpload().GetId(), "upload")
	c.expireTime(create.GetUpload().GetExpireTime())
}

func (c *checks) putPart(put *objectv1.PutPart) {
	part := put.GetPart()
	c.target(put.GetTarget())
	c.key(put.GetKey())
	c.id(put.GetUpload(), "upload")
	c.must(part.GetNumber() > 0 && part.GetNumber() <= maxPart, "part")
	c.size(part.GetSize())
	c.content(part.GetBlocks(), segmentsOf(part), put.GetChunks())
}

func (c *checks) completeUpload(complete *objectv1.CompleteUpload) {
	version := complete.GetVersion()
	c.target(complete.GetTarget())
	c.key(complete.GetKey())
	c.id(complete.GetUpload(), "upload")
	c.id(version.GetId(), "version")
	c.expireTime(version.GetExpireTime())
	c.must(!version.GetDeleteMarker(), "delete_marker")
}

// segmentsOf returns the segment of a part, if it has one.
func segmentsOf(part *objectv1.Part) []*objectv1.Segment {
	if part.GetSegment() == nil {
		return nil
	}
	return []*objectv1.Segment{part.GetSegment()}
}
