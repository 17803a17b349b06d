package simulated

import (
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// maxReports bounds the replicas in one message.
const maxReports = 500

// session runs one session, from hello to its end. It worked if assignments came.
func (n *Node) session(l *link) (worked bool, err error) {
	hello, err := n.hello()
	if err != nil {
		return false, err
	}
	if err := l.begin(hello); err != nil {
		return false, err
	}
	n.fleet.counts.opened.Add(1)
	err = l.read(n)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.worked {
		n.worked, worked = false, true
		n.fleet.counts.connected.Add(-1)
	}
	return worked, err
}

// hello is the first message. Reports that do not fit into it wait.
func (n *Node) hello() ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	hello := &v1.Hello{Status: n.status(), Epoch: n.epoch}
	if n.fleet.options.Follow != nil {
		hello.Follow = n.fleet.options.Follow(n.index)
	}
	n.unsaid = n.unsaid[:0]
	for uid := range n.replicas {
		if len(hello.Replicas) < maxReports {
			hello.Replicas = append(hello.Replicas, n.report(uid))
		} else {
			n.unsaid = append(n.unsaid, uid)
		}
	}
	return encode(&v1.SessionUp{Message: &v1.SessionUp_Hello{Hello: hello}})
}

// report is the report of a replica. The caller holds the lock.
func (n *Node) report(uid uuid.UUID) *v1.ReplicaReport {
	r := n.replicas[uid]
	since := &timestamppb.Timestamp{Seconds: r.since}
	status := &v1.ReplicaStatus{Phase: "running", StartTime: since}
	if r.stopped {
		status = &v1.ReplicaStatus{Phase: "stopped", LastExit: &v1.Exit{Time: since}}
	}
	return &v1.ReplicaReport{Uid: uid.String(), Status: status}
}

// message handles a server's message.
func (n *Node) message(down []byte) error {
	h, err := scan(down)
	if err != nil {
		return err
	}
	if h.pong != nil {
		n.answer(h.pong)
	}
	if h.network != nil && n.fleet.options.Network != nil {
		var network v1.Network
		if err := proto.Unmarshal(h.network, &network); err != nil {
			return err
		}
		n.fleet.options.Network(&network)
	}
	if h.secrets != nil {
		var secrets v1.SecretsDown
		if err := proto.Unmarshal(h.secrets, &secrets); err != nil {
			return err
		}
		n.apply(&secrets)
		n.acknowledge()
	}
	if h.orders == nil {
		return nil
	}
	n.take(*h.orders)
	if n.fleet.options.Delay == 0 {
		n.say()
	}
	return nil
}

// answer answers a ping at once.
func (n *Node) answer(pong []byte) {
	n.mu.Lock()
	l := n.link
	n.mu.Unlock()
	if l != nil {
		_ = l.send(pong) // the reader learns why the connection is broken
	}
}

// mayWrite sends what could not be sent before.
func (n *Node) mayWrite() {
	n.say()
	n.acknowledge()
}

// apply gives replicas their secrets, which takes no time.
func (n *Node) apply(down *v1.SecretsDown) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range down.GetSecrets() {
		if len(s.GetValue()) == 0 {
			continue
		}
		for _, replica := range s.GetReplicas() {
			n.applied = append(n.applied, &v1.SecretApplied{SecretUid: s.GetUid(), Version: s.GetVersion(), ReplicaUid: replica})
		}
	}
}

// acknowledge says which secrets the replicas have.
func (n *Node) acknowledge() {
	n.mu.Lock()
	applied, l := n.applied, n.link
	if n.applied = nil; l == nil || n.away != nil {
		applied = nil // the next session begins with all secrets
	}
	n.mu.Unlock()
	if len(applied) == 0 {
		return
	}
	message, err := encode(&v1.SessionUp{Message: &v1.SessionUp_Secrets{Secrets: &v1.SecretsUp{Applied: applied}}})
	if err == nil {
		err = l.send(message)
	}
	if err != nil { // sent when the window grows
		n.mu.Lock()
		n.applied = append(applied, n.applied...)
		n.mu.Unlock()
	}
}

