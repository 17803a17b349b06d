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

// Cluster returns the one cluster.
func (s *Snapshot) Cluster() *v1.Cluster {
	return only[*v1.Cluster](s, KindCluster)
}

// Authority returns the one certificate authority.
func (s *Snapshot) Authority() *statev1.Authority {
	return only[*statev1.Authority](s, KindAuthority)
}

// Node returns a node by its uid.
func (s *Snapshot) Node(uid string) *v1.Node { return byUID[*v1.Node](s, KindNode, uid) }

// NodeByName returns a node by its name.
func (s *Snapshot) NodeByName(name string) *v1.Node { return byName[*v1.Node](s, KindNode, "", name) }

// Nodes lists the nodes by name.
func (s *Snapshot) Nodes(after string) iter.Seq[*v1.Node] {
	return listByName[*v1.Node](s, KindNode, "", after)
}

// Workload returns a workload by its uid.
func (s *Snapshot) Workload(uid string) *v1.Workload {
	return byUID[*v1.Workload](s, KindWorkload, uid)
}

// WorkloadByName returns a workload by its namespace and name.
func (s *Snapshot) WorkloadByName(namespace, name string) *v1.Workload {
	return byName[*v1.Workload](s, KindWorkload, namespace, name)
}

// Workloads lists the workloads by name.
func (s *Snapshot) Workloads(namespace, after string) iter.Seq[*v1.Workload] {
	return listByName[*v1.Workload](s, KindWorkload, namespace, after)
}

// Revision returns a revision by its uid.
func (s *Snapshot) Revision(uid string) *v1.Revision {
	return byUID[*v1.Revision](s, KindRevision, uid)
}

// RevisionsOf lists the revisions of a workload by number.
func (s *Snapshot) RevisionsOf(workloadUID string) iter.Seq[*v1.Revision] {
	return listByPrefix[*v1.Revision](s, KindRevision, indexWorkload, appendID(nil, workloadUID))
}

// Replica returns a replica by its uid.
func (s *Snapshot) Replica(uid string) *v1.Replica { return byUID[*v1.Replica](s, KindReplica, uid) }

// ReplicaByName returns a replica by its namespace and name.
func (s *Snapshot) ReplicaByName(namespace, name string) *v1.Replica {
	return byName[*v1.Replica](s, KindReplica, namespace, name)
}

// Replicas lists the replicas by name.
func (s *Snapshot) Replicas(namespace, after string) iter.Seq[*v1.Replica] {
	return listByName[*v1.Replica](s, KindReplica, namespace, after)
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

// Token returns a token by its uid.
func (s *Snapshot) Token(uid string) *v1.Token { return byUID[*v1.Token](s, KindToken, uid) }

// TokenByName returns a token by its name.
func (s *Snapshot) TokenByName(name string) *v1.Token {
	return byName[*v1.Token](s, KindToken, "", name)
}

// Tokens lists the tokens by name.
func (s *Snapshot) Tokens(after string) iter.Seq[*v1.Token] {
	return listByName[*v1.Token](s, KindToken, "", after)
}

// Credential returns what belongs to the token with this uid.
func (s *Snapshot) Credential(uid string) *statev1.Credential {
	return byUID[*statev1.Credential](s, KindCredential, uid)
}

// Login returns how to log in to the registry with this host.
func (s *Snapshot) Login(host string) *v1.Login { return byName[*v1.Login](s, KindLogin, "", host) }

// Logins lists the logins by host.
func (s *Snapshot) Logins(after string) iter.Seq[*v1.Login] {
	return listByName[*v1.Login](s, KindLogin, "", after)
}

// Password returns what belongs to the login with this uid.
func (s *Snapshot) Password(uid string) *statev1.Password {
	return byUID[*statev1.Password](s, KindPassword, uid)
}

// Receipt returns a receipt by its name.
func (s *Snapshot) Receipt(name string) *statev1.Receipt {
	return byName[*statev1.Receipt](s, KindReceipt, "", name)
}

// Receipts lists the receipts by uid, which is from the oldest to the newest.
func (s *Snapshot) Receipts() iter.Seq[*statev1.Receipt] {
	return listByPrefix[*statev1.Receipt](s, KindReceipt, indexUID, nil)
}

// Events lists the events by uid backwards, which is from the newest to the oldest. They begin before the event with
// the uid before if that is not empty, be it still there or not.
func (s *Snapshot) Events(before string) iter.Seq[*v1.Event] {
	return func(yield func(*v1.Event) bool) {
		last := &before
		if before == "" {
			last = nil
		}
		s.rows[ordinals[KindEvent]].byUID.before(last, func(_ string, o Object) bool { return yield(o.(*v1.Event)) })
	}
}

// OldestEvents lists the events from the oldest to the newest.
func (s *Snapshot) OldestEvents() iter.Seq[*v1.Event] {
	return listByPrefix[*v1.Event](s, KindEvent, indexUID, nil)
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
