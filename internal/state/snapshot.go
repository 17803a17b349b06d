package state

import (
	"iter"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Snapshot is the whole state after one transaction. It never changes and is safe for concurrent use; what it
// returns must not be modified. Getters return nil for what is not there.
//
// Lists by name are in the order of namespace and name; they cover all namespaces if namespace is empty, and begin
// after the object with the path (see [Path]) if after is not empty, be it still there or not.
type Snapshot struct {
	rows     []rows // one for each of the tables
	index    uint64
	position uint64 // in the feed
	counts   []int
}

// Index returns the index of the last transaction that this state knows of.
func (s *Snapshot) Index() uint64 { return s.index }

// Count returns how many objects of a kind there are.
func (s *Snapshot) Count(kind Kind) int {
	if i, known := ordinals[kind]; known {
		return s.counts[i]
	}
	return 0
}

// Generation stands for all objects of a kind as they are: two snapshots have the same one only if they have the same
// objects of it. It keeps those of an old snapshot from being let go.
type Generation struct{ root *node }

// Generation returns that of a kind, which must be one of those that are there.
func (s *Snapshot) Generation(kind Kind) Generation {
	return Generation{s.rows[ordinals[kind]].byUID.root}
}

// Get returns an object of any kind.
func (s *Snapshot) Get(kind Kind, uid string) Object {
	if _, known := ordinals[kind]; !known {
		return nil
	}
	return byUID[Object](s, kind, uid)
}

// RevisionsOf lists the revisions of a workload by number.
func (s *Snapshot) RevisionsOf(workloadUID string) iter.Seq[*v1.Revision] {
	return listByPrefix[*v1.Revision](s, KindRevision, indexWorkload, appendID(nil, workloadUID))
}

// ReplicasOf lists the replicas of a workload by name.
func (s *Snapshot) ReplicasOf(workloadUID string) iter.Seq[*v1.Replica] {
	return listByPrefix[*v1.Replica](s, KindReplica, indexWorkload, appendID(nil, workloadUID))
}

// ReplicasOn lists the replicas that are placed on a node by name, and those that are placed nowhere if nodeUID is
// empty.
func (s *Snapshot) ReplicasOn(nodeUID string) iter.Seq[*v1.Replica] {
	return listByPrefix[*v1.Replica](s, KindReplica, indexNode, appendID(nil, nodeUID))
}

// OldestReceipts lists the receipts by uid, which is from the oldest to the newest.
func (s *Snapshot) OldestReceipts() iter.Seq[*statev1.Receipt] {
	return listByPrefix[*statev1.Receipt](s, KindReceipt, indexUID, nil)
}

func byUID[T Object](s *Snapshot, kind Kind, uid string) T {
	object, _ := s.rows[ordinals[kind]].byUID.get(uid).(T)
	return object
}

func byName[T Object](s *Snapshot, kind Kind, namespace, name string) T {
	object, _ := s.rows[ordinals[kind]].byName.get(nameKeyOf(namespace, name)).(T)
	return object
}

// only returns the one object of a kind of which there is at most one.
func only[T Object](s *Snapshot, kind Kind) (object T) {
	for object = range listByPrefix[T](s, kind, indexUID, nil) {
		break
	}
	return object
}

// listByPrefix lists the objects whose key in an index begins with prefix.
func listByPrefix[T Object](s *Snapshot, kind Kind, index string, prefix []byte) iter.Seq[T] {
	return func(yield func(T) bool) {
		ordinal := ordinals[kind]
		s.rows[ordinal].tree(ordinal, index).prefixed(string(prefix), func(o Object) bool { return yield(o.(T)) })
	}
}

func listByName[T Object](s *Snapshot, kind Kind, namespace, after string) iter.Seq[T] {
	return func(yield func(T) bool) {
		s.rows[ordinals[kind]].byName.from(firstKey(namespace, after), func(_ string, o Object) bool {
			return (namespace == "" || o.GetMetadata().GetNamespace() == namespace) && yield(o.(T))
		})
	}
}

// firstKey is where a list by name begins: at its namespace, or at the smallest key after that of a path.
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
