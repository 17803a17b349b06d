package spec

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// KindServiceObject is the kind of a v1.Service, and KindEndpoint that of a v1.Endpoint.
const (
	KindServiceObject = "Service"
	KindEndpoint      = "Endpoint"
)

// MaxFollowed is how many namespaces a node may follow because its own programs look up their services.
const MaxFollowed = 256

// The states of an endpoint.
const (
	EndpointReady    = "ready"    // takes new connections
	EndpointDraining = "draining" // leaves soon: takes new connections only if no other endpoint is ready
	EndpointUnready  = "unready"
)

// Where an endpoint comes from.
const (
	SourceReplica    = "replica"
	SourceExternal   = "external"
	SourceRegistered = "registered"
)

// The settings of a balancer.
const (
	AffinityNone    = "none"
	AffinityClient  = "client"
	LocalityPrefer  = "prefer"
	LocalityNone    = "none"
	defaultAffinity = "10m"

	minAffinity, maxAffinity = time.Second, 24 * time.Hour
)

// ServiceDomain is the domain of all services.
const ServiceDomain = "cloudless.internal"

// ServiceName is the full name by which replicas reach a service.
func ServiceName(namespace, name string) string { return name + "." + namespace + "." + ServiceDomain }

// HasService reports whether a workload has a service of its own: it runs until it is stopped, and has ports.
func HasService(s *v1.WorkloadSpec) bool {
	return len(s.GetPorts()) > 0 && (KindOf(s) == kindService || s.GetKind() == KindDaemon)
}

// IsImplicit reports whether a service stands for a workload. A user has not applied it.
func IsImplicit(s *v1.Service) bool { return s.GetStatus().GetWorkloadUid() != "" }

func init() {
	checkObjects(checkService)
	checkObjects(func(b *v1.Balancer, found *violations) { checkBalancer("balancer", b, found) })
}

// checkService checks what the API's rules cannot express.
func checkService(s *v1.Service, found *violations) {
	if s.GetMetadata().GetName() == "" && !found.has("metadata.name") {
		found.add("metadata.name", "is missing")
	}
	checkServicePorts(s.GetSpec().GetPorts(), found)
	checkBalancer("spec.balancer", s.GetSpec().GetBalancer(), found)
	names := map[string]bool{}
	for i, e := range s.GetSpec().GetExternal() {
		path := indexPath("spec.external", i)
		if name := externalName(e, i); names[name] {
			found.add(path+".name", "%q is the name of another external endpoint; names must differ", name)
		} else {
			names[name] = true
		}
		if _, problem := EndpointAddresses(e.GetAddresses()); problem != "" && !found.has(path+".addresses") {
			found.add(path+".addresses", "%s", problem)
		}
	}
}

func checkServicePorts(ports []*v1.ServicePort, found *violations) {
	if len(ports) == 0 && !found.has("spec.ports") {
		found.add("spec.ports", "is missing: a service needs at least one port, such as {port: 80}")
	}
	numbers, names := map[string]int{}, map[string]int{}
	for i, p := range ports {
		path := indexPath("spec.ports", i)
		protocol := p.GetProtocol()
		fill(&protocol, defaultProtocol)
		key := fmt.Sprintf("%d/%s", p.GetPort(), protocol)
		if first, taken := numbers[key]; taken {
			found.add(path+".port", "%s is the port of %s too; every port of a service is given once", key, indexPath("spec.ports", first))
		}
		numbers[key] = i
		first, taken := names[p.GetName()]
		switch {
		case p.GetName() == "" && len(ports) > 1:
			found.add(path+".name", "is missing: the ports of a service with several ports have names, such as http")
		case taken:
			found.add(path+".name", "is the name of %s too; names of ports must differ", indexPath("spec.ports", first))
		}
		names[p.GetName()] = i
	}
}

// AffinityTimeout is how long the endpoint of a client is remembered; 0 if it is not.
func AffinityTimeout(b *v1.Balancer) time.Duration {
	if b.GetAffinity() != AffinityClient {
		return 0
	}
	timeout, err := ParseDuration(cmp.Or(b.GetAffinityTimeout(), defaultAffinity))
	if err != nil {
		return minAffinity // validation refuses such a timeout
	}
	return timeout
}

