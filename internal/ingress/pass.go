package ingress

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/cloudless/cloudless/internal/ingress/http1"
)

// mostHold is how long a request waits for a replica at most.
const mostHold = 30 * time.Second

// pass passes the request on to an endpoint. If connecting fails it tries others: a request that has been sent is not
// repeated.
func (x *exchange) pass() {
	pinned := x.pinned()
	var tried []*endpoint
	for attempt := 0; ; attempt++ {
		c, ok := x.route.choose(tried, pinned)
		if !ok && len(tried) == 0 {
			if c, ok = x.hold(pinned); !ok {
				x.refuse(http.StatusServiceUnavailable, "No replica is ready.", retryAfter)
				return
			}
		}
		if !ok {
			x.refuse(http.StatusBadGateway, "No replica answers.")
			return
		}
		x.choice = c
		err := x.send(c.to)
		var connect *connectError
		if err == nil {
			return
		}
		if !errors.As(err, &connect) || x.abort.isGone() || attempt >= x.route.retries {
			x.failed(err)
			return
		}
		tried = append(tried, c.to)
	}
}

var retryAfter = http1.Field{Name: "Retry-After", Value: "5"}

// send sends the request to an endpoint and the answer to the client. It returns an error if the client has got no part
// of an answer yet.
func (x *exchange) send(to *endpoint) error {
	x.choice.meter.open.Add(1)
	defer x.choice.meter.open.Add(-1)
	if to.greeting == "" && (x.route.protocol == "h2c" || x.route.protocol == "" && x.isGRPC()) {
		return x.sendHTTP2(to)
	}
	return x.sendHTTP1(to)
}

// failed answers a request that no backend has answered.
func (x *exchange) failed(err error) {
	var refused *http1.Error
	var timeout interface{ Timeout() bool }
	var connect *connectError
	switch {
	case x.abort.isGone():
		x.refuse(statusGone, "")
	case errors.Is(err, errTooLarge):
		x.refuse(http.StatusRequestEntityTooLarge, "The body of the request is too large.")
	case errors.Is(err, errClientBody):
		x.refuse(http.StatusBadRequest, "The body of the request is broken.")
	case errors.As(err, &connect):
		x.refuse(http.StatusBadGateway, "No replica answers.")
	case errors.As(err, &refused):
		x.refuse(http.StatusBadGateway, "The answer of the replica is broken: "+refused.Reason+".")
	case errors.Is(err, errTimeout), errors.As(err, &timeout) && timeout.Timeout():
		x.refuse(http.StatusGatewayTimeout, "The replica has not answered in time.")
	default:
		x.refuse(http.StatusBadGateway, "The replica has closed the connection.")
	}
}

var (
	errTimeout    = errors.New("the backend has not answered in time")
	errClientBody = errors.New("the client's body is broken")
)

func (x *exchange) isGRPC() bool {
	kind := http1.Get(x.fields, "content-type")
	const grpc = "application/grpc"
	return len(kind) >= len(grpc) && http1.Same(kind[:len(grpc)], grpc) && (len(kind) == len(grpc) || kind[len(grpc)] == '+' || kind[len(grpc)] == ';')
}

// pinned reports whether the request is a tester's.
func (x *exchange) pinned() bool {
	pin := x.route.pin
	if pin == nil {
		return false
	}
	fits := func(value string) bool { return value != "" && (pin.GetValue() == "" || value == pin.GetValue()) }
	if name := pin.GetHeader(); name != "" {
		for _, f := range x.fields {
			if strings.EqualFold(f.Name, name) && fits(f.Value) {
				return true
			}
		}
	}
	if pin.GetCookie() == "" {
		return false
	}
	for _, f := range x.fields {
		if !f.Is("cookie") {
			continue
		}
		for pair := range strings.SplitSeq(f.Value, ";") {
			name, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
			if name == pin.GetCookie() && fits(strings.Trim(value, `"`)) {
				return true
			}
		}
	}
	return false
}

// choose chooses a backend by its weight, and one of its endpoints.
func (r *route) choose(tried []*endpoint, pinned bool) (choice, bool) {
	if len(r.backends) == 1 && r.backends[0].weight > 0 {
		return r.backends[0].pick(tried, pinned)
	}
	// A backend without replicas counts only if there may be one soon.
	var usable []*backend
	var weights choices
	for _, b := range r.backends {
		if b.weight > 0 && (b.ready.total() > 0 || b.wakes) {
			usable = append(usable, b)
			weights.add(choice{weight: b.weight})
		}
	}
	for len(usable) > 0 {
		at := weights.index()
		c, ok := usable[at].pick(tried, pinned)
		if ok || usable[at].wakes && len(tried) == 0 {
			return c, ok
		}
		usable = append(usable[:at:at], usable[at+1:]...)
		weights = choices{}
		for _, b := range usable {
			weights.add(choice{weight: b.weight})
		}
	}
	return choice{}, false
}

func (b *backend) pick(tried []*endpoint, pinned bool) (choice, bool) {
	if pinned {
		if c, ok := b.canary.pick(tried); ok {
			return c, true
		}
	}
	return b.ready.pick(tried)
}

// hold waits until there is a replica: one that starts, or one that the servers start because a request waits.
func (x *exchange) hold(pinned bool) (choice, bool) {
	limit := mostHold
	if x.route.timeout > 0 {
		limit = min(limit, x.route.timeout)
	}
	gone := make(chan struct{})
	x.abort.on(func() { close(gone) })
	defer x.abort.on(nil)
	return x.e.hold(x.e.ctx, x.route, pinned, limit-time.Since(x.began), gone)
}

// hold waits for an endpoint of a route, at most so long, and only if there may be one soon.
func (e *Engine) hold(ctx context.Context, r *route, pinned bool, limit time.Duration, gone <-chan struct{}) (choice, bool) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	waiting := map[string]bool{}
	for woken := false; ; {
		s := e.current.Load()
		if r = s.byUID[r.uid]; r == nil {
			return choice{}, false
		}
		if c, ok := r.choose(nil, pinned); ok {
			return c, true
		}
		soon := woken
		for _, b := range r.backends {
			if b.weight == 0 {
				continue
			}
			soon = soon || b.starting || b.wakes
			if b.wakes && !waiting[b.uid] {
				waiting[b.uid], woken = true, true
				defer e.wait(b.uid)() // few: once for each service
			}
		}
		if !soon {
			return choice{}, false
		}
		select {
		case <-ctx.Done():
			return choice{}, false
		case <-gone:
			return choice{}, false
		case <-timer.C:
			return choice{}, false
		case <-s.superseded:
		}
	}
}
