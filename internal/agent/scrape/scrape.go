// Package scrape reads one metric from each replica whose workload is scaled by it, in Prometheus text format. It never
// delays its caller: a goroutine reads, and Value returns what was read last. Each read is bounded in time and size,
// because the program may answer anything.
//
// It knows no sessions, no records and no drivers.
package scrape

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	// Period is the time between two reads of a replica, and timeout how long a read may take.
	Period, timeout = 5 * time.Second, 2 * time.Second
	// maxBody is how much a program may answer, maxHeader how large the header may be.
	maxBody, maxHeader = 4 << 20, 64 << 10
	// atOnce is how many replicas are read at the same time.
	atOnce = 8
	// maxProblem is how long the words about a failure may be, which can contain parts of the answer.
	maxProblem = 200
)

// Target is a replica to read from.
type Target struct {
	UID string
	// Attempt distinguishes one run of the program from the next, whose counters begin again.
	Attempt string
	Metric  *v1.AutoscaleMetric
	// Addresses are those that the program listens on, the preferred one first.
	Addresses []netip.Addr
}

// Scraper reads from all targets, again and again.
type Scraper struct {
	targets func() []Target

	mu      sync.Mutex
	results map[string]result // by uid of the replica
}

// result is the outcome of the newest read of a replica.
type result struct {
	at      time.Time
	value   float64
	known   bool
	problem string
	// total is the newest value of a counter, of an attempt and a metric.
	total  *float64
	source string
}

// New returns a scraper of the replicas that targets lists.
func New(targets func() []Target) *Scraper {
	return &Scraper{targets: targets, results: map[string]result{}}
}

// Run reads until ctx ends.
func (s *Scraper) Run(ctx context.Context) {
	for ctx.Err() == nil {
		s.round(ctx)
		_ = sleep.For(ctx, Period)
	}
}

// round reads from every target once, and forgets replicas that are no longer targets.
func (s *Scraper) round(ctx context.Context) {
	var readers sync.WaitGroup
	slots, named := make(chan struct{}, atOnce), map[string]bool{}
	for _, t := range s.targets() {
		named[t.UID] = true
		slots <- struct{}{}
		readers.Go(func() {
			defer func() { <-slots }()
			s.read(ctx, t)
		})
	}
	readers.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid := range s.results {
		if !named[uid] {
			delete(s.results, uid)
		}
	}
}

// Value is the newest value of a replica's metric. It is not known if the replica is not a target, if its program does
// not answer, or before a counter was read twice; problem says why, if that is known.
func (s *Scraper) Value(uid string) (value float64, known bool, problem string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.results[uid]
	if !ok || time.Since(r.at) > 3*Period {
		return 0, false, ""
	}
	return r.value, r.known, r.problem
}

func (s *Scraper) read(ctx context.Context, t Target) {
	families, err := fetch(ctx, t)
	now := time.Now()
	source := fmt.Sprint(t.Attempt, " ", t.Metric.GetPort(), t.Metric.GetPath(), " ", t.Metric.GetName())
	next := result{at: now, source: source}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.results[t.UID]
	if err == nil {
		var sum float64
		var counts bool
		if sum, counts, err = Sum(families, t.Metric.GetName()); err == nil {
			next.value, next.known = sum, true
			if counts {
				next.rate(before, sum)
			}
		}
	}
	if err != nil {
		next.problem = words(err)
	}
	s.results[t.UID] = next
}

// rate makes the total of a counter an increase per second. The first read, and one after a reset, give none.
func (r *result) rate(before result, total float64) {
	r.total, r.value, r.known = &total, 0, false
	if before.total == nil || before.source != r.source || total < *before.total {
		return
	}
	if passed := r.at.Sub(before.at).Seconds(); passed > 0 {
		r.value, r.known = (total-*before.total)/passed, true
	}
}

// words are those about a failure, bounded and valid.
func words(err error) string {
	text := strings.ToValidUTF8(err.Error(), "?")
	if len(text) > maxProblem {
		text = strings.ToValidUTF8(text[:maxProblem], "") + "…"
	}
	return text
}

// Sum adds up the series of a metric. counts is whether it is a counter.
func Sum(families map[string]*dto.MetricFamily, name string) (sum float64, counts bool, err error) {
	family := families[name]
	if family == nil || len(family.GetMetric()) == 0 {
		return 0, false, fmt.Errorf("the program exports no metric %s", name)
	}
	for _, m := range family.GetMetric() {
		switch family.GetType() {
		case dto.MetricType_GAUGE:
			sum += m.GetGauge().GetValue()
		case dto.MetricType_UNTYPED:
			sum += m.GetUntyped().GetValue()
		case dto.MetricType_COUNTER:
			sum += m.GetCounter().GetValue()
			counts = true
		default:
			return 0, false, fmt.Errorf("metric %s is a %s; choose a gauge or a counter", name, strings.ToLower(family.GetType().String()))
		}
	}
	if math.IsNaN(sum) || math.IsInf(sum, 0) {
		return 0, false, fmt.Errorf("metric %s is not a finite number", name)
	}
	return sum, counts, nil
}

// fetch reads all metrics of a program.
func fetch(ctx context.Context, t Target) (map[string]*dto.MetricFamily, error) {
	if len(t.Addresses) == 0 {
		return nil, errors.New("the replica has no address")
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	port := t.Metric.GetPort()
	where := fmt.Sprintf("GET %s on port %d", t.Metric.GetPath(), port)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(t.Addresses[0].String(), strconv.Itoa(int(port)))+t.Metric.GetPath(), nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	request.Header.Set("User-Agent", "cloudless-autoscale")
	request.Header.Set("Accept", "text/plain;version=0.0.4")
	transport := &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, t.Addresses, port) },
	}
	defer transport.CloseIdleConnections()
	answer, err := transport.RoundTrip(request) // follows no redirect
	if err != nil {
		return nil, fmt.Errorf("%s failed: %w", where, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered with status %d", where, answer.StatusCode)
	}
	families, err := parse(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	return families, nil
}

// parse reads metrics in Prometheus text format, up to a bound. It reads all of them first, so that the time for an answer
// is not used up by parsing it.
func parse(from io.Reader) (map[string]*dto.MetricFamily, error) {
	body, err := io.ReadAll(io.LimitReader(from, maxBody+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer: %w", err)
	case len(body) > maxBody:
		return nil, fmt.Errorf("the answer has more than %d MiB", maxBody>>20)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("the answer is not in Prometheus text format: %w", err)
	}
	return families, nil
}

// dial connects to a port at the first address that accepts.
func dial(ctx context.Context, addresses []netip.Addr, port int32) (conn net.Conn, err error) {
	for _, a := range addresses {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", netip.AddrPortFrom(a, uint16(port)).String())
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
	}
	return nil, err
}
