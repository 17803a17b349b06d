package ingressd

import (
	"slices"
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/listeners"
	"github.com/cloudless/cloudless/internal/trafficstat"
)

// merge adds a report to an earlier one.
func merge(earlier, later *v1.IngressUp) *v1.IngressUp {
	switch {
	case earlier == nil:
		return later
	case later == nil:
		return earlier
	}
	if later.GetPortsSet() {
		earlier.Ports, earlier.PortsSet = later.GetPorts(), true
	}
	for _, uid := range later.GetWake() {
		if !slices.Contains(earlier.GetWake(), uid) {
			earlier.Wake = append(earlier.Wake, uid)
		}
	}
	type key struct{ route, service, revision string }
	known := map[key]*v1.TrafficSample{}
	for _, s := range earlier.GetTraffic() {
		known[key{s.GetRouteUid(), s.GetServiceUid(), s.GetRevisionUid()}] = s
	}
	for _, s := range later.GetTraffic() {
		sum := known[key{s.GetRouteUid(), s.GetServiceUid(), s.GetRevisionUid()}]
		if sum == nil {
			earlier.Traffic = append(earlier.Traffic, s)
			continue
		}
		latencies := trafficstat.Counts(sum.GetLatencies())
		latencies.Merge(s.GetLatencies())
		sum.Requests, sum.Errors, sum.Latencies = sum.GetRequests()+s.GetRequests(), sum.GetErrors()+s.GetErrors(), latencies
		sum.Received, sum.Sent, sum.Open = sum.GetReceived()+s.GetReceived(), sum.GetSent()+s.GetSent(), s.GetOpen()
	}
	return earlier
}

// nameUser says which program uses a port. The process itself has not the right to see that.
func nameUser(p *v1.IngressPort) {
	if !strings.HasPrefix(p.GetProblem(), "Another program") {
		return
	}
	at := listeners.Port{Network: p.GetProtocol(), Number: uint16(p.GetPort())}
	if user := listeners.Of(at)[at].Name; user != "" {
		p.Problem = strings.Replace(p.GetProblem(), "Another program", "Another program, "+user+",", 1)
	}
}
