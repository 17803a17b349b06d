package network

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/streams"
	"github.com/cloudless/cloudless/internal/services"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// maxTargets is how many endpoints of a service are tried.
const maxTargets = 5

// CheckNetwork follows the path between two replicas.
func (s *Service) CheckNetwork(ctx context.Context, request *v1.CheckNetworkRequest) (*v1.NetworkCheck, error) {
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	t := &trace{Service: s, snap: snap, request: request, namespace: cmp.Or(request.GetNamespace(), spec.DefaultNamespace), check: &v1.NetworkCheck{Ok: true}}
	t.follow(ctx)
	return t.check, ctx.Err()
}

// trace is one check.
type trace struct {
	*Service
	snap      *state.Snapshot
	request   *v1.CheckNetworkRequest
	namespace string
	check     *v1.NetworkCheck

	from    *v1.Replica
	service *v1.Service // nil if the check is between replicas
	port    *v1.ServicePort
	udp     bool
	targets []*target
}

// target is where connections end.
type target struct {
	name      string
	node      *v1.Node    // nil if it is outside the cluster
	replica   *v1.Replica // nil if it is outside the cluster
	addresses []string
	port      int32
	// What the target's node had dropped before the check tried the path, and after.
	before, after []*v1.DroppedPackets
}

func (t *trace) hop(hop, state, message, fix string) {
	t.check.Hops = append(t.check.Hops, &v1.NetworkHop{Hop: hop, State: state, Message: message, Fix: fix})
	t.check.Ok = t.check.Ok && state != "failed"
}

func (t *trace) ok(hop, format string, args ...any) {
	t.hop(hop, "ok", fmt.Sprintf(format, args...), "")
}

// fail notes a part of the path that does not work, and returns false.
func (t *trace) fail(hop, message, fix string) bool {
	t.hop(hop, "failed", message, fix)
	return false
}

// follow checks the parts of the path one after the other. Parts that need what does not work are left out.
func (t *trace) follow(ctx context.Context) {
	if !t.findFrom() || !t.findTo() {
		return
	}
	t.countDropsBefore(ctx)
	probe, err := t.probe(ctx, t.from, t.fromProbe())
	if err != nil {
		t.fail("node", fmt.Sprintf("node %s cannot try the path: %v", t.from.GetSpec().GetNode(), err), "cloudless node get "+t.from.GetSpec().GetNode())
		return
	}
	t.checkName(probe)
	for _, to := range t.targets {
		t.checkPath(ctx, to)
		t.checkListens(ctx, to)
	}
	t.checkFilter(probe)
	t.checkConnects(probe)
}

func (t *trace) findFrom() bool {
	var err error
	t.from, err = streams.RunningReplica(t.snap, &v1.ExecStart{Namespace: t.namespace, Workload: t.request.GetFrom()})
	if err != nil {
		return t.fail("from", err.Error(), "")
	}
	t.ok("from", "replica %s runs on node %s", t.from.GetMetadata().GetName(), t.from.GetSpec().GetNode())
	return t.nodeWorks(t.snap.Node(t.from.GetSpec().GetNodeUid()))
}

func (t *trace) nodeWorks(n *v1.Node) bool {
	name := n.GetMetadata().GetName()
	if state := n.GetStatus().GetState(); state == spec.NodeOffline {
		return t.fail("node", fmt.Sprintf("node %s is %s", name, state), "cloudless node get "+name)
	}
	for _, c := range n.GetStatus().GetConditions() {
		if c.GetType() == "NetworkAvailable" && !c.GetStatus() {
			return t.fail("node", fmt.Sprintf("the network of node %s does not work: %s", name, c.GetReason()), "cloudless node get "+name)
		}
	}
	t.ok("node", "node %s is %s", name, n.GetStatus().GetState())
	return true
}

