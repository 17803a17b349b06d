package routes

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/services"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Live is what nodes have reported, which no state has.
type Live interface {
	// Route is the traffic of a route, nil if no node has reported any.
	Route(uid string) *v1.RouteTraffic
	// Port says why a node does not answer at a port; empty if it does. It is not known before the node has reported.
	Port(nodeUID, protocol string, port int32) (problem string, known bool)
}

// maxNodes bounds the nodes of a status: a cluster may have thousands, and clients need a few.
const maxNodes = 256

// unknown stands for nodes that have reported nothing.
const unknown = "has not reported yet whether it could open its ports"

// CertificateOf is the name of the certificate of a route, which is in the same namespace; empty without TLS.
func CertificateOf(r *v1.Route) string {
	switch spec.RouteTLS(r.GetSpec()) {
	case spec.TLSAuto, spec.TLSCluster:
		return spec.CertificateName(r.GetSpec().GetHost())
	case spec.TLSOwn:
		return r.GetSpec().GetTls().GetCertificate()
	}
	return ""
}

// Present returns a route as the API shows it: without passwords, and with a status that is computed from the state and from
// what nodes have reported. live may be nil.
func Present(snap *state.Snapshot, r *v1.Route, live Live) *v1.Route {
	if r.GetSpec() == nil {
		return r // only the uid of a deleted route
	}
	shown := spec.WithoutPasswords(r)
	status := &v1.RouteStatus{Certificate: CertificateOf(r), Nodes: nodesOf(snap, r, live)}
	status.Url = urlOf(snap.Cluster().GetSpec(), r.GetSpec(), status.GetNodes())
	if live != nil {
		status.Traffic = live.Route(r.GetMetadata().GetUid())
	}
	var missing string
	status.Ready, missing = backendsOf(snap, r)
	status.Reason = cmp.Or(certificateReason(snap, r), missing, nodesReason(snap, r, status.GetNodes()), plainReason(snap, r, live))
	return &v1.Route{ApiVersion: shown.GetApiVersion(), Kind: shown.GetKind(), Metadata: shown.GetMetadata(), Spec: shown.GetSpec(), Status: status}
}

// nodesOf are the nodes that should answer for a route, by name.
func nodesOf(snap *state.Snapshot, r *v1.Route, live Live) []*v1.RouteNode {
	var all []*v1.RouteNode
	main := portsOf(snap.Cluster().GetSpec(), r.GetSpec())[0]
	for n := range answering(snap, r) {
		if len(all) == maxNodes {
			break
		}
		all = append(all, &v1.RouteNode{Node: n.GetMetadata().GetName(), Addresses: addressesOf(snap, n), Problem: problemOf(n, main, live)})
	}
	return all
}

// answering yields the nodes that should answer for a route by name: they are online, and the ingress and the route both
// select them.
func answering(snap *state.Snapshot, r *v1.Route) iter.Seq[*v1.Node] {
	return func(yield func(*v1.Node) bool) {
		var selectors []spec.Selector
		for _, text := range selectorsOf(snap, r) {
			s, err := spec.ParseSelector(text)
			if err != nil {
				return // it was refused when it was written
			}
			selectors = append(selectors, s)
		}
		for n := range snap.Nodes("") {
			chosen := online(n)
			for _, s := range selectors {
				chosen = chosen && s.Matches(spec.NodeLabels(n))
			}
			if chosen && !yield(n) {
				return
			}
		}
	}
}

// selectorsOf are the selectors of the ingress and of a route, as far as there are any.
func selectorsOf(snap *state.Snapshot, r *v1.Route) []string {
	all := []string{snap.Cluster().GetSpec().GetIngress().GetNodes(), r.GetSpec().GetNodes()}
	return slices.DeleteFunc(all, func(text string) bool { return text == "" })
}

func online(n *v1.Node) bool {
	switch n.GetStatus().GetState() {
	case spec.NodeReady, spec.NodeDraining, spec.NodeCordoned:
		return true
	}
	return false
}

func problemOf(n *v1.Node, p port, live Live) string {
	if live == nil {
		return unknown
	}
	problem, known := live.Port(n.GetMetadata().GetUid(), p.protocol, p.number)
	if !known {
		return unknown
	}
	return problem
}

