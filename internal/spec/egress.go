package spec

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// ParseRange reads a range of addresses such as "10.0.0.0/8", or one address.
func ParseRange(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && !a.Is4In6() {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil || p.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("%q is not a range of addresses such as 10.0.0.0/8 or 2001:db8::/32, or one address", text)
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("%s has bits behind its first %d; write %s, or the address alone", text, p.Bits(), p.Masked())
	}
	return p, nil
}

// normalEgress brings egress rules to their canonical form. No rules at all allow nothing, so they stay.
func normalEgress(e *v1.Egress) {
	if e == nil {
		return
	}
	if e.Services != nil && e.GetServices() {
		e.Services = nil
	}
	for _, r := range e.Allow {
		if r == nil {
			continue
		}
		if p, err := ParseRange(r.Cidr); err == nil {
			r.Cidr = p.String()
		}
		r.Name = strings.ToLower(strings.TrimSuffix(r.Name, "."))
		slices.Sort(r.Ports)
		r.Ports = slices.Compact(r.Ports)
	}
}

// egressName is a DNS name, with an optional wildcard for the labels in front.
var egressName = lazyRegexp(`^([*][.])?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?[.])*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$`)

// maxEgressPorts limits the ports of all rules: each one is a rule of the kernel.
const maxEgressPorts = 1024

// checkEgress refuses rules that could not be enforced or make no sense.
func checkEgress(s *v1.WorkloadSpec, found *violations) {
	const path = "spec.egress"
	e := s.GetEgress()
	if e == nil {
		return
	}
	switch s.GetNetwork() {
	case "host":
		found.add(path, "cannot be enforced with network host, where a program has the addresses of the machine; use network node")
		return
	case "none":
		found.add(path, "has no effect with network none, which reaches nothing; leave one of them out")
		return
	}
	ports := 0
	for i, r := range e.GetAllow() {
		at := indexPath(path+".allow", i)
		ports += max(1, len(r.GetPorts()))
		switch cidr, name := r.GetCidr(), r.GetName(); {
		case cidr == "" && name == "":
			found.add(at, "needs a cidr such as 10.0.0.0/8 or a name such as api.example.com; everything is cidr 0.0.0.0/0 and cidr ::/0")
		case cidr != "" && name != "":
			found.add(at, "must have either cidr or name; write two rules to allow both")
		case cidr != "":
			if _, err := ParseRange(cidr); err != nil {
				found.add(at+".cidr", "%v", err)
			}
		default:
			checkEgressName(at+".name", name, found)
		}
	}
	if ports > maxEgressPorts {
		found.add(path+".allow", "has %d ports in all rules together and may have %d; leave ports out where all may be used", ports, maxEgressPorts)
	}
}

func checkEgressName(path, name string, found *violations) {
	switch _, err := netip.ParseAddr(name); {
	case err == nil:
		found.add(path, "%s is an address; write cidr: %s", name, name)
	case name == "*" || name == "*.":
		found.add(path, "%q allows every name; write cidr 0.0.0.0/0 and cidr ::/0 if that is meant", name)
	case strings.Contains(strings.TrimPrefix(name, "*."), "*"):
		found.add(path, "%s may have a * only as its first label, such as *.example.com", name)
	case strings.Trim(name, "0123456789./") == "" || strings.Contains(name, "/"):
		found.add(path, "%s is no DNS name; write a range of addresses as cidr", name)
	case strings.Contains(name, ":"):
		found.add(path, "%s is no DNS name; write ports as ports: [443]", name)
	case !egressName().MatchString(name) || len(name) > 253:
		found.add(path, "%s must be a DNS name such as api.example.com or *.example.com; write other letters as in xn--bcher-kva.example", strconv.Quote(name))
	}
}

// EgressInWords says what a workload's replicas may connect to.
func EgressInWords(e *v1.Egress) string {
	var parts []string
	for _, r := range e.GetAllow() {
		text := r.GetName()
		if text == "" {
			text = r.GetCidr()
		}
		ports := make([]string, 0, len(r.GetPorts()))
		for _, p := range r.GetPorts() {
			ports = append(ports, strconv.Itoa(int(p)))
		}
		switch protocol := r.GetProtocol(); {
		case len(ports) > 0 && protocol != "":
			text += " " + strings.Join(ports, ",") + "/" + protocol
		case len(ports) > 0 || protocol != "":
			text += " " + strings.Join(ports, ",") + protocol
		}
		parts = append(parts, text)
	}
	if e.Services == nil || e.GetServices() {
		parts = append(parts, "services of the cluster")
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, "; ")
}