// findTo finds the service and its endpoints, or the replica.
func (t *trace) findTo() bool {
	short := strings.TrimSuffix(strings.TrimSuffix(t.request.GetTo(), "."), "."+spec.ServiceDomain)
	name, namespace, qualified := strings.Cut(short, ".")
	if !qualified {
		namespace = t.namespace
	}
	if t.service = t.snap.ServiceByName(namespace, name); t.service != nil {
		return t.findEndpoints()
	}
	r, err := streams.RunningReplica(t.snap, &v1.ExecStart{Namespace: namespace, Workload: name})
	if err != nil {
		return t.fail("to", err.Error(), "")
	}
	var ports []portOption
	for _, p := range t.snap.Workload(r.GetSpec().GetWorkloadUid()).GetSpec().GetPorts() {
		ports = append(ports, portOption{p.GetPort(), p.GetProtocol()})
	}
	port := int32(t.request.GetPort())
	chosen := t.choose(ports)
	if chosen >= 0 {
		port = ports[chosen].number
	}
	if port == 0 {
		return t.fail("to", fmt.Sprintf("workload %s has no port to connect to", r.GetSpec().GetWorkload()), "name one with --port")
	}
	t.ok("to", "replica %s runs on node %s%s", r.GetMetadata().GetName(), r.GetSpec().GetNode(), notTried(ports, chosen))
	if namespace != t.namespace {
		return t.fail("namespace", fmt.Sprintf("replicas of namespace %s do not reach those of namespace %s", t.namespace, namespace), "give the workload a service with exported: true")
	}
	t.targets = []*target{t.ofReplica(r, port)}
	return t.nodeWorks(t.targets[0].node)
}

func (t *trace) ofReplica(r *v1.Replica, port int32) *target {
	return &target{
		name: r.GetMetadata().GetName(), node: t.snap.Node(r.GetSpec().GetNodeUid()), replica: r, addresses: r.GetStatus().GetAddresses(), port: port,
	}
}

// portOption is a port that the check may try.
type portOption struct {
	number   int32
	protocol string
}

func (p portOption) String() string {
	return fmt.Sprintf("%d/%s", p.number, cmp.Or(p.protocol, "tcp"))
}

// choose returns the index of the port to try, -1 if there is none. TCP comes first, because it tells more.
func (t *trace) choose(ports []portOption) int {
	for _, udp := range []bool{false, true} {
		i := slices.IndexFunc(ports, func(p portOption) bool {
			return (p.protocol == "udp") == udp && (t.request.GetPort() == 0 || int32(t.request.GetPort()) == p.number)
		})
		if i >= 0 {
			t.udp = udp
			return i
		}
	}
	return -1
}

// notTried names the ports that are not tried.
func notTried(ports []portOption, chosen int) string {
	others := slices.Clone(ports)
	if chosen >= 0 {
		others = slices.Delete(others, chosen, chosen+1)
	}
	if len(others) == 0 {
		return ""
	}
	return "; not tried: " + list(others)
}

func list(ports []portOption) string {
	var all []string
	for _, p := range ports {
		all = append(all, p.String())
	}
	return strings.Join(all, ", ")
}

func (t *trace) findEndpoints() bool {
	m := t.service.GetMetadata()
	var ports []portOption
	for _, p := range t.service.GetSpec().GetPorts() {
		ports = append(ports, portOption{p.GetPort(), p.GetProtocol()})
	}
	chosen := t.choose(ports)
	switch {
	case len(ports) == 0:
		return t.fail("to", fmt.Sprintf("service %s has no ports", m.GetName()), "give it some in spec.ports")
	case chosen < 0:
		return t.fail("to", fmt.Sprintf("service %s does not have port %d", m.GetName(), t.request.GetPort()), "name one that it has with --port: "+list(ports))
	}
	t.port = t.service.GetSpec().GetPorts()[chosen]
	t.ok("to", "service %s has port %v%s", m.GetName(), ports[chosen], notTried(ports, chosen))
	if m.GetNamespace() != t.namespace {
		if !t.service.GetSpec().GetExported() {
			return t.fail("namespace", fmt.Sprintf("service %s of namespace %s is not exported, so namespace %s does not reach it", m.GetName(), m.GetNamespace(), t.namespace),
				"set spec.exported in the service")
		}
		t.ok("namespace", "service %s is exported", m.GetName())
	}
	all := services.Endpoints(t.snap, t.service)
	usable := services.Usable(all)
	if len(usable) == 0 {
		return t.fail("endpoints", cmp.Or(services.Reason(t.snap, t.service, all), "no endpoint takes connections"), spec.Hint(m.GetNamespace(), "cloudless endpoint ls "+m.GetName()))
	}
	t.ok("endpoints", "%d of %d endpoints take connections", len(usable), len(all))
	inside := cmp.Or(t.port.GetTargetPort(), t.port.GetPort())
	for _, e := range usable[:min(len(usable), maxTargets)] {
		if r := t.snap.Replica(e.GetMetadata().GetUid()); r != nil {
			t.targets = append(t.targets, t.ofReplica(r, inside))
		} else {
			t.targets = append(t.targets, &target{name: e.GetMetadata().GetName(), addresses: e.GetSpec().GetAddresses(), port: inside})
		}
	}
	return true
}

