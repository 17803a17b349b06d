package agent

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// status is the node's current status: the machine, and what the agent adds to it.
func (a *Agent) status() (*v1.NodeStatus, error) {
	status, err := a.machine.Status()
	if err != nil {
		return nil, err
	}
	status.Conditions = append([]*v1.Condition{a.readiness.condition()}, status.GetConditions()...)
	a.reachable.judge(a.network, status.Conditions)
	if clock := a.clock.condition(); clock != nil {
		status.Conditions = append(status.Conditions, clock)
	}
	status.Mesh = a.meshState.status()
	for name, d := range a.drivers {
		can := d.Capabilities()
		status.Drivers = append(status.Drivers, &v1.DriverInfo{Name: name, Version: can.Version, Missing: can.Missing})
	}
	slices.SortFunc(status.Drivers, func(x, y *v1.DriverInfo) int { return cmp.Compare(x.GetName(), y.GetName()) })
	return status, nil
}

// sameButUsage reports whether only measurements differ.
func sameButUsage(a, b *v1.NodeStatus) bool {
	return proto.Equal(withoutUsage(a), withoutUsage(b))
}

func withoutUsage(status *v1.NodeStatus) *v1.NodeStatus {
	return &v1.NodeStatus{
		Conditions: status.GetConditions(),
		Capacity:   status.GetCapacity(),
		Interfaces: status.GetInterfaces(),
		Info:       status.GetInfo(),
		Drivers:    status.GetDrivers(),
		Gpus:       status.GetGpus(),
		Mesh:       status.GetMesh(),
	}
}
