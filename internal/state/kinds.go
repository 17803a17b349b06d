package state

import (
	"encoding/binary"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Kind names one table, by the name of the kind's field in statev1.Object.
type Kind string

// The kinds of objects that are stored.
const (
	KindCluster    Kind = "cluster"
	KindNode       Kind = "node"
	KindWorkload   Kind = "workload"
	KindRevision   Kind = "revision"
	KindReplica    Kind = "replica"
	KindToken      Kind = "token"
	KindEvent      Kind = "event"
	KindAuthority  Kind = "authority"
	KindCredential Kind = "credential"
	KindReceipt    Kind = "receipt"
	KindLogin      Kind = "login"
	KindPassword   Kind = "password"
	KindServer     Kind = "server"
	KindRevocation Kind = "revocation"

	KindConfiguration Kind = "configuration"
	KindGossipKey     Kind = "gossip_key"
	KindTag           Kind = "tag"
	KindNamespace     Kind = "namespace"
	KindMark          Kind = "mark"
)

// Names of the indexes. Every table has the first one, and those of named objects have the second one.
const (
	indexUID      = "uid"
	indexName     = "name"
	indexWorkload = "workload"
	indexNode     = "node"
	indexNumber   = "number"
)

// table says how the objects of one kind are kept. A new kind is a field in statev1.Object, a constant above, a line
// in tables, its cases in wrap.go and its getters in snapshot.go.
type table struct {
	kind Kind
	// named objects must have a name and have it alone. Others are found by their uid, whatever their name is.
	named bool
	// single means that there is at most one.
	single bool
	// indexes by which its objects are found beside uid and name.
	indexes map[string]keyFunc
}

// keyFunc adds an object's key in one index to a buffer.
type keyFunc func([]byte, Object) []byte

var tables = []table{
	{kind: KindCluster, named: true, single: true},
	{kind: KindNode, named: true},
	{kind: KindWorkload, named: true},
	{kind: KindRevision, indexes: map[string]keyFunc{
		indexWorkload: by(func(key []byte, r *v1.Revision) []byte {
			return binary.BigEndian.AppendUint64(appendID(key, r.GetSpec().GetWorkloadUid()), r.GetSpec().GetNumber())
		}),
	}},
	{kind: KindReplica, named: true, indexes: map[string]keyFunc{
		indexWorkload: by(func(key []byte, r *v1.Replica) []byte {
			return appendText(appendID(key, r.GetSpec().GetWorkloadUid()), r.GetMetadata().GetName())
		}),
		indexNode: by(func(key []byte, r *v1.Replica) []byte {
			key = appendText(appendID(key, r.GetSpec().GetNodeUid()), r.GetMetadata().GetNamespace())
			return appendText(key, r.GetMetadata().GetName())
		}),
	}},
	{kind: KindToken, named: true},
	{kind: KindEvent},
	{kind: KindAuthority, single: true},
	{kind: KindCredential},
	{kind: KindReceipt, named: true},
	{kind: KindLogin, named: true},
	{kind: KindPassword},
	{kind: KindServer, named: true},
	{kind: KindRevocation},
	{kind: KindConfiguration, indexes: map[string]keyFunc{
		indexNumber: by(func(key []byte, c *v1.Configuration) []byte {
			return binary.BigEndian.AppendUint64(key, c.GetSpec().GetNumber())
		}),
	}},
	{kind: KindGossipKey, single: true},
	{kind: KindTag},
	{kind: KindNamespace, named: true},
	{kind: KindMark},
}

// ordinals are the positions of the kinds in tables.
var ordinals = func() map[Kind]int {
	byKind := make(map[Kind]int, len(tables))
	for i, t := range tables {
		byKind[t.kind] = i
	}
	return byKind
}()

// by makes a keyFunc of one for the kind's own type.
func by[T Object](f func([]byte, T) []byte) keyFunc {
	return func(key []byte, o Object) []byte { return f(key, o.(T)) }
}

// Kinds are all of them.
func Kinds() []Kind {
	all := make([]Kind, len(tables))
	for i, t := range tables {
		all[i] = t.kind
	}
	return all
}