func checkBalancer(path string, b *v1.Balancer, found *violations) {
	if b.GetAffinityTimeout() == "" {
		return
	}
	if b.GetAffinity() != AffinityClient {
		found.add(path+".affinityTimeout", "is only for affinity client; set affinity: client, or leave it out")
		return
	}
	within(path+".affinityTimeout", b.GetAffinityTimeout(), minAffinity, maxAffinity, found)
}

// EndpointAddresses returns the addresses of an endpoint in canonical form, IPv4 first, or says what is wrong with them.
func EndpointAddresses(given []string) (addresses []string, problem string) {
	if len(given) == 0 {
		return nil, "is missing: give an IPv4 address, an IPv6 address or one of each"
	}
	var v4, v6 string
	for _, text := range given {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			return nil, fmt.Sprintf("%q is not an IP address such as 192.0.2.7 or 2001:db8::7", text)
		}
		a = a.Unmap()
		if !a.IsGlobalUnicast() {
			return nil, fmt.Sprintf("%s is not reachable from other machines; give an address that all nodes can reach", a)
		}
		family := &v6
		if a.Is4() {
			family = &v4
		}
		if *family != "" {
			return nil, fmt.Sprintf("%s and %s are of the same family; register one endpoint for each", *family, a)
		}
		*family = a.String()
	}
	for _, a := range []string{v4, v6} {
		if a != "" {
			addresses = append(addresses, a)
		}
	}
	return addresses, ""
}

func externalName(e *v1.ExternalEndpoint, index int) string {
	if e.GetName() != "" {
		return e.GetName()
	}
	return fmt.Sprintf("external-%d", index+1)
}

// NormalizeService brings a service to its canonical form in place: it fills in defaults and writes values in one way.
func NormalizeService(s *v1.Service) {
	if s.Spec == nil {
		s.Spec = &v1.ServiceSpec{}
	}
	for _, p := range s.Spec.Ports {
		fill(&p.Protocol, defaultProtocol)
		if p.TargetPort == 0 {
			p.TargetPort = p.Port
		}
	}
	for i, e := range s.Spec.External {
		e.Name = externalName(e, i)
		if addresses, problem := EndpointAddresses(e.Addresses); problem == "" {
			e.Addresses = addresses
		}
		e.Weight = max(e.Weight, 1)
	}
	if s.Spec.Balancer == nil {
		s.Spec.Balancer = &v1.Balancer{}
	}
	NormalizeBalancer(s.Spec.Balancer)
}

// NormalizeBalancer fills in the defaults of a balancer.
func NormalizeBalancer(b *v1.Balancer) {
	fill(&b.Affinity, AffinityNone)
	fill(&b.Locality, LocalityPrefer)
	if b.Affinity == AffinityClient {
		normalDuration(&b.AffinityTimeout, defaultAffinity)
	}
}

// The smallest ranges for services, and the bits of the default ranges.
const (
	minServiceBits4, minServiceBits6         = 28, 124
	defaultServiceBits4, defaultServiceBits6 = 16, 112
)

// ServiceRanges are the ranges that services get their addresses from. A configuration that names none, because it is
// from an older release, has the default ranges. Both are invalid if the cluster has no ranges at all.
func ServiceRanges(c *v1.ClusterSpec) (v4, v6 netip.Prefix) {
	nodes4, _ := netip.ParsePrefix(c.GetRangeV4())
	nodes6, _ := netip.ParsePrefix(c.GetRangeV6())
	v4, v6 = DefaultServiceRanges(nodes4, nodes6, nil)
	if p, err := netip.ParsePrefix(c.GetServiceRangeV4()); err == nil {
		v4 = p
	}
	if p, err := netip.ParsePrefix(c.GetServiceRangeV6()); err == nil {
		v6 = p
	}
	return v4, v6
}

