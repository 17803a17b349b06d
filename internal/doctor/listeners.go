package doctor

import "github.com/cloudless/cloudless/internal/listeners"

// lookPorts finds the processes that use the ports.
func lookPorts(wanted []Port) []Port {
	if len(wanted) == 0 {
		return nil
	}
	all := make([]listeners.Port, len(wanted))
	for i, p := range wanted {
		all[i] = listeners.Port{Network: p.Network, Number: p.Number}
	}
	found := listeners.Of(all...)
	seen := make([]Port, len(wanted))
	for i, p := range wanted {
		p.UsedBy, p.PID = found[all[i]].Name, found[all[i]].PID
		seen[i] = p
	}
	return seen
}
