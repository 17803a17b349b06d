package scrape

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// program is a replica's program with the given answers.
func program(t *testing.T, answer http.HandlerFunc) (Target, *Scraper) {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	host, text, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	target := Target{
		UID: "r1", Attempt: "a1", Addresses: []netip.Addr{netip.MustParseAddr(host)},
		Metric: &v1.AutoscaleMetric{Port: int32(port), Path: "/metrics", Name: "queue_length", Value: 10},
	}
	return target, New(func() []Target { return []Target{target} })
}

func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
}

func TestSeriesOfAGaugeAreAddedUp(t *testing.T) {
	_, s := program(t, says("# TYPE queue_length gauge\nqueue_length{q=\"a\"} 3\nqueue_length{q=\"b\"} 4.5\nother 9\n"))
	s.round(t.Context())
	if value, known, problem := s.Value("r1"); !known || value != 7.5 || problem != "" {
		t.Errorf("the value is %v (%v, %q), want 7.5", value, known, problem)
	}
	if _, known, _ := s.Value("r2"); known {
		t.Error("a replica that is no target has a value")
	}
}

func TestCounterCountsByItsIncrease(t *testing.T) {
	var total atomic.Int64
	total.Store(1000)
	_, s := program(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "# TYPE queue_length counter\nqueue_length %d\n", total.Load())
	})
	s.round(t.Context())
	if _, known, problem := s.Value("r1"); known || problem != "" {
		t.Errorf("one read of a counter gives a rate (%q)", problem)
	}
	total.Add(50)
	s.round(t.Context())
	if value, known, _ := s.Value("r1"); !known || value <= 0 {
		t.Errorf("after an increase the rate is %v (%v)", value, known)
	}
	total.Store(3) // the program was started again
	s.round(t.Context())
	if value, known, _ := s.Value("r1"); known {
		t.Errorf("a counter that was reset has the rate %v", value)
	}
}

func TestFailureNamesItsCause(t *testing.T) {
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"not found":   {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }, "answered with status 404"},
		"a redirect":  {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, "status 302"},
		"no metric":   {says("other 1\n"), "exports no metric queue_length"},
		"no format":   {says("<html>hello</html>\n"), "not in Prometheus text format"},
		"a histogram": {says("# TYPE queue_length histogram\nqueue_length_bucket{le=\"+Inf\"} 1\nqueue_length_sum 1\nqueue_length_count 1\n"), "choose a gauge or a counter"},
		"NaN":         {says("queue_length NaN\n"), "not a finite number"},
		"a flood": {func(w http.ResponseWriter, _ *http.Request) {
			line := strings.Repeat("# "+strings.Repeat("x", 1000)+"\n", 100)
			for range maxBody/len(line) + 2 {
				if _, err := fmt.Fprint(w, line); err != nil {
					return
				}
			}
		}, "more than 4 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			_, s := program(t, test.answer)
			s.round(t.Context())
			if _, known, problem := s.Value("r1"); known || !strings.Contains(problem, test.want) || len(problem) > maxProblem+len("…") {
				t.Errorf("known %v, problem %q, want %q", known, problem, test.want)
			}
		})
	}
}

func TestReplicaThatIsGoneIsForgotten(t *testing.T) {
	target, s := program(t, says("queue_length 1\n"))
	s.round(t.Context())
	s.targets = func() []Target { return nil }
	s.round(t.Context())
	if _, known, _ := s.Value(target.UID); known || len(s.results) != 0 {
		t.Errorf("it is still known: %v", s.results)
	}
}

// A program may answer anything; reading it must neither panic nor accept what is not a number.
func FuzzParse(f *testing.F) {
	f.Add("# TYPE queue_length gauge\nqueue_length{q=\"a\"} 3 1700000000\n")
	f.Add("queue_length +Inf\n")
	f.Add("queue_length{")
	f.Add("# TYPE queue_length summary\nqueue_length{quantile=\"0.5\"} 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		families, err := parse(strings.NewReader(text))
		if err != nil {
			return
		}
		if sum, _, err := Sum(families, "queue_length"); err == nil && sum != sum {
			t.Errorf("%q gives %v", text, sum)
		}
	})
}