// virtual are the service's own addresses.
func (t *trace) virtual() []string {
	st := t.service.GetStatus()
	return slices.DeleteFunc([]string{st.GetAddressV4(), st.GetAddressV6()}, func(a string) bool { return a == "" })
}

// fromProbe is what the node of the first replica tries.
func (t *trace) fromProbe() *v1.OpenNetworkProbe {
	open := &v1.OpenNetworkProbe{}
	if t.service != nil {
		open.Lookup = spec.ServiceName(t.service.GetMetadata().GetNamespace(), t.service.GetMetadata().GetName())
		open.Connect = withPort(t.virtual(), t.port.GetPort())
	}
	for _, to := range t.targets {
		open.Connect = append(open.Connect, withPort(to.addresses, to.port)...)
	}
	return open
}

func withPort(addresses []string, port int32) (all []string) {
	for _, text := range addresses {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, netip.AddrPortFrom(a, uint16(port)).String())
		}
	}
	return all
}

func (t *trace) probe(ctx context.Context, r *v1.Replica, open *v1.OpenNetworkProbe) (*v1.NetworkProbe, error) {
	open.ReplicaUid = r.GetMetadata().GetUid()
	if t.udp {
		open.Protocol = "udp"
	}
	up, err := t.ask(ctx, t.snap.Node(r.GetSpec().GetNodeUid()), &v1.Open{What: &v1.Open_NetworkProbe{NetworkProbe: open}})
	return up.GetNetworkProbe(), err
}

// checkName checks what the service's name leads to inside the first replica.
func (t *trace) checkName(found *v1.NetworkProbe) {
	if t.service == nil {
		return
	}
	name := spec.ServiceName(t.service.GetMetadata().GetNamespace(), t.service.GetMetadata().GetName())
	want := t.virtual()
	if t.service.GetSpec().GetHeadless() {
		for _, to := range t.targets {
			want = append(want, to.addresses...)
		}
	}
	node := t.from.GetSpec().GetNode()
	switch {
	case found.GetLookupError() != "":
		t.fail("name", fmt.Sprintf("%s is not found: %s", name, found.GetLookupError()), "cloudless events --for "+node)
	case !slices.ContainsFunc(found.GetAddresses(), func(a string) bool { return slices.Contains(want, a) }):
		t.fail("name", fmt.Sprintf("%s leads to %s instead of %s: node %s has not heard of the change yet", name, strings.Join(found.GetAddresses(), ", "), strings.Join(want, ", "), node),
			"cloudless node get "+node)
	default:
		t.ok("name", "%s leads to %s", name, strings.Join(found.GetAddresses(), ", "))
	}
}

