package machine

import (
	"fmt"
	"net/netip"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// Pressure begins above the first share and ends below the second, so that a value near the
// limit does not toggle every second.
const (
	pressureBegins = 0.85
	pressureEnds   = 0.80
)

// assess turns readings into conditions. A condition keeps its reason and time until its
// status changes. The caller holds m.mu.
func (m *Machine) assess(r readings, interfaces []*v1.Interface, now time.Time) []*v1.Condition {
	usableDisk := amount{total: r.disk.total - r.diskReserved, used: r.disk.used}
	return []*v1.Condition{
		m.pressure("MemoryPressure", "memory", r.memory, spec.HumanBytes, now),
		m.pressure("DiskPressure", "disk of the data folder", usableDisk, spec.HumanBytes, now),
		m.pressure("PIDPressure", "number of processes", r.pids, func(n int64) string { return fmt.Sprint(n) }, now),
		m.network(interfaces, now),
	}
}

func (m *Machine) pressure(kind, what string, a amount, format func(int64) string, now time.Time) *v1.Condition {
	limit := pressureBegins
	if m.conditions[kind].GetStatus() {
		limit = pressureEnds
	}
	if a.share() <= limit {
		return m.condition(kind, false, "", now)
	}
	reason := fmt.Sprintf("The %s is more than %.0f %% used: %s of %s.", what, 100*pressureBegins, format(a.used), format(a.total))
	return m.condition(kind, true, reason, now)
}

// A battery is low below the first percentage. It is no longer low above the second, or while
// something else powers the machine.
const (
	batteryLow  = 15
	batteryBack = 25
)

// lowBattery says whether the machine is about to lose its power.
func (m *Machine) lowBattery(p power, now time.Time) *v1.Condition {
	limit := batteryLow
	if m.conditions[spec.LowBattery].GetStatus() {
		limit = batteryBack
	}
	if !p.battery || p.charge >= limit {
		return m.condition(spec.LowBattery, false, "", now)
	}
	return m.condition(spec.LowBattery, true, fmt.Sprintf("The battery has only %d %% left.", p.charge), now)
}

func (m *Machine) network(interfaces []*v1.Interface, now time.Time) *v1.Condition {
	for _, i := range interfaces {
		if i.GetUp() && hasGlobalAddress(i) {
			return m.condition("NetworkAvailable", true, "", now)
		}
	}
	return m.condition("NetworkAvailable", false, "No network interface but loopback is up and has an address.", now)
}

func hasGlobalAddress(i *v1.Interface) bool {
	for _, text := range i.GetAddresses() {
		prefix, err := netip.ParsePrefix(text)
		if err == nil && prefix.Addr().IsGlobalUnicast() {
			return true
		}
	}
	return false
}

func (m *Machine) condition(kind string, status bool, reason string, now time.Time) *v1.Condition {
	last := m.conditions[kind]
	if last == nil || last.GetStatus() != status {
		last = &v1.Condition{Type: kind, Status: status, Reason: reason, ChangeTime: timestamppb.New(now)}
		m.conditions[kind] = last
	}
	return last
}