// addressesOf are the addresses at which clients may reach a node, IPv4 first: public ones, or all if it has none.
func addressesOf(snap *state.Snapshot, n *v1.Node) []string {
	var public, private []netip.Addr
	own := ownRanges(snap, n)
	for _, link := range n.GetStatus().GetInterfaces() {
		for _, text := range link.GetAddresses() {
			p, err := netip.ParsePrefix(text)
			a := p.Addr().Unmap()
			switch {
			case err != nil || !link.GetUp() || !a.IsGlobalUnicast() || slices.ContainsFunc(own, func(r netip.Prefix) bool { return r.Contains(a) }):
			case isPrivate(a):
				private = append(private, a)
			default:
				public = append(public, a)
			}
		}
	}
	if len(public) == 0 { // behind a NAT
		for _, candidate := range n.GetStatus().GetMesh().GetCandidates() {
			if at, err := netip.ParseAddrPort(candidate); err == nil && at.Addr().IsGlobalUnicast() && !isPrivate(at.Addr().Unmap()) {
				public = append(public, at.Addr().Unmap())
			}
		}
		public = append(public, private...)
	}
	slices.SortStableFunc(public, func(a, b netip.Addr) int { return cmp.Compare(a.BitLen(), b.BitLen()) })
	var all []string
	for _, a := range public {
		if text := a.String(); !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// carrierRange is what providers use between their customers and the internet.
var carrierRange = netip.MustParsePrefix("100.64.0.0/10")

func isPrivate(a netip.Addr) bool { return a.IsPrivate() || carrierRange.Contains(a) }

// ownRanges are the ranges of the cluster's own network, which clients cannot reach.
func ownRanges(snap *state.Snapshot, n *v1.Node) []netip.Prefix {
	v4, v6 := spec.ServiceRanges(snap.Cluster().GetSpec())
	all := []netip.Prefix{v4, v6}
	for _, text := range []string{n.GetSpec().GetSubnetV4(), n.GetSpec().GetSubnetV6()} {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p)
		}
	}
	return slices.DeleteFunc(all, func(p netip.Prefix) bool { return !p.IsValid() })
}

// urlOf is the address of a route for people. That of a port is at the first node that answers.
func urlOf(c *v1.ClusterSpec, s *v1.RouteSpec, nodes []*v1.RouteNode) string {
	http, https := spec.IngressPorts(c)
	scheme, host, number, usual := "http", s.GetHost(), http, int32(spec.DefaultHTTPPort)
	switch {
	case s.GetTcp() != 0:
		scheme, host, number, usual = "tcp", firstAddress(nodes), s.GetTcp(), 0
	case s.GetUdp() != 0:
		scheme, host, number, usual = "udp", firstAddress(nodes), s.GetUdp(), 0
	case spec.RouteTLS(s) != spec.TLSOff:
		scheme, number, usual = "https", https, spec.DefaultHTTPSPort
	}
	if number != usual {
		host = net.JoinHostPort(host, strconv.Itoa(int(number)))
	}
	return scheme + "://" + host + strings.TrimSuffix(spec.RoutePath(s), "/")
}

func firstAddress(nodes []*v1.RouteNode) string {
	for _, answers := range []bool{true, false} {
		for _, n := range nodes {
			if len(n.GetAddresses()) > 0 && (n.GetProblem() == "") == answers {
				return n.GetAddresses()[0]
			}
		}
	}
	return "NODE"
}

// backendsOf counts what takes the requests of a route, and says what is wrong with its backends.
func backendsOf(snap *state.Snapshot, r *v1.Route) (ready int32, reason string) {
	namespace := r.GetMetadata().GetNamespace()
	counted := map[string]bool{}
	for _, b := range r.GetSpec().GetBackends() {
		if stored(b) {
			if b.GetBucket() != nil && snap.BucketByName(namespace, b.GetBucket().GetName()) == nil {
				reason = cmp.Or(reason, noBucket(b)+in(namespace))
			} else if b.GetWeight() > 0 {
				ready++
			}
			continue
		}
		s := snap.ServiceByName(namespace, b.GetService())
		if words := backendProblem(s, b, r.GetSpec().GetUdp() != 0); words != "" {
			reason = cmp.Or(reason, words+in(namespace))
			continue
		}
		if b.GetWeight() == 0 || counted[b.GetService()] {
			continue
		}
		counted[b.GetService()] = true
		endpoints := services.Endpoints(snap, s)
		usable := services.Usable(endpoints)
		ready += int32(len(usable))
		if len(usable) == 0 && !wakes(snap, s) {
			reason = cmp.Or(reason, fmt.Sprintf("service %s: %s", b.GetService(), services.Reason(snap, s, endpoints)))
		}
	}
	return ready, reason
}

