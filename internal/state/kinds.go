package state

import (
	"encoding/binary"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Kind is a kind of stored object: the name of its field in statev1.Object. kinds_gen.go has one constant, one table and
// the getters of each kind, generated from state.proto.
type Kind string

// Names of the indexes. Every table has an index by uid, and tables of named kinds have one by name.
const (
	indexUID      = "uid"
	indexName     = "name"
	indexWorkload = "workload"
	indexNode     = "node"
	indexNumber   = "number"
	indexService  = "service"

	indexAddressV4 = "address_v4"
	indexAddressV6 = "address_v6"
	indexSelector  = "selector"
	indexMeshKey   = "mesh_key"
	indexSecret    = "secret"
	indexKeyID     = "key_id"
)

// table says how the objects of one kind are kept, as the options in state.proto declare it.
type table struct {
	kind Kind
	// named objects have a name that no other object of the kind has in the same namespace.
	named bool
	// single means that there is at most one.
	single bool
}

// keyFunc appends an object's key in one index to a buffer.
type keyFunc func([]byte, Object) []byte

// indexes are those of each kind beyond uid and name, by the names of the indexes.
var indexes = map[Kind]map[string]keyFunc{
	KindRevision: {
		indexWorkload: by(func(key []byte, r *v1.Revision) []byte {
			return binary.BigEndian.AppendUint64(appendID(key, r.GetSpec().GetWorkloadUid()), r.GetSpec().GetNumber())
		}),
	},
	KindReplica: {
		indexWorkload: by(func(key []byte, r *v1.Replica) []byte {
			return appendText(appendID(key, r.GetSpec().GetWorkloadUid()), r.GetMetadata().GetName())
		}),
		indexNode: by(func(key []byte, r *v1.Replica) []byte {
			key = appendText(appendID(key, r.GetSpec().GetNodeUid()), r.GetMetadata().GetNamespace())
			return appendText(key, r.GetMetadata().GetName())
		}),
	},
	KindDeployment: {
		indexWorkload: by(func(key []byte, d *v1.Deployment) []byte {
			return binary.BigEndian.AppendUint64(appendID(key, d.GetSpec().GetWorkloadUid()), d.GetSpec().GetNumber())
		}),
	},
	KindConfiguration: {
		indexNumber: by(func(key []byte, c *v1.Configuration) []byte {
			return binary.BigEndian.AppendUint64(key, c.GetSpec().GetNumber())
		}),
	},
	KindNode: {
		indexMeshKey: by(func(key []byte, n *v1.Node) []byte { return appendText(key, n.GetStatus().GetMesh().GetKey()) }),
	},
	KindService: serviceIndexes,
	KindSecretValue: {
		indexSecret: by(func(key []byte, v *statev1.SecretValue) []byte {
			return binary.BigEndian.AppendUint64(appendID(key, v.GetSecretUid()), v.GetVersion())
		}),
	},
	KindAccessKey: {
		indexKeyID: by(func(key []byte, k *v1.AccessKey) []byte { return appendText(key, k.GetMetadata().GetName()) }),
	},
	KindSecretReceipt: {
		indexSecret: by(func(key []byte, r *statev1.SecretReceipt) []byte {
			return appendText(appendID(key, r.GetSecretUid()), r.GetMetadata().GetUid())
		}),
	},
	KindEndpoint: {
		indexService: by(func(key []byte, e *v1.Endpoint) []byte {
			return appendText(appendID(key, e.GetSpec().GetServiceUid()), e.GetMetadata().GetName())
		}),
	},
}

// ordinals are the positions of the kinds in tables, and of their rows in a [Snapshot].
var ordinals = func() map[Kind]int {
	byKind := make(map[Kind]int, len(tables))
	for i, t := range tables {
		byKind[t.kind] = i
	}
	return byKind
}()

// by returns a keyFunc for a function that takes the kind's own type.
func by[T Object](f func([]byte, T) []byte) keyFunc {
	return func(key []byte, o Object) []byte { return f(key, o.(T)) }
}

// Kinds returns all kinds.
func Kinds() []Kind {
	all := make([]Kind, len(tables))
	for i, t := range tables {
		all[i] = t.kind
	}
	return all
}
