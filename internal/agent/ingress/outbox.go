package ingress

import (
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// maxSamples is how many samples one message has at most; servers accept no longer messages.
const maxSamples = 2000

// outbox has what servers do not know yet. Samples that wait are added up, so that a long time without servers costs little
// memory and loses no request.
type outbox struct {
	ports    []*v1.IngressPort // as the process said last
	portsSet bool
	// portsDue says that a server must hear of the ports, and beat that it must hear something.
	portsDue, beat bool
	samples        map[sampleKey]*v1.TrafficSample
	open           map[sampleKey]int64 // as the process said last
	wake           map[string]bool
}

type sampleKey struct{ route, service, revision string }

func keyOf(s *v1.TrafficSample) sampleKey {
	return sampleKey{s.GetRouteUid(), s.GetServiceUid(), s.GetRevisionUid()}
}

func newOutbox() outbox {
	return outbox{samples: map[sampleKey]*v1.TrafficSample{}, open: map[sampleKey]int64{}, wake: map[string]bool{}}
}

// add adds a report of the process.
func (o *outbox) add(up *v1.IngressUp) {
	if up.GetPortsSet() {
		o.ports, o.portsSet, o.portsDue = up.GetPorts(), true, true
	}
	for _, sample := range up.GetTraffic() {
		o.addSample(sample)
	}
	for _, service := range up.GetWake() {
		o.wake[service] = true
	}
}

func (o *outbox) addSample(sample *v1.TrafficSample) {
	key := keyOf(sample)
	if sample.GetOpen() > 0 {
		o.open[key] = sample.GetOpen()
	} else {
		delete(o.open, key)
	}
	sum := o.samples[key]
	if sum == nil {
		o.samples[key] = sample
		return
	}
	sum.Requests += sample.GetRequests()
	sum.Errors += sample.GetErrors()
	sum.Received += sample.GetReceived()
	sum.Sent += sample.GetSent()
	sum.Open = sample.GetOpen()
	for len(sum.GetLatencies()) < len(sample.GetLatencies()) {
		sum.Latencies = append(sum.Latencies, 0)
	}
	for bucket, n := range sample.GetLatencies() {
		sum.Latencies[bucket] += n
	}
}

// again makes a new server hear of the ports and of what is open.
func (o *outbox) again() {
	o.portsDue = o.portsSet
	for key, open := range o.open {
		if o.samples[key] == nil {
			o.samples[key] = &v1.TrafficSample{RouteUid: key.route, ServiceUid: key.service, RevisionUid: key.revision, Open: open}
		}
	}
}

// processEnded forgets what was open: its connections are gone.
func (o *outbox) processEnded() {
	for key := range o.open {
		o.addSample(&v1.TrafficSample{RouteUid: key.route, ServiceUid: key.service, RevisionUid: key.revision})
	}
}

// take returns the next message, nil if there is nothing to say, and whether there is more.
func (o *outbox) take() (up *v1.IngressUp, more bool) {
	if !o.portsDue && !o.beat && len(o.samples) == 0 && len(o.wake) == 0 {
		return nil, false
	}
	up = &v1.IngressUp{}
	if o.portsDue {
		up.Ports, up.PortsSet = o.ports, true
	}
	for service := range o.wake {
		up.Wake = append(up.Wake, service)
	}
	slices.Sort(up.Wake)
	for key, sample := range o.samples {
		if len(up.GetTraffic()) == maxSamples {
			break
		}
		up.Traffic = append(up.Traffic, sample)
		delete(o.samples, key)
	}
	o.portsDue, o.beat = false, false
	clear(o.wake)
	return up, len(o.samples) > 0
}
