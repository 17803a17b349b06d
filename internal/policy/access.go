package policy

import (
	"fmt"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// BuiltIn is the name of the policy that every cluster has: what a workload may ask of its machine needs a permission,
// unless a policy decides otherwise.
const BuiltIn = "built-in"

// The built-in rules. A policy that enforces a rule of the same name decides instead, except for the profile.
const (
	RuleHostNetwork = "host-network"
	RuleLowPorts    = "low-ports"
	RuleDevices     = "devices"
	RuleProfile     = "profile"
)

// The verb that the built-in rules require, on workloads.
const Privileged = "privileged"

const (
	networkHost       = "host"
	profilePrivileged = "privileged"
	// firstOpenPort is the first port that programs without privileges may listen on.
	firstOpenPort = 1024
)

// Access is something that a workload or a route asks of machines and that does not go without saying.
type Access struct {
	// Rule is the built-in rule about it. ByRoleOnly is whether no policy can allow it.
	Rule       string
	ByRoleOnly bool
	// Field is the path of the field that asks for it, and What it is, in words that continue "must not ".
	Field, What string
	// Otherwise is how to do without it.
	Otherwise string
}

// Accesses are what an object asks of machines and did not ask before. What it has already, it keeps: others can change it
// without a permission, as long as they ask for nothing more.
func Accesses(before, object Object) []Access {
	switch now := object.(type) {
	case *v1.Workload:
		old, _ := before.(*v1.Workload)
		return accessesOf(old.GetSpec(), now.GetSpec())
	case *v1.Route:
		old, _ := before.(*v1.Route)
		return routeAccesses(old.GetSpec(), now.GetSpec())
	}
	return nil
}

func accessesOf(old, now *v1.WorkloadSpec) (all []Access) {
	if now.GetNetwork() == networkHost && old.GetNetwork() != networkHost {
		all = append(all, Access{
			Rule: RuleHostNetwork, Field: "spec.network", What: "be \"host\"",
			Otherwise: "leave spec.network out, and publish the ports that others need",
		})
	}
	for i, p := range now.GetPorts() {
		had := slices.ContainsFunc(old.GetPorts(), func(o *v1.Port) bool {
			return o.GetPublish() == p.GetPublish() && o.GetProtocol() == p.GetProtocol()
		})
		if low(p.GetPublish()) && !had {
			all = append(all, Access{
				Rule: RuleLowPorts, Field: fmt.Sprintf("spec.ports[%d].publish", i), What: fmt.Sprintf("be %d, a port below %d", p.GetPublish(), firstOpenPort),
				Otherwise: "publish a higher port, or make a route",
			})
		}
	}
	security := now.GetSecurity()
	if security.GetProfile() == profilePrivileged && old.GetSecurity().GetProfile() != profilePrivileged {
		all = append(all, Access{
			Rule: RuleProfile, ByRoleOnly: true, Field: "spec.security.profile", What: "be \"privileged\"",
			Otherwise: "use the profile \"default\", and add the capabilities that the program needs",
		})
	}
	for i, device := range security.GetDevices() {
		if !slices.Contains(old.GetSecurity().GetDevices(), device) {
			all = append(all, Access{
				Rule: RuleDevices, Field: fmt.Sprintf("spec.security.devices[%d]", i), What: "be " + device,
				Otherwise: "leave it out",
			})
		}
	}
	return all
}

func routeAccesses(old, now *v1.RouteSpec) (all []Access) {
	for _, port := range []struct {
		field    string
		was, now int32
	}{{"spec.tcp", old.GetTcp(), now.GetTcp()}, {"spec.udp", old.GetUdp(), now.GetUdp()}} {
		if low(port.now) && port.now != port.was {
			all = append(all, Access{
				Rule: RuleLowPorts, Field: port.field, What: fmt.Sprintf("be %d, a port below %d", port.now, firstOpenPort),
				Otherwise: "use a higher port",
			})
		}
	}
	return all
}

func low(port int32) bool { return port > 0 && port < firstOpenPort }

// profiles from the strictest to the one that allows most.
var profiles = []string{"restricted", "default", profilePrivileged}

// Exceeds reports whether a profile allows more than another one. An empty one is "default".
func Exceeds(profile, ceiling string) bool {
	return slices.Index(profiles, or(profile, "default")) > slices.Index(profiles, or(ceiling, "default"))
}
