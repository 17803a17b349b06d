package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// unknownReliability is that of a node without a score yet.
const unknownReliability = thousandth

// NodeFromProto reads a node. A node with an unreadable report is unschedulable, with the
// reason.
func NodeFromProto(n *v1.Node, policy spec.NodePolicy) Node {
	status := n.GetStatus()
	capacity := status.GetCapacity()
	labels := spec.NodeLabels(n)
	delete(labels, spec.LabelName)
	delete(labels, spec.LabelHostname)
	node := Node{
		UID: n.GetMetadata().GetUid(), Name: n.GetMetadata().GetName(), Hostname: status.GetInfo().GetHostname(),
		Labels: labels, Region: labels[spec.LabelRegion], Zone: labels[spec.LabelZone],
		Unschedulable: unschedulable(status),
		Away:          status.GetState() == spec.NodeOffline,
		GPUModel:      capacity.GetGpuModel(),
		Reliability:   unknownReliability,
		Battery:       status.GetInfo().GetBattery(),
		Price:         n.GetSpec().GetPrice(),
		Source:        n,
		Overcommit: Resources{
			CPU: permille(policy.Overcommit.GetCpu()), Memory: permille(policy.Overcommit.GetMemory()),
			Disk: permille(policy.Overcommit.GetDisk()), Bandwidth: permille(policy.Overcommit.GetBandwidth()),
		},
	}
	if reliability := status.GetReliability(); reliability != nil {
		node.Reliability = reliability.GetScore() * 10 // the score is in hundredths
	}
	if info := status.GetInfo(); info.GetOs() != "" && info.GetArch() != "" {
		node.Platform = info.GetOs() + "/" + info.GetArch()
	}
	for _, d := range status.GetDrivers() {
		node.Drivers = append(node.Drivers, d.GetName())
	}
	for _, t := range n.GetSpec().GetTaints() {
		node.Taints = append(node.Taints, Taint{Key: t.GetKey(), Value: t.GetValue(), Effect: t.GetEffect()})
	}
	var err, kept error
	node.Capacity, err = amounts(&v1.ResourceAmounts{
		Cpu: capacity.GetCpu(), Memory: capacity.GetMemory(), Disk: capacity.GetDisk(), Bandwidth: spec.LinkOf(n),
	})
	node.Capacity[GPU] = max(0, capacity.GetGpu())
	node.Link = node.Capacity[Bandwidth]
	if node.Reserved, kept = amounts(policy.Reserved); err == nil {
		err = kept
	}
	if err != nil {
		node.Unschedulable = "has reported what cannot be understood: " + err.Error()
	}
	return node
}

func permille(percent int32) int64 { return int64(percent) * 10 }

// unschedulable says why a node in this state takes no replicas.
func unschedulable(s *v1.NodeStatus) string {
	switch state := s.GetState(); {
	case state == spec.NodeReady:
		return pressed(s.GetConditions())
	case state == "":
		return "has not said yet what it is"
	case s.GetReason() != "":
		return "is " + state + ": " + s.GetReason()
	default:
		return "is " + state
	}
}

// Pressed reports whether a condition keeps new replicas from a node.
func Pressed(s *v1.NodeStatus) bool { return pressed(s.GetConditions()) != "" }

// pressed says which condition keeps new replicas from a ready node. A node that cannot be
// reached from outside still runs its assignments.
func pressed(conditions []*v1.Condition) string {
	for _, c := range conditions {
		if !c.GetStatus() || !strings.HasSuffix(c.GetType(), "Pressure") {
			continue
		}
		if c.GetReason() != "" {
			return "has " + c.GetType() + ": " + c.GetReason()
		}
		return "has " + c.GetType()
	}
	return ""
}

// RevisionFromProto reads what replicas of a revision need. The spec need not be
// normalized.
func RevisionFromProto(w *v1.Workload, of *v1.Revision) (*Revision, error) {
	s := spec.Normalized(of.GetSpec().GetWorkload())
	r := &Revision{
		UID: of.GetMetadata().GetUid(), Workload: of.GetSpec().GetWorkloadUid(),
		Name: w.GetMetadata().GetName(), Namespace: w.GetMetadata().GetNamespace(), Labels: w.GetMetadata().GetLabels(),
		Priority: int(spec.PriorityOf(w.GetSpec())), MinAvailable: int(w.GetSpec().GetMinAvailable()), // these make no new revision
	}
	var err error
	if r.Needs, err = needs(s); err != nil {
		return nil, err
	}
	r.Needs.Platforms = of.GetSpec().GetPlatforms()
	if r.Preferences, err = preferences(s.GetPlacement()); err != nil {
		return nil, err
	}
	r.Preferences.Weights = WeightsFromProto(w.GetSpec().GetPlacement().GetWeights()) // they make no new revision
	return r, nil
}