func (n *Node) take(o orders) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.worked {
		n.worked = true
		n.fleet.counts.connected.Add(1)
	}
	if o.epoch < n.epoch {
		return
	}
	n.epoch = o.epoch
	if len(o.servers) > 0 {
		n.learn(o.servers)
	}
	if o.heartbeat > 0 {
		n.setPace(o.heartbeat)
	}
	n.carryOut(o)
}

// learn adopts a new list of servers. The connected one stays the first.
func (n *Node) learn(servers []string) {
	current := n.servers[0]
	n.servers = append(append(n.servers[:0:0], current), slices.DeleteFunc(slices.Clone(servers), func(s string) bool { return s == current })...)
}

// carryOut begins what is new.
func (n *Node) carryOut(o orders) {
	began, now := len(n.unsaid), time.Now()
	if n.replicas == nil && len(o.assigned) > 0 {
		n.replicas = make(map[uuid.UUID]replica, len(o.assigned))
	}
	for _, w := range o.assigned {
		known, there := n.replicas[w.uid]
		if there && known.stopped == w.stop {
			continue
		}
		n.replicas[w.uid] = replica{since: now.Unix(), stopped: w.stop}
		n.count(there && !known.stopped, !w.stop)
		n.unsaid = append(n.unsaid, w.uid)
		n.fleet.counts.assigned.Add(1)
	}
	for _, uid := range o.remove {
		n.forget(uid)
	}
	if o.full {
		n.forgetOthers(o.assigned)
	}
	if delay := n.fleet.options.Delay; delay > 0 && len(n.unsaid) > began {
		n.shard().add(now.Add(delay), n, saying)
	}
}

func (n *Node) count(before, after bool) {
	switch {
	case after && !before:
		n.fleet.counts.running.Add(1)
	case before && !after:
		n.fleet.counts.running.Add(-1)
	}
}

func (n *Node) forget(uid uuid.UUID) {
	if r, there := n.replicas[uid]; there {
		n.count(!r.stopped, false)
		delete(n.replicas, uid)
	}
}

// forgetOthers removes what a full set of assignments does not name.
func (n *Node) forgetOthers(named []desired) {
	if len(n.replicas) == len(named) { // all are named: unknown ones have been added by now
		return
	}
	keep := make(map[uuid.UUID]bool, len(named))
	for _, w := range named {
		keep[w.uid] = true
	}
	for uid := range n.replicas {
		if !keep[uid] {
			n.forget(uid)
		}
	}
}

// say sends the unreported changes, as far as the windows allow.
func (n *Node) say() {
	for {
		n.mu.Lock()
		message, l, said, err := n.nextReport()
		n.mu.Unlock()
		if message == nil || err != nil {
			return
		}
		if err := l.send(message); err != nil {
			n.mu.Lock()
			n.unsaid = append(n.unsaid, said...)
			n.mu.Unlock()
			return // sent when the window grows, or with the next hello
		}
		n.fleet.counts.reported.Add(int64(len(said)))
	}
}

// nextReport takes a part of the unreported changes.
func (n *Node) nextReport() (message []byte, l *link, said []uuid.UUID, err error) {
	if n.link == nil || n.away != nil || len(n.unsaid) == 0 {
		return nil, nil, nil, nil
	}
	first := max(0, len(n.unsaid)-maxReports)
	said = slices.Clone(n.unsaid[first:])
	n.unsaid = n.unsaid[:first]
	if first == 0 {
		n.unsaid = nil
	}
	report := &v1.Report{}
	for _, uid := range said {
		if _, there := n.replicas[uid]; there {
			report.Replicas = append(report.Replicas, n.report(uid))
		}
	}
	message, err = encode(&v1.SessionUp{Message: &v1.SessionUp_Report{Report: report}})
	return message, n.link, said, err
}

// beat sends a heartbeat, if the node is active and has said hello.
func (n *Node) beat(round int, at time.Time) {
	n.mu.Lock()
	l, well := n.link, n.away == nil
	n.mu.Unlock()
	if l == nil || !well {
		return
	}
	switch err := l.send(n.fleet.beats.of(n.every(), n.index+round)); {
	case err == nil:
		n.fleet.counts.sent(time.Since(at))
	case errors.Is(err, errNoStream), errors.Is(err, errNoWindow):
	default:
		l.cut() // the reader notices and begins again
	}
}