// stored reports whether the object store answers for a backend.
func stored(b *v1.RouteBackend) bool { return b.GetBucket() != nil || b.GetS3() }

func noBucket(b *v1.RouteBackend) string {
	name := b.GetBucket().GetName()
	return fmt.Sprintf("bucket %s does not exist: make it with: cloudless bucket create %s", name, name)
}

func in(namespace string) string {
	if namespace == spec.DefaultNamespace {
		return ""
	}
	return " (in namespace " + namespace + ")"
}

// backendProblem says why no request can go to a backend whose service this is.
func backendProblem(s *v1.Service, b *v1.RouteBackend, udp bool) string {
	if s == nil {
		return fmt.Sprintf("service %s does not exist: run a workload of that name with a port, or apply a service", b.GetService())
	}
	protocol := "tcp"
	if udp {
		protocol = "udp"
	}
	var numbers []string
	for _, p := range s.GetSpec().GetPorts() {
		if cmp.Or(p.GetProtocol(), "tcp") != protocol {
			continue
		}
		if p.GetPort() == b.GetPort() {
			return ""
		}
		numbers = append(numbers, strconv.Itoa(int(p.GetPort())))
	}
	kind := strings.ToUpper(protocol)
	switch {
	case len(numbers) == 0:
		return fmt.Sprintf("service %s has no %s port", b.GetService(), kind)
	case b.GetPort() == 0 && len(numbers) == 1:
		return ""
	case b.GetPort() == 0:
		return fmt.Sprintf("service %s has the %s ports %s: say which one the route leads to", b.GetService(), kind, strings.Join(numbers, ", "))
	}
	return fmt.Sprintf("service %s has no %s port %d; it has %s", b.GetService(), kind, b.GetPort(), strings.Join(numbers, ", "))
}

// Unmet says what is wrong with the backends of a route that is about to be written. found returns the service with a name
// as the transaction leaves it; coming reports whether one is about to be made, and bucket whether there is such a bucket.
func Unmet(r *v1.Route, found func(name string) *v1.Service, coming, bucket func(name string) bool) (warnings []string) {
	for _, b := range r.GetSpec().GetBackends() {
		if stored(b) {
			if b.GetBucket() != nil && !bucket(b.GetBucket().GetName()) {
				warnings = append(warnings, noBucket(b))
			}
			continue
		}
		s := found(b.GetService())
		if s == nil && coming(b.GetService()) {
			continue
		}
		if words := backendProblem(s, b, r.GetSpec().GetUdp() != 0); words != "" && !slices.Contains(warnings, words) {
			warnings = append(warnings, words)
		}
	}
	return warnings
}

// wakes reports whether a service has no replicas because it sleeps until a request comes.
func wakes(snap *state.Snapshot, s *v1.Service) bool {
	for w := range services.Workloads(snap, s) {
		if spec.Asleep(w) {
			return true
		}
	}
	return false
}

// certificateReason says why a route has no valid certificate.
func certificateReason(snap *state.Snapshot, r *v1.Route) string {
	name := CertificateOf(r)
	if name == "" {
		return ""
	}
	c := snap.CertificateByName(r.GetMetadata().GetNamespace(), name)
	own := spec.RouteTLS(r.GetSpec()) == spec.TLSOwn
	problem := c.GetStatus().GetProblem()
	switch {
	case c == nil && own:
		return fmt.Sprintf("certificate %s does not exist; add it with: %s", name, spec.Hint(r.GetMetadata().GetNamespace(), "cloudless certificate add "+name+" --cert FILE --key FILE"))
	case own && !Secures(c, r):
		return fmt.Sprintf("certificate %s is for %s and not for %s", name, strings.Join(c.GetSpec().GetHosts(), ", "), r.GetSpec().GetHost())
	case c.GetStatus().GetState() == "expired":
		return fmt.Sprintf("certificate %s has expired%s", name, because(problem))
	case c.GetStatus().GetFingerprint() != "" || c.GetStatus().GetState() == "ready":
		return "" // an old certificate serves while a new one is not there
	}
	return fmt.Sprintf("certificate %s is not there yet%s", name, because(problem))
}

