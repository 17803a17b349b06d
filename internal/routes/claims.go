package routes

import (
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/services"
	"github.com/cloudless/cloudless/internal/spec"
)

// Conflict says why a route cannot be beside another one: they would answer for the same, or a host belongs to another
// namespace. Field is that of the route. Both are empty if they can.
func Conflict(r, other *v1.Route) (field, words string) {
	if r.GetMetadata().GetUid() == other.GetMetadata().GetUid() {
		return "", ""
	}
	s, o := r.GetSpec(), other.GetSpec()
	switch {
	case s.GetTcp() != 0 && s.GetTcp() == o.GetTcp():
		return "spec.tcp", fmt.Sprintf("%d is the port of %s already; choose another", s.GetTcp(), seenFrom(r, other))
	case s.GetUdp() != 0 && s.GetUdp() == o.GetUdp():
		return "spec.udp", fmt.Sprintf("%d is the port of %s already; choose another", s.GetUdp(), seenFrom(r, other))
	case s.GetHost() == "" || o.GetHost() == "" || !spec.HostsOverlap(s.GetHost(), o.GetHost()):
		return "", ""
	case !sameNamespace(r, other):
		return "spec.host", fmt.Sprintf("%s belongs to namespace %s, because a host belongs to the namespace of its first route; choose another host, or make the route in that namespace",
			s.GetHost(), other.GetMetadata().GetNamespace())
	case s.GetHost() != o.GetHost():
		return "", "" // the more specific host counts
	case spec.RoutePath(s) == spec.RoutePath(o):
		field = "spec.host"
		if spec.RoutePath(s) != "/" {
			field = "spec.path"
		}
		name := other.GetMetadata().GetName()
		return field, fmt.Sprintf("%s leads to route %s already; change that one with: %s; or give another path",
			spec.RouteTitle(s), name, spec.Hint(r.GetMetadata().GetNamespace(), "cloudless route edit "+name))
	}
	return otherCertificate(r, other)
}

// otherCertificate says that two routes of a host name two certificates. The client says only the host before it gets one.
func otherCertificate(r, other *v1.Route) (field, words string) {
	mode, theirs := spec.RouteTLS(r.GetSpec()), spec.RouteTLS(other.GetSpec())
	switch name := other.GetMetadata().GetName(); {
	case mode == spec.TLSOff || theirs == spec.TLSOff:
		return "", ""
	case mode != theirs:
		return "spec.tls.mode", fmt.Sprintf("must be %s, as that of route %s: a host has one certificate for all its paths; to change it, apply all routes of %s together",
			theirs, name, r.GetSpec().GetHost())
	case CertificateOf(r) != CertificateOf(other):
		return "spec.tls.certificate", fmt.Sprintf("must be %s, as that of route %s: a host has one certificate for all its paths; to change it, apply all routes of %s together",
			CertificateOf(other), name, r.GetSpec().GetHost())
	}
	return "", ""
}

func sameNamespace(a, b *v1.Route) bool {
	return a.GetMetadata().GetNamespace() == b.GetMetadata().GetNamespace()
}

// seenFrom names another route. The names of a namespace are not told to others.
func seenFrom(r, other *v1.Route) string {
	if sameNamespace(r, other) {
		return "route " + other.GetMetadata().GetName()
	}
	return "a route in namespace " + other.GetMetadata().GetNamespace()
}

// ClaimsAnew reports whether a route claims a host, a path, a port or a certificate that it did not have before.
func ClaimsAnew(before, now *v1.Route) bool {
	return before == nil || !proto.Equal(claimOf(before), claimOf(now))
}

func claimOf(r *v1.Route) *v1.RouteSpec {
	s := r.GetSpec()
	return &v1.RouteSpec{Host: s.GetHost(), Path: s.GetPath(), Tcp: s.GetTcp(), Udp: s.GetUdp(), Tls: s.GetTls()}
}

// port is a port of a node that a route needs.
type port struct {
	field    string
	protocol string
	number   int32
}

// portsOf are the ports that a route needs on the nodes that answer for it.
func portsOf(c *v1.ClusterSpec, s *v1.RouteSpec) []port {
	http, https := spec.IngressPorts(c)
	switch {
	case s.GetTcp() != 0:
		return []port{{"spec.tcp", "tcp", s.GetTcp()}}
	case s.GetUdp() != 0:
		return []port{{"spec.udp", "udp", s.GetUdp()}}
	case spec.RouteTLS(s) == spec.TLSOff:
		return []port{{"spec.host", "tcp", http}}
	}
	return []port{{"spec.host", "tcp", https}, {"spec.host", "tcp", http}}
}

// Reserved says why no route can have a TCP or UDP port: the cluster itself uses it. taken are the ports of the API.
func Reserved(c *v1.ClusterSpec, s *v1.RouteSpec, taken func(port int32) bool) (field, words string) {
	if s.GetTcp() == 0 {
		return "", ""
	}
	http, https := spec.IngressPorts(c)
	switch p := s.GetTcp(); {
	case taken(p):
		return "spec.tcp", fmt.Sprintf("%d is the port of the cluster's API; choose another", p)
	case p == http || p == https:
		return "spec.tcp", fmt.Sprintf("%d is the port at which nodes answer for routes with a host; choose another, or give the route a host", p)
	}
	return "", ""
}

// Published says why a route cannot have its ports, because a workload publishes one of them on the nodes.
func Published(c *v1.ClusterSpec, r *v1.Route, w *v1.Workload) (field, words string) {
	for _, need := range portsOf(c, r.GetSpec()) {
		if p := publishes(w, need); p != nil {
			return need.field, fmt.Sprintf("needs port %d/%s of the nodes, which workload %s in namespace %s publishes: take the port out of that workload%s",
				need.number, need.protocol, w.GetMetadata().GetName(), w.GetMetadata().GetNamespace(), otherwise(need))
		}
	}
	return "", ""
}

func otherwise(need port) string {
	if need.field == "spec.host" {
		return ", or change ingress.httpPort and ingress.httpsPort of the cluster"
	}
	return ", or choose another port"
}

// TakenBy says why a workload cannot publish a port, because a route has it. Index is that of the port in the workload's spec;
// -1 if no route has one.
func TakenBy(c *v1.ClusterSpec, w *v1.Workload, r *v1.Route) (index int, words string) {
	for _, need := range portsOf(c, r.GetSpec()) {
		p := publishes(w, need)
		if p == nil {
			continue
		}
		what := "is the port of a route"
		if need.field == "spec.host" {
			what = "is the port at which nodes answer for routes with a host, such as one"
		}
		return slices.Index(w.GetSpec().GetPorts(), p), fmt.Sprintf("%d/%s %s in namespace %s; choose another for workload %s, or lead to it by a route: %s",
			need.number, need.protocol, what, r.GetMetadata().GetNamespace(), w.GetMetadata().GetName(), "cloudless route add --help")
	}
	return -1, ""
}

// publishes returns the port of a workload that every node would answer on. Those of publishMode host are only on some nodes,
// which report it.
func publishes(w *v1.Workload, need port) *v1.Port {
	for _, p := range services.PublishedPorts(w) {
		if p.GetPublish() == need.number && cmp.Or(p.GetProtocol(), "tcp") == need.protocol {
			return p
		}
	}
	return nil
}
