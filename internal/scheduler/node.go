package scheduler

import v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"

// Node is a machine as the scheduler sees it, without what runs there.
type Node struct {
	UID  string
	Name string
	// Hostname is the machine's own name.
	Hostname string
	// Labels are those that nodes may share: all but its names.
	Labels map[string]string
	// Region and Zone are empty if unknown.
	Region, Zone string
	// Unschedulable says why nothing may be placed here, continuing the name: "is offline:
	// it does not answer". It is empty if the node is schedulable.
	Unschedulable string
	// Away is whether the node is offline. What is promised here does not count against
	// quotas, because it may have to be replaced.
	Away    bool
	Taints  []Taint
	Drivers []string
	// Platform is, for example, "linux/amd64".
	Platform string
	GPUModel string
	// Capacity is what it has, Reserved what the system keeps of it.
	Capacity, Reserved Resources
	// Overcommit is how much of the capacity may be promised, in thousandths; 0 means 1000.
	Overcommit Resources
	// Reliability is in thousandths; battery counts against it.
	Reliability int32
	Battery     bool
	// Price is the operator's, in any unit that is the same for all nodes.
	Price int64
	// Link is the bandwidth of the node's network in bits per second; 0 if unknown.
	Link int64
	// Source is the node that all this was read from, for Needs.Policy. It may be nil.
	Source *v1.Node
}

// Allocatable is what may be promised on a node.
func (n *Node) Allocatable() Resources {
	var all Resources
	for i := range all {
		share := n.Overcommit[i]
		if share <= 0 {
			share = thousandth
		}
		amount := clamp(n.Capacity[i], 0, maxAmount)
		// In two parts, so that nothing overflows.
		all[i] = amount/thousandth*share + amount%thousandth*share/thousandth
		all[i] = max(0, all[i]-max(0, n.Reserved[i]))
	}
	return all
}