// checkPath checks how the node of the first replica reaches that of a target.
func (t *trace) checkPath(ctx context.Context, to *target) {
	here := t.from.GetSpec().GetNode()
	switch {
	case to.node == nil:
		t.ok("path", "%s is outside the cluster", to.name)
		return
	case to.node.GetMetadata().GetUid() == t.from.GetSpec().GetNodeUid():
		t.ok("path", "%s is on node %s, too", to.name, here)
		return
	}
	there := to.node.GetMetadata().GetName()
	between := fmt.Sprintf("from node %s to node %s", here, there)
	found, err := t.probe(ctx, t.from, &v1.OpenNetworkProbe{Peer: "node/" + to.node.GetMetadata().GetUid()})
	path := found.GetPath()
	switch {
	case err != nil:
		t.fail("path", fmt.Sprintf("%s: %v", between, err), "cloudless network status --node "+here)
	case path == nil:
		t.fail("path", fmt.Sprintf("%s: %s", between, found.GetPathError()), "cloudless network status --node "+here)
	case path.GetState() == "direct":
		t.ok("path", "%s: direct to %s in %s", between, path.GetAddress(), path.GetLatency())
	case path.GetState() == "relayed":
		t.ok("path", "%s: relayed by a server in %s, because %s", between, path.GetLatency(), path.GetWhyNotDirect())
	default:
		t.fail("path", fmt.Sprintf("%s: %s, because %s", between, path.GetState(), path.GetWhyNotDirect()),
			fmt.Sprintf("let UDP port 7701 of node %s through, or the port of the servers", there))
	}
}

// checkListens checks whether the program of a target accepts connections.
func (t *trace) checkListens(ctx context.Context, to *target) {
	if to.replica == nil {
		return
	}
	found, err := t.probe(ctx, to.replica, &v1.OpenNetworkProbe{Listens: uint32(to.port)})
	to.after = found.GetDrops()
	logs := spec.Hint(to.replica.GetMetadata().GetNamespace(), "cloudless logs "+to.name)
	switch {
	case err != nil:
		t.fail("listen", fmt.Sprintf("node %s cannot look into replica %s: %v", to.node.GetMetadata().GetName(), to.name, err), "cloudless node get "+to.node.GetMetadata().GetName())
	case found.GetListens() == "all":
		t.ok("listen", "replica %s listens on port %d", to.name, to.port)
	case found.GetListens() == "loopback":
		t.fail("listen", fmt.Sprintf("replica %s listens on port %d only of its own 127.0.0.1, which no other replica reaches", to.name, to.port), "let the program listen on 0.0.0.0")
	default:
		t.fail("listen", fmt.Sprintf("nothing listens on port %d in replica %s", to.port, to.name), logs)
	}
}

// countDropsBefore asks the nodes of the targets what they have dropped so far. A node that does not answer fails later.
func (t *trace) countDropsBefore(ctx context.Context) {
	for _, to := range t.targets {
		if to.replica != nil {
			found, _ := t.probe(ctx, to.replica, &v1.OpenNetworkProbe{})
			to.before = found.GetDrops()
		}
	}
}

// checkFilter checks whether the nodes of both ends have dropped packets. Packets that they drop while all connections
// succeed belong to others.
func (t *trace) checkFilter(found *v1.NetworkProbe) {
	failed := func(c *v1.ConnectResult) bool { return c.GetError() != "" || c.GetLatency() == "" }
	broken := len(found.GetConnects()) == 0 || slices.ContainsFunc(found.GetConnects(), failed)
	t.reportDrops(t.from, broken, found.GetDrops(), found.GetDroppedNow())
	reported := map[string]bool{}
	for _, to := range t.targets {
		s := to.replica.GetSpec()
		key := s.GetNodeUid() + "/" + s.GetWorkloadUid()
		if to.replica != nil && s.GetNodeUid() != t.from.GetSpec().GetNodeUid() && !reported[key] {
			reported[key] = true
			t.reportDrops(to.replica, broken, to.after, dropsSince(to.before, to.after))
		}
	}
}

