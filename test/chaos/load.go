package chaos

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	shopPublished  = 18080
	shopHost       = "shop.example.org"
	callersPerNode = 4
	callPause      = 40 * time.Millisecond
	// requestPatience is how long a caller waits for an answer.
	requestPatience = 5 * time.Second
)

// request is one request to the shop, over a connection of its own.
type request struct {
	begin, end time.Duration
	by         string // the node that it was sent to
	way        string // "route" or "port"
	// replica and release are in the answer.
	replica, release string
	failure          string // why there was no answer
}

func (r request) String() string {
	return fmt.Sprintf("by the %s of %s from %.3fs to %.3fs: %s", cmp.Or(r.way, "port"), r.by, r.begin.Seconds(), r.end.Seconds(), r.failure)
}

// load is the constant load on the shop: callers outside of the cluster that ask every node, half of them at the published
// port and half of them by the route, the latter over connections that they keep.
type load struct {
	lab *lab

	mu       sync.Mutex
	requests []request
}

// run calls until the context ends.
func (c *load) run(ctx context.Context) {
	var callers sync.WaitGroup
	for _, m := range c.lab.nodes {
		for i := range callersPerNode {
			byRoute := i%2 == 1
			callers.Go(func() { c.call(ctx, m, byRoute) })
		}
	}
	callers.Wait()
}

func (c *load) call(ctx context.Context, m *machine, byRoute bool) {
	caller := &http.Client{Timeout: requestPatience, Transport: &http.Transport{DisableKeepAlives: !byRoute}}
	way, url, host := "port", fmt.Sprintf("http://%s:%d/", m.address, shopPublished), ""
	if byRoute {
		way, url, host = "route", fmt.Sprintf("http://%s/", m.address), shopHost
	}
	for ; ctx.Err() == nil; time.Sleep(callPause) {
		r := request{by: m.name, way: way, begin: c.lab.told.now()}
		answer, err := ask(caller, url, host)
		r.end = c.lab.told.now()
		if err == nil {
			if _, scanErr := fmt.Sscan(answer, &r.replica, &r.release); scanErr != nil {
				err = fmt.Errorf("the answer is %q", answer)
			}
		}
		if err != nil {
			r.failure = err.Error()
		}
		c.mu.Lock()
		c.requests = append(c.requests, r)
		c.mu.Unlock()
	}
}

// routed says which node does not answer for the route of the shop yet.
func (l *lab) routed(context.Context) error {
	for _, m := range l.nodes {
		caller := &http.Client{Timeout: requestPatience, Transport: &http.Transport{DisableKeepAlives: true}}
		if _, err := ask(caller, fmt.Sprintf("http://%s/", m.address), shopHost); err != nil {
			return fmt.Errorf("the route on %s: %w", m.name, err)
		}
	}
	return nil
}

// ask makes one request, for another host than the one of the address if that is given.
func ask(caller *http.Client, url, host string) (string, error) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	request.Host = cmp.Or(host, request.Host)
	answer, err := caller.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 200))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %.100s", answer.StatusCode, body)
	}
	return string(body), err
}

// Which replicas serve is decided by the requests alone. A replica serves from its first answer to its last one, unless
// it was silent for so long that it would have been asked meanwhile.
const (
	// silence is how many requests to others prove that a replica does not serve. With six endpoints, one that serves
	// misses so many requests in a row once in 80 million cases.
	silence = 100
	// blur is by how many requests the moment is uncertain at which a replica begins or ceases to serve.
	blur = 20
	// failureWeight is how many requests a failed one counts for, because callers wait longer for those.
	failureWeight = 10
)

// serving are the times in which each replica served.
func serving(requests []request) (spans []span) {
	requests = slices.SortedStableFunc(slices.Values(requests), func(a, b request) int { return cmp.Compare(a.end, b.end) })
	weights := make([]int, len(requests)) // of the requests up to each one
	answers := map[string][]int{}
	for i, r := range requests {
		weights[i] = 1
		if r.failure != "" {
			weights[i] = failureWeight
		} else {
			answers[r.replica] = append(answers[r.replica], i)
		}
		if i > 0 {
			weights[i] += weights[i-1]
		}
	}
	at := func(weight int) time.Duration {
		i, _ := slices.BinarySearch(weights, weight)
		return requests[max(0, min(i, len(requests)-1))].end
	}
	for replica, indexes := range answers {
		begin := at(weights[indexes[0]] - blur)
		for k, i := range indexes {
			next := len(requests) - 1
			if k+1 < len(indexes) {
				next = indexes[k+1]
			}
			if weights[next]-weights[i] > silence {
				spans = append(spans, span{what: replica, begin: begin, end: at(weights[i] + blur)})
				begin = at(weights[next] - blur)
			} else if k+1 == len(indexes) {
				spans = append(spans, span{what: replica, begin: begin, end: requests[next].end})
			}
		}
	}
	return spans
}