func needs(s *v1.WorkloadSpec) (Needs, error) {
	resources, err := amounts(s.GetResources().GetRequests())
	if err != nil {
		return Needs{}, fmt.Errorf("read the requested resources: %w", err)
	}
	resources[GPU] = int64(max(0, s.GetResources().GetGpu().GetCount()))
	placement := s.GetPlacement()
	n := Needs{
		Resources: resources, GPUModel: s.GetResources().GetGpu().GetModel(), Driver: s.GetDriver(),
		Sandbox: s.GetSandbox(), UserNamespace: s.GetSecurity().GetUserNamespace(),
		Regions: placement.GetRegions(), Zones: placement.GetZones(),
	}
	for _, key := range slices.Sorted(maps.Keys(placement.GetLabels())) {
		rule, err := NewRule(key, OpIn, placement.GetLabels()[key])
		if err != nil {
			return Needs{}, err
		}
		n.Rules = append(n.Rules, rule)
	}
	for _, one := range placement.GetRequire() {
		rule, err := NewRule(one.GetKey(), one.GetOperator(), one.GetValues()...)
		if err != nil {
			return Needs{}, fmt.Errorf("read a rule of the placement: %w", err)
		}
		n.Rules = append(n.Rules, rule)
	}
	for _, t := range placement.GetTolerations() {
		n.Tolerations = append(n.Tolerations, Toleration{Key: t.GetKey(), Value: t.GetValue(), Effect: t.GetEffect(), Seconds: t.GetSeconds()})
	}
	n.Ports, n.SharePorts = portsOf(s)
	return n, nil
}

// portsOf are the node's ports that a replica needs, and whether replicas of the workload
// share them.
func portsOf(s *v1.WorkloadSpec) (ports []Port, shared bool) {
	switch s.GetNetwork() {
	case "node":
		for _, p := range s.GetPorts() {
			if p.GetPublish() != 0 {
				ports = append(ports, Port{Number: p.GetPublish(), Protocol: p.GetProtocol()})
			}
		}
		return ports, true
	case "host":
		// On the host network a port is taken by listening, published or not.
		for _, p := range s.GetPorts() {
			for _, number := range []int32{p.GetPort(), p.GetPublish()} {
				port := Port{Number: number, Protocol: p.GetProtocol()}
				if number != 0 && !slices.Contains(ports, port) {
					ports = append(ports, port)
				}
			}
		}
	}
	return ports, false
}

func preferences(p *v1.Placement) (Preferences, error) {
	w := Preferences{
		Strategy: Strategy(p.GetStrategy()), NearRegion: p.GetNearRegion(), NearZone: p.GetNearZone(),
	}
	for _, one := range p.GetPrefer() {
		rule, err := NewRule(one.GetRule().GetKey(), one.GetRule().GetOperator(), one.GetRule().GetValues()...)
		if err != nil {
			return Preferences{}, fmt.Errorf("read a preference of the placement: %w", err)
		}
		w.Prefer = append(w.Prefer, PreferredRule{Rule: rule, Weight: one.GetWeight()})
	}
	for _, s := range p.GetSpread() {
		w.Spread = append(w.Spread, Spread{Key: topologyKey(s.GetKey()), MaxSkew: int(s.GetMaxSkew())})
	}
	for _, a := range p.GetAffinity() {
		selector, err := spec.ParseSelector(a.GetLabels())
		if err != nil {
			return Preferences{}, fmt.Errorf("read an affinity of the placement: %w", err)
		}
		w.Affinity = append(w.Affinity, Affinity{
			Workload: a.GetWorkload(), Selector: selector, Key: topologyKey(a.GetKey()), Anti: a.GetAnti(), Weight: a.GetWeight(),
		})
	}
	return w, nil
}

// topologyKey maps the labels that identify a node to the node itself.
func topologyKey(key string) string {
	if key == spec.LabelName || key == spec.LabelHostname {
		return KeyNode
	}
	return key
}

// WeightsFromProto reads weights. Unset ones come from the level below.
func WeightsFromProto(w *v1.ScoreWeights) Weighing {
	if w == nil {
		return Weighing{}
	}
	return Weighing{
		Locality: thousandths(w.Locality), Reliability: thousandths(w.Reliability), Cost: thousandths(w.Cost),
		Utilization: thousandths(w.Utilization), Network: thousandths(w.Network),
	}
}

func thousandths(weight *float64) *int32 {
	if weight == nil {
		return nil
	}
	return new(spec.Thousandths(*weight))
}

// amounts reads optional quantities.
func amounts(a *v1.ResourceAmounts) (r Resources, err error) {
	for _, one := range []struct {
		of    Resource
		text  string
		parse func(string) (int64, error)
	}{
		{CPU, a.GetCpu(), spec.ParseCPU},
		{Memory, a.GetMemory(), spec.ParseBytes},
		{Disk, a.GetDisk(), spec.ParseBytes},
		{Bandwidth, a.GetBandwidth(), spec.ParseBandwidth},
	} {
		if one.text == "" {
			continue
		}
		if r[one.of], err = one.parse(one.text); err != nil {
			return Resources{}, fmt.Errorf("%s %w", one.of, err)
		}
	}
	return r, nil
}
