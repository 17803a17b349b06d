package scheduler

import (
	"fmt"
	"maps"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// Resources are amounts of CPU in thousandths and of memory in bytes.
type Resources struct {
	CPU    int64
	Memory int64
}

func (r Resources) plus(o Resources) Resources {
	return Resources{CPU: r.CPU + o.CPU, Memory: r.Memory + o.Memory}
}

// Port is a port of a node's own network.
type Port struct {
	Number   int32
	Protocol string
}

// PortUse is a port and the workload that has it.
type PortUse struct {
	Port
	Workload  string // name
	Namespace string // empty if it is not known
	// Owner is the workload's uid; its replicas share the port if Shared.
	Owner  string
	Shared bool
}

// text is a port with the name of its user.
func (u *PortUse) text() string {
	text := fmt.Sprintf("port %d", u.Number)
	if u.Protocol == "udp" {
		text += "/udp"
	}
	text += " is used by " + u.Workload
	if u.Namespace != "" {
		text += " in namespace " + u.Namespace
	}
	return text
}

// Node is a machine and what has been promised on it.
type Node struct {
	UID    string
	Name   string
	Labels map[string]string
	// Unschedulable says why nothing may be placed here, continuing the name:
	// "is offline: it does not answer". Empty if something may.
	Unschedulable string
	Capacity      Resources
	Requested     Resources
	Drivers       []string
	Ports         []PortUse
	// Replicas counts the replicas on this node by the uid of their workload.
	Replicas map[string]int
}

// NodeFromProto reads a node as it is without replicas; Add puts those on it
// that it has.
func NodeFromProto(n *v1.Node) (Node, error) {
	node := Node{
		UID:           n.GetMetadata().GetUid(),
		Name:          n.GetMetadata().GetName(),
		Labels:        n.GetMetadata().GetLabels(),
		Unschedulable: unschedulable(n.GetStatus()),
	}
	for _, d := range n.GetStatus().GetDrivers() {
		node.Drivers = append(node.Drivers, d.GetName())
	}
	var err error
	node.Capacity, err = amounts(n.GetStatus().GetCapacity().GetCpu(), n.GetStatus().GetCapacity().GetMemory())
	if err != nil {
		return Node{}, fmt.Errorf("read the capacity of node %s: %w", node.Name, err)
	}
	return node, nil
}

// Add accounts for one replica that is on the node.
func (n *Node) Add(workloadUID, workloadName string, r Requirements) {
	n.Requested = n.Requested.plus(r.Resources)
	for _, use := range r.uses(workloadUID, workloadName) {
		n.Ports = addUse(n.Ports, use)
	}
	if n.Replicas == nil {
		n.Replicas = map[string]int{}
	}
	n.Replicas[workloadUID]++
}

// unschedulable says why a node in this state takes no replicas.
func unschedulable(s *v1.NodeStatus) string {
	switch state := s.GetState(); {
	case state == "ready":
		return ""
	case state == "":
		return "has not said yet what it is"
	case s.GetReason() != "":
		return "is " + state + ": " + s.GetReason()
	default:
		return "is " + state
	}
}

// Requirements are what one replica needs of its node.
type Requirements struct {
	Resources Resources
	Labels    map[string]string
	Driver    string
	Ports     []Port
	// SharePorts is whether replicas of one workload on one node share its ports.
	SharePorts bool
	// Namespace is that of the workload, for words about it; it may be empty.
	Namespace string

	owner string // uid of the workload that asks
}

// uses are the ports in the hands of a workload.
func (r *Requirements) uses(uid, name string) []PortUse {
	var list []PortUse
	for _, p := range r.Ports {
		list = append(list, PortUse{Port: p, Workload: name, Namespace: r.Namespace, Owner: uid, Shared: r.SharePorts})
	}
	return list
}

// addUse keeps what replicas share once.
func addUse(list []PortUse, use PortUse) []PortUse {
	if use.Shared && slices.Contains(list, use) {
		return list
	}
	return append(list, use)
}

// RequirementsFromProto reads what a replica of a workload needs. The spec need
// not be normalized.
func RequirementsFromProto(s *v1.WorkloadSpec) (Requirements, error) {
	w := spec.Normalized(s)
	requests := w.GetResources().GetRequests()
	resources, err := amounts(requests.GetCpu(), requests.GetMemory())
	if err != nil {
		return Requirements{}, fmt.Errorf("read the requested resources: %w", err)
	}
	r := Requirements{
		Resources: resources,
		Labels:    maps.Clone(w.GetPlacement().GetLabels()),
		Driver:    w.GetDriver(),
	}
	if w.GetNetwork() == "node" {
		r.SharePorts = true
		for _, p := range w.GetPorts() {
			if p.GetPublish() != 0 {
				r.Ports = append(r.Ports, Port{Number: p.GetPublish(), Protocol: p.GetProtocol()})
			}
		}
		return r, nil
	}
	if w.GetNetwork() != "host" {
		return r, nil
	}
	// In the machine's own network a port is taken by listening, published or not.
	for _, p := range w.GetPorts() {
		for _, number := range []int32{p.GetPort(), p.GetPublish()} {
			port := Port{Number: number, Protocol: p.GetProtocol()}
			if number != 0 && !slices.Contains(r.Ports, port) {
				r.Ports = append(r.Ports, port)
			}
		}
	}
	return r, nil
}

// amounts reads quantities of which each may be missing.
func amounts(cpu, memory string) (r Resources, err error) {
	if cpu != "" {
		if r.CPU, err = spec.ParseCPU(cpu); err != nil {
			return Resources{}, fmt.Errorf("cpu %w", err)
		}
	}
	if memory != "" {
		if r.Memory, err = spec.ParseBytes(memory); err != nil {
			return Resources{}, fmt.Errorf("memory %w", err)
		}
	}
	return r, nil
}