// dropsSince are the packets that were dropped between two counts.
func dropsSince(before, after []*v1.DroppedPackets) (now []*v1.DroppedPackets) {
	for _, d := range after {
		packets := d.GetPackets()
		for _, b := range before {
			if b.GetWorkloadUid() == d.GetWorkloadUid() && b.GetRule() == d.GetRule() {
				packets -= b.GetPackets()
			}
		}
		if packets > 0 {
			now = append(now, &v1.DroppedPackets{WorkloadUid: d.GetWorkloadUid(), Rule: d.GetRule(), Reason: d.GetReason(), Packets: packets})
		}
	}
	return now
}

// reportDrops reports what the node of a replica has dropped, in all and during the check.
func (t *trace) reportDrops(r *v1.Replica, broken bool, all, now []*v1.DroppedPackets) {
	workload, node := r.GetSpec().GetWorkload(), r.GetSpec().GetNode()
	unowned := func(d *v1.DroppedPackets) bool { return d.GetWorkloadUid() == "" }
	own := slices.DeleteFunc(slices.Clone(now), unowned)
	if broken && len(own) > 0 {
		for _, d := range own {
			t.fail("filter", fmt.Sprintf("rule %s of node %s has dropped %d packets of %s: %s", d.GetRule(), node, d.GetPackets(), workload, d.GetReason()), "cloudless network status --node "+node+" -o json")
		}
		return
	}
	message := fmt.Sprintf("node %s has dropped no packets of %s", node, workload)
	if earlier := slices.DeleteFunc(slices.Clone(all), unowned); len(earlier) > 0 {
		message = fmt.Sprintf("node %s lets these connections through; other packets of %s that it has dropped: %s", node, workload, dropList(earlier))
	}
	if others := slices.DeleteFunc(slices.Clone(now), func(d *v1.DroppedPackets) bool { return !unowned(d) }); broken && len(others) > 0 {
		message += "; packets of no workload that it dropped meanwhile: " + dropList(others)
	}
	t.ok("filter", "%s", message)
}

func dropList(drops []*v1.DroppedPackets) string {
	var list []string
	for _, d := range drops {
		list = append(list, fmt.Sprintf("%d by rule %s", d.GetPackets(), d.GetRule()))
	}
	return strings.Join(list, ", ")
}

// checkConnects reports the connections: to the service's own addresses and to each target. One family of addresses is
// enough, because many programs listen only on IPv4.
func (t *trace) checkConnects(found *v1.NetworkProbe) {
	if t.service != nil && len(t.virtual()) > 0 {
		t.checkConnect("service "+t.service.GetMetadata().GetName(), withPort(t.virtual(), t.port.GetPort()), found)
	}
	for _, to := range t.targets {
		t.checkConnect(to.name, withPort(to.addresses, to.port), found)
	}
}

func (t *trace) checkConnect(name string, addresses []string, found *v1.NetworkProbe) {
	var connected, silent, failed []string
	for _, c := range found.GetConnects() {
		switch {
		case !slices.Contains(addresses, c.GetAddress()):
		case c.GetError() == "" && c.GetLatency() == "":
			silent = append(silent, fmt.Sprintf("%s: no answer, which is usual for UDP", c.GetAddress()))
		case c.GetError() == "":
			connected = append(connected, fmt.Sprintf("%s in %s", c.GetAddress(), c.GetLatency()))
		default:
			failed = append(failed, fmt.Sprintf("%s: %s", c.GetAddress(), c.GetError()))
		}
	}
	if works := slices.Concat(connected, silent); len(works) > 0 {
		verb := "connects to"
		if t.udp {
			verb = "sent an empty datagram to"
		}
		t.ok("connect", "%s %s %s (%s)", t.from.GetMetadata().GetName(), verb, name, strings.Join(append(works, failed...), ", "))
		return
	}
	fix := "mend the failed parts above"
	if t.check.GetOk() {
		fix = "look for rules of other programs with cloudless doctor on the nodes of both replicas"
	}
	if len(addresses) == 0 {
		failed, fix = []string{"it has no address of its own"}, "connect to its node instead, or remove network: host or none from the workload"
	}
	t.fail("connect", fmt.Sprintf("%s does not connect to %s (%s)", t.from.GetMetadata().GetName(), name, strings.Join(failed, ", ")), fix)
}