// DefaultServiceRanges are the ranges for services beside the ranges of nodes. The IPv4 range is 10.128.0.0/16 or, if
// that is not free, another /16 of 10.0.0.0/8 that overlaps neither the nodes' range nor a used network. The IPv6 range
// is the end of the nodes' range: nodes get the subnets at its beginning.
func DefaultServiceRanges(nodes4, nodes6 netip.Prefix, used []netip.Prefix) (v4, v6 netip.Prefix) {
	return defaultServiceRange4(nodes4, used), defaultServiceRange6(nodes6)
}

func defaultServiceRange4(nodes netip.Prefix, used []netip.Prefix) netip.Prefix {
	if !nodes.IsValid() {
		return netip.Prefix{}
	}
	for _, avoided := range [][]netip.Prefix{used, nil} { // a used network is still better than none
		for i := range 256 {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(128 + i)}), defaultServiceBits4)
			if !p.Overlaps(nodes) && !overlapsAny(p, avoided) {
				return p
			}
		}
	}
	return netip.MustParsePrefix("172.31.0.0/16") // the nodes have all of 10.0.0.0/8
}

func overlapsAny(p netip.Prefix, others []netip.Prefix) bool {
	for _, o := range others {
		if p.Overlaps(o) {
			return true
		}
	}
	return false
}

// defaultServiceRange6 is in the last /64 of a range. If the range has only one, a node has it: then it is in the /64
// beside the range.
func defaultServiceRange6(nodes netip.Prefix) netip.Prefix {
	if !nodes.IsValid() || nodes.Bits() > nodeBits6 {
		return netip.Prefix{}
	}
	bytes := nodes.Masked().Addr().As16()
	for i := nodes.Bits(); i < nodeBits6; i++ {
		bytes[i/8] |= 1 << (7 - i%8)
	}
	if nodes.Bits() == nodeBits6 {
		bytes[7] ^= 1
	}
	return netip.PrefixFrom(netip.AddrFrom16(bytes), defaultServiceBits6)
}

// checkServiceRanges refuses ranges that services cannot use, as far as the settings alone show it.
func checkServiceRanges(s *v1.ClusterSpec, found *violations) {
	v4, v6 := ServiceRanges(s)
	for _, r := range []struct {
		field, text, nodesField, nodes string
		all                            netip.Prefix
		private                        []netip.Prefix
		minBits                        int
	}{
		{"serviceRangeV4", s.GetServiceRangeV4(), "rangeV4", s.GetRangeV4(), v4, private4, minServiceBits4},
		{"serviceRangeV6", s.GetServiceRangeV6(), "rangeV6", s.GetRangeV6(), v6, private6, minServiceBits6},
	} {
		path := clusterPath + "." + r.field
		if r.text == "" || found.has(path) {
			continue
		}
		nodes, err := netip.ParsePrefix(r.nodes)
		switch {
		case !isWithin(r.all, r.private):
			found.add(path, "must be a range of private addresses, within %s: others would lose what they have at %s", joined(r.private), r.all)
		case r.all.Bits() > r.minBits:
			found.add(path, "is too small: every service needs an address of it, so give a /%d or a larger range", r.minBits)
		case err == nil && r.all.Overlaps(nodes) && !reservedBeside(r.all, nodes):
			found.add(path, "overlaps %s (%s), the range of the nodes: give a range outside of it, such as %s", r.nodesField, nodes, suggestedBeside(nodes))
		}
	}
}

// reservedBeside reports whether a range of IPv6 addresses is in the last subnet of the nodes' range, which no node gets.
func reservedBeside(services, nodes netip.Prefix) bool {
	last := defaultServiceRange6(nodes)
	return nodes.Addr().Is6() && last.IsValid() && services.Bits() >= nodeBits6 && netip.PrefixFrom(last.Addr(), nodeBits6).Masked().Contains(services.Addr())
}

func suggestedBeside(nodes netip.Prefix) netip.Prefix {
	if nodes.Addr().Is4() {
		return defaultServiceRange4(nodes, nil)
	}
	return defaultServiceRange6(nodes)
}

func isWithin(p netip.Prefix, wider []netip.Prefix) bool {
	for _, all := range wider {
		if all.Bits() <= p.Bits() && all.Contains(p.Addr()) {
			return true
		}
	}
	return false
}

func joined(all []netip.Prefix) string {
	var texts []string
	for _, p := range all {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ", ")
}