func because(problem string) string {
	if problem == "" {
		return ""
	}
	return ": " + problem
}

// Secures reports whether a certificate is for the host of a route. One for a TCP port may be for any.
func Secures(c *v1.Certificate, r *v1.Route) bool {
	return r.GetSpec().GetHost() == "" || slices.ContainsFunc(c.GetSpec().GetHosts(), func(host string) bool { return spec.HostCovers(host, r.GetSpec().GetHost()) })
}

// nodesReason says why no node answers for a route.
func nodesReason(snap *state.Snapshot, r *v1.Route, nodes []*v1.RouteNode) string {
	if len(nodes) == 0 {
		selectors := selectorsOf(snap, r)
		if len(selectors) == 0 {
			return "no node answers for it, because none is online"
		}
		return "no node answers for it: no node with " + strings.Join(selectors, " and ") + " is online; label one, or change the selector"
	}
	for _, n := range nodes {
		if n.GetProblem() == "" {
			return ""
		}
	}
	return fmt.Sprintf("no node answers for it; of node %s: %s", nodes[0].GetNode(), nodes[0].GetProblem())
}

// plainReason says on which node plain requests of a route with TLS get no answer, not even the redirect.
func plainReason(snap *state.Snapshot, r *v1.Route, live Live) string {
	needs := portsOf(snap.Cluster().GetSpec(), r.GetSpec())
	if live == nil || len(needs) < 2 {
		return ""
	}
	for n := range answering(snap, r) {
		if problem, known := live.Port(n.GetMetadata().GetUid(), needs[1].protocol, needs[1].number); known && problem != "" {
			return fmt.Sprintf("node %s does not answer plain HTTP: %s", n.GetMetadata().GetName(), problem)
		}
	}
	return ""
}

// StatusAffected returns the uids of the routes that may look different after some changes, which led to the snapshot. A deleted
// route is among them.
func StatusAffected(snap *state.Snapshot, changes []state.Change) map[string]bool {
	touched, all := map[string]bool{}, false
	named := map[string]bool{}  // services, by namespace and name
	filled := map[string]bool{} // buckets, likewise
	proofs := map[string]bool{} // certificates, likewise
	for _, c := range changes {
		for _, o := range []state.Object{c.Old, c.New} {
			switch o := o.(type) {
			case *v1.Route:
				touched[o.GetMetadata().GetUid()] = true
			case *v1.Certificate:
				proofs[state.Path(o)] = true
			case *v1.Service:
				named[state.Path(o)] = true
			case *v1.Bucket:
				filled[state.Path(o)] = true
			case *v1.Cluster:
				all = true
			case *v1.Node:
				all = all || looksDifferent(c)
			}
		}
	}
	for uid := range services.Affected(snap, changes) {
		if s := snap.Service(uid); s != nil {
			named[state.Path(s)] = true
		}
	}
	if !all && len(named)+len(filled)+len(proofs) == 0 {
		return touched
	}
	for r := range snap.Routes("", "") {
		namespace := r.GetMetadata().GetNamespace()
		hit := all || proofs[namespace+"/"+CertificateOf(r)] || slices.ContainsFunc(r.GetSpec().GetBackends(), func(b *v1.RouteBackend) bool {
			return named[namespace+"/"+b.GetService()] || filled[namespace+"/"+b.GetBucket().GetName()]
		})
		if hit {
			touched[r.GetMetadata().GetUid()] = true
		}
	}
	return touched
}

// looksDifferent reports whether routes show something of a changed node differently.
func looksDifferent(c state.Change) bool {
	before, _ := c.Old.(*v1.Node)
	after, _ := c.New.(*v1.Node)
	if before == nil || after == nil || online(before) != online(after) || !maps.Equal(spec.NodeLabels(before), spec.NodeLabels(after)) {
		return true
	}
	return !slices.Equal(linksOf(before), linksOf(after))
}

// linksOf are all addresses of a node in one list.
func linksOf(n *v1.Node) (all []string) {
	for _, link := range n.GetStatus().GetInterfaces() {
		if link.GetUp() {
			all = append(all, link.GetAddresses()...)
		}
	}
	return append(all, n.GetStatus().GetMesh().GetCandidates()...)
}
