package state

import (
	"iter"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Snapshot is the whole state after one transaction. It never changes and is safe for concurrent use. The objects that
// it returns must not be modified. Getters return nil if there is no such object.
//
// Lists by name are in the order of namespace and name. They cover all namespaces if namespace is empty. They begin
// after the path (see [Path]) in after, whether or not an object with that path exists, unless it is empty.
type Snapshot struct {
	rows     []rows // one for each table
	index    uint64
	position uint64 // in the feed
	counts   []int
}

// Index returns the index of the last transaction in this state.
func (s *Snapshot) Index() uint64 { return s.index }

// Count returns the number of objects of a kind.
func (s *Snapshot) Count(kind Kind) int {
	if i, known := ordinals[kind]; known {
		return s.counts[i]
	}
	return 0
}

// Generation identifies the set of all objects of a kind: if two snapshots have the same generation, they have the same
// objects of that kind. It keeps these objects in memory.
type Generation struct{ root *node }

// Generation returns the generation of a kind, which must exist.
func (s *Snapshot) Generation(kind Kind) Generation {
	return Generation{s.rows[ordinals[kind]].byUID.root}
}

// Get returns the object of a kind with this uid.
func (s *Snapshot) Get(kind Kind, uid string) Object {
	if _, known := ordinals[kind]; !known {
		return nil
	}
	return ByUID[Object](s, kind, uid)
}

// RevisionsOf lists the revisions of a workload by number.
func (s *Snapshot) RevisionsOf(workloadUID string) iter.Seq[*v1.Revision] {
	return listByPrefix[*v1.Revision](s, KindRevision, indexWorkload, appendID(nil, workloadUID))
}

// DeploymentsOf lists the deployments of a workload by number.
func (s *Snapshot) DeploymentsOf(workloadUID string) iter.Seq[*v1.Deployment] {
	return listByPrefix[*v1.Deployment](s, KindDeployment, indexWorkload, appendID(nil, workloadUID))
}

// ReplicasOf lists the replicas of a workload by name.
func (s *Snapshot) ReplicasOf(workloadUID string) iter.Seq[*v1.Replica] {
	return listByPrefix[*v1.Replica](s, KindReplica, indexWorkload, appendID(nil, workloadUID))
}

// ReplicasOn lists the replicas on a node by name, or those without a node if nodeUID is empty.
func (s *Snapshot) ReplicasOn(nodeUID string) iter.Seq[*v1.Replica] {
	return listByPrefix[*v1.Replica](s, KindReplica, indexNode, appendID(nil, nodeUID))
}

// SecretValuesOf lists the stored values of a secret by version.
func (s *Snapshot) SecretValuesOf(secretUID string) iter.Seq[*statev1.SecretValue] {
	return listByPrefix[*statev1.SecretValue](s, KindSecretValue, indexSecret, appendID(nil, secretUID))
}

// SecretReceiptsOf lists the receipts of a secret by replica.
func (s *Snapshot) SecretReceiptsOf(secretUID string) iter.Seq[*statev1.SecretReceipt] {
	return listByPrefix[*statev1.SecretReceipt](s, KindSecretReceipt, indexSecret, appendID(nil, secretUID))
}

// OldestReceipts lists the receipts from the oldest to the newest.
func (s *Snapshot) OldestReceipts() iter.Seq[*statev1.Receipt] {
	return listByPrefix[*statev1.Receipt](s, KindReceipt, indexUID, nil)
}

// ByUID returns the object of a kind with a uid, or nil. Code that knows the kind calls its getter, such as
// [Snapshot.Node].
func ByUID[T Object](s *Snapshot, kind Kind, uid string) T {
	object, _ := s.rows[ordinals[kind]].byUID.get(uid).(T)
	return object
}

// ByName returns the object of a named kind with a name, or nil.
func ByName[T Object](s *Snapshot, kind Kind, namespace, name string) T {
	object, _ := s.rows[ordinals[kind]].byName.get(nameKeyOf(namespace, name)).(T)
	return object
}

// only returns the object of a single kind.
func only[T Object](s *Snapshot, kind Kind) (object T) {
	for object = range listByPrefix[T](s, kind, indexUID, nil) {
		break
	}
	return object
}

// listByPrefix lists the objects whose keys in an index have a prefix.
func listByPrefix[T Object](s *Snapshot, kind Kind, index string, prefix []byte) iter.Seq[T] {
	return func(yield func(T) bool) {
		ordinal := ordinals[kind]
		s.rows[ordinal].tree(ordinal, index).withPrefix(string(prefix), func(o Object) bool { return yield(o.(T)) })
	}
}

// NodesWithMeshKey lists the nodes that have a key in the mesh. More than one is an error of an older release.
func (s *Snapshot) NodesWithMeshKey(key string) iter.Seq[*v1.Node] {
	return listByPrefix[*v1.Node](s, KindNode, indexMeshKey, appendText(nil, key))
}

// AccessKeyByID returns the access key with an id, whatever its namespace. Ids are random, so that there is one at most.
func (s *Snapshot) AccessKeyByID(id string) (found *v1.AccessKey) {
	for found = range listByPrefix[*v1.AccessKey](s, KindAccessKey, indexKeyID, appendText(nil, id)) {
		break
	}
	return found
}

// ListByName lists the objects of a named kind by namespace and name, from the first one after a path on.
func ListByName[T Object](s *Snapshot, kind Kind, namespace, after string) iter.Seq[T] {
	return func(yield func(T) bool) {
		s.rows[ordinals[kind]].byName.ascend(firstKey(namespace, after), func(_ string, o Object) bool {
			return (namespace == "" || o.GetMetadata().GetNamespace() == namespace) && yield(o.(T))
		})
	}
}

// firstKey returns the key at which a list by name begins: the start of its namespace, or the first key after a path.
func firstKey(namespace, after string) string {
	start := ""
	if namespace != "" {
		start = nameKeyOf(namespace, "")
	}
	if after == "" {
		return start
	}
	return max(start, nameKeyOf(splitPath(after))+"\x00")
}
