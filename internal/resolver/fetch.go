package resolver

import (
	"context"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// fetchTime bounds how long a query waits for a service that is not here yet.
const fetchTime = 2 * time.Second

// fetchKey tells fetches from queries to upstreams, whose keys begin with a small number.
const fetchKey = "\xff"

// absent returns the service that a query of the machine needs and that is not here. A node holds only the services
// that its replicas can see.
func (r *Resolver) absent(q *request) (Name, bool) {
	below, ok := inZone(strings.ToLower(q.msg.Question[0].Name))
	if r.fetch == nil || !q.client.host || !ok {
		return Name{}, false
	}
	rest, namespace := cutLast(below)
	_, service := cutLast(rest)
	name := Name{Namespace: namespace, Name: service}
	return name, service != "" && r.zone.lacks(name)
}

// fetchFirst answers when the service is here, or does not exist.
func (r *Resolver) fetchFirst(q *request, name Name, later func([]byte)) ([]byte, bool) {
	if !r.admission.enter(q.client) {
		r.counters.overloaded.Add(1)
		return q.pack(reply{rcode: dns.RcodeServerFailure}), false
	}
	key := fetchKey + name.key()
	first := r.flights.join(key, func(p packed) {
		r.admission.leave(q.client)
		if p.failed {
			later(q.pack(reply{rcode: dns.RcodeServerFailure}))
			return
		}
		answer, _ := r.local(q)
		later(q.pack(answer))
	})
	if !first {
		r.counters.merged.Add(1)
		return nil, true
	}
	r.background.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, fetchTime)
		defer cancel()
		err := r.fetch(ctx, name)
		if err != nil {
			r.log.Debug("a service cannot be fetched", "namespace", name.Namespace, "service", name.Name, "error", err)
		}
		r.flights.land(key, packed{failed: err != nil})
	})
	return nil, true
}