// shortages are the times with fewer spans than that, between the first time when there were enough and the end.
func shortages(spans []span, least int, end time.Duration) (all []span) {
	var edges []time.Duration
	for _, s := range spans {
		edges = append(edges, s.begin, s.end)
	}
	slices.Sort(edges)
	edges = append(slices.Compact(edges), end)
	begun := false
	for i, from := range edges[:len(edges)-1] {
		to := edges[i+1]
		count := 0
		for _, s := range spans {
			if s.begin <= from && from < s.end {
				count++
			}
		}
		begun = begun || count >= least
		switch last := len(all) - 1; {
		case !begun || count >= least || from >= to:
		case last >= 0 && all[last].end == from:
			all[last].end = to
		default:
			all = append(all, span{what: fmt.Sprintf("%d replicas served", count), begin: from, end: to})
		}
	}
	return all
}

// settles is how long a fault explains something after it is over: a machine starts everything again, and the others must
// hear of it.
const settles = 10 * time.Second

// losses are the times in which the loss of a machine explains failures.
func losses(faults []span) []span {
	return lasting(faults, func(f span) bool { return strings.HasSuffix(f.what, lossOfMachine) })
}

// strandings are the times in which the agents of some nodes do not hear the servers. A node that is stranded for long
// counts as lost, and does not learn where replicas are that have moved meanwhile.
func strandings(faults []span) []span {
	return lasting(faults, func(f span) bool {
		return strings.HasPrefix(f.what, "n") && (strings.HasSuffix(f.what, byPause) || strings.HasSuffix(f.what, byKill) || strings.HasSuffix(f.what, byCut)) ||
			f.what == cutOfAllNodes
	})
}

// of are the strandings of one node.
func of(node string, strandings []span) []span {
	return slices.DeleteFunc(slices.Clone(strandings), func(f span) bool {
		return f.what != cutOfAllNodes && !strings.HasPrefix(f.what, node+" ")
	})
}

func lasting(faults []span, counts func(span) bool) (all []span) {
	for _, f := range faults {
		if counts(f) {
			f.end += settles
			all = append(all, f)
		}
	}
	return all
}

// during reports whether a time touches one of the spans.
func during(spans []span, begin, end time.Duration) bool {
	return slices.ContainsFunc(spans, func(s span) bool { return begin <= s.end && s.begin <= end })
}

// without is what is left of spans outside of others.
func without(spans, others []span) (left []span) {
	left = slices.Clone(spans)
	for _, o := range others {
		var rest []span
		for _, s := range left {
			before, after := s, s
			before.end, after.begin = min(s.end, o.begin), max(s.begin, o.end)
			for _, part := range []span{before, after} {
				if part.begin < part.end {
					rest = append(rest, part)
				}
			}
		}
		left = rest
	}
	return left
}

func total(spans []span) (sum time.Duration) {
	for _, s := range spans {
		sum += s.end - s.begin
	}
	return sum
}

// replaced is how long too few replicas may serve once a stranded node counts as lost, until others have replaced its
// own. It includes what a busy machine needs to start them.
const replaced = 10 * time.Second

// toll is what a run cost the users of the shop.
type toll struct {
	requests int
	failed   []request // that nothing explains
	excused  int       // failures that a fault explains
	bad      []request // answered by a release that must not get traffic
	serving  []span    // when each replica served
	short    []span    // time below minAvailable that nothing explains
	// excusedTime is time below minAvailable that faults explain.
	excusedTime time.Duration
}

// count is the toll of some requests.
func count(requests []request, least int, faults []span) (t toll) {
	lost, stranded := losses(faults), strandings(faults)
	var end time.Duration
	for _, r := range requests {
		t.requests++
		end = max(end, r.end)
		excused := during(lost, r.begin, r.end) || during(of(r.by, stranded), r.begin, r.end)
		switch {
		case r.failure != "" && excused:
			t.excused++
		case r.failure != "":
			t.failed = append(t.failed, r)
		case badRelease(r.release) && !excused:
			t.bad = append(t.bad, r)
		}
	}
	t.serving = serving(requests)
	short := shortages(t.serving, least, end)
	for _, one := range without(short, lost) {
		if rest := without([]span{one}, stranded); total([]span{one})-total(rest) > replaced {
			t.short = append(t.short, one)
		} else {
			t.short = append(t.short, rest...)
		}
	}
	t.excusedTime = total(short) - total(t.short)
	return t
}

// shown is how many of many similar complaints are printed.
const shown = 5

func (t toll) complaints() (all []string) {
	if len(t.failed) > 0 {
		all = append(all, fmt.Sprintf("%d of %d requests failed, and nothing explains it: %v", len(t.failed), t.requests, t.failed[:min(shown, len(t.failed))]))
	}
	if len(t.bad) > 0 {
		all = append(all, fmt.Sprintf("release %s got %d requests, the first at %.3fs, although it is bad", t.bad[0].release, len(t.bad), t.bad[0].end.Seconds()))
	}
	for _, s := range t.short {
		all = append(all, fmt.Sprintf("below minAvailable from %.3fs to %.3fs, and nothing explains it: %s", s.begin.Seconds(), s.end.Seconds(), s.what))
	}
	return all
}

func (t toll) String() string {
	return fmt.Sprintf("%d requests: %d failed, and %d more that faults explain; below minAvailable for %v, and for %v more that faults explain",
		t.requests, len(t.failed), t.excused, total(t.short).Round(time.Millisecond), t.excusedTime.Round(time.Millisecond))
}
