package names

import "encoding/binary"

// table is the first byte of a key. Numbers are big-endian, so that keys have their order. "string" ends with a
// terminator (escape.go); ids have 16 bytes and hashes 32.
//
//	table         key                                        value
//	meta                                                     meta: format, applied index, epoch, next node, totals
//	node          uid                                        number (4)
//	bucket        uid                                        BucketUsage
//	namespace     uid                                        bytes (8)
//	current       bucket string, key string                  stored: the newest version of a key
//	older         bucket string, key string, ^index, ^op     stored: the other versions, the newest first
//	position      bucket string, key string, id or "null"    index, op: where an older version is
//	upload        bucket string, key string, id              Upload
//	part          upload id, number                          Part
//	list          list id, number                            bytes (uvarint), BlockList
//	staged        list id                                    staged: a list that no version or part has adopted
//	unreferenced  list id, number                            a list whose references have to be given up
//	expiry        time, kind, what it names                  what has to be removed after a time
//	chunk         hash                                       Chunk
//	on            node, hash                                 the chunks that a node should have
//	short         hash                                       the chunks that fewer nodes have than should
//	dead          hash                                       DeadChunk
//
// A key that has an older version always has a current one. "index, op" are the log entry that made a version and the
// operation in it: they order the versions of a key.
type table byte

const (
	tableMeta table = iota + 1
	tableNode
	tableBucket
	tableNamespace
	tableCurrent
	tableOlder
	tablePosition
	tableUpload
	tablePart
	tableList
	tableStaged
	tableUnreferenced
	tableExpiry
	tableChunk
	tableOn
	tableShort
	tableDead
	tableEnd
)

// What an expiry row names.
const (
	expiresVersion = iota + 1
	expiresUpload
	expiresList
)

const (
	idSize   = 16
	hashSize = 32
	// nullID names the version that S3 calls "null".
	nullID = "null"
)

func key(t table, fields ...string) []byte {
	size := 1
	for _, field := range fields {
		size += len(field)
	}
	k := append(make([]byte, 0, size), byte(t))
	for _, field := range fields {
		k = append(k, field...)
	}
	return k
}

// objectKey is the row of an object's key, and the prefix of the rows of its versions or uploads.
func objectKey(t table, bucket, object string, room int) []byte {
	k := append(make([]byte, 0, 1+len(bucket)+len(object)+4+room), byte(t))
	return appendString(appendString(k, bucket), object)
}

// objectPrefix is the prefix of all rows of keys that begin with a prefix.
func objectPrefix(t table, bucket, prefix string) []byte {
	k := append(make([]byte, 0, 1+len(bucket)+len(prefix)+4), byte(t))
	return appendPrefix(appendString(k, bucket), prefix)
}

func currentKey(bucket, object string) []byte { return objectKey(tableCurrent, bucket, object, 0) }

func olderKey(bucket, object string, at position) []byte {
	k := objectKey(tableOlder, bucket, object, 12)
	k = binary.BigEndian.AppendUint64(k, ^at.index)
	return binary.BigEndian.AppendUint32(k, ^at.operation)
}

func positionKey(bucket, object, id string) []byte {
	return append(objectKey(tablePosition, bucket, object, len(id)), id...)
}

func uploadKey(bucket, object string, id []byte) []byte {
	return append(objectKey(tableUpload, bucket, object, len(id)), id...)
}

func partKey(upload []byte, number uint32) []byte { return numbered(tablePart, upload, number) }

func listKey(list []byte, number uint32) []byte { return numbered(tableList, list, number) }

func unreferencedKey(list []byte, number uint32) []byte {
	return numbered(tableUnreferenced, list, number)
}

func numbered(t table, id []byte, number uint32) []byte {
	k := append(make([]byte, 0, 1+len(id)+4), byte(t))
	return binary.BigEndian.AppendUint32(append(k, id...), number)
}

func hashKey(t table, hash Hash) []byte { return append([]byte{byte(t)}, hash[:]...) }

func onKey(node uint32, hash Hash) []byte {
	k := append(make([]byte, 0, 1+4+hashSize), byte(tableOn))
	return append(binary.BigEndian.AppendUint32(k, node), hash[:]...)
}

func expiryKey(time int64, kind byte, fields ...[]byte) []byte {
	k := append(make([]byte, 0, 128), byte(tableExpiry))
	k = append(binary.BigEndian.AppendUint64(k, uint64(time)), kind)
	for _, field := range fields {
		k = append(k, field...)
	}
	return k
}

func versionExpiryKey(bucket, object string, time int64, id []byte) []byte {
	return expiryKey(time, expiresVersion, appendString(nil, bucket), appendString(nil, object), id)
}

func uploadExpiryKey(bucket, object string, time int64, id []byte) []byte {
	return expiryKey(time, expiresUpload, appendString(nil, bucket), appendString(nil, object), id)
}

func listExpiryKey(time int64, list []byte) []byte { return expiryKey(time, expiresList, list) }
