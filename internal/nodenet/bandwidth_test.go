package nodenet_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/cloudless/cloudless/internal/nodenet"
)

// iperfReport is what iperf3 says at the end.
type iperfReport struct {
	End struct {
		Received struct {
			Rate float64 `json:"bits_per_second"`
		} `json:"sum_received"`
		Sum struct {
			Rate float64 `json:"bits_per_second"`
			Lost float64 `json:"lost_percent"`
		} `json:"sum"`
	} `json:"end"`
}

// measure returns how many bits a second iperf3 moves between an endpoint and the outside, in one direction.
func (l *lab) measure(namespace string, arguments ...string) float64 {
	l.t.Helper()
	server := exec.Command("iperf3", "--server", "--port", "5201")
	l.must(inside(l.outside, server.Start))
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	var rate float64
	eventually(l.t, func() error { // the server may not listen yet
		return inside(namespace, func() error {
			out, err := exec.Command("iperf3", append([]string{"--client", there4, "--json", "--time", "3", "--omit", "1"}, arguments...)...).Output()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			var r iperfReport
			if err := json.Unmarshal(out, &r); err != nil {
				return err
			}
			if rate = r.End.Received.Rate; rate == 0 {
				rate = r.End.Sum.Rate * (1 - r.End.Sum.Lost/100)
			}
			if rate == 0 {
				return fmt.Errorf("iperf3 has measured nothing: %s", out)
			}
			return nil
		})
	})
	return rate
}

func needIperf(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip("needs iperf3")
	}
}

// What a replica receives and sends stays within its limit and uses it, for TCP and UDP; another limit holds at once, for
// connections that are open as well, and a new process keeps it.
func TestBandwidthIsLimited(t *testing.T) {
	needIperf(t)
	l := newLab(t)
	a, err := l.network.Attach(t.Context(), nodenet.Endpoint{UID: "web", Group: "web", Owner: "web", Bandwidth: 50e6})
	l.must(err)
	within := func(what string, got, limit float64) {
		t.Helper()
		t.Logf("%s: %.1f Mbit/s of %.0f", what, got/1e6, limit/1e6)
		// The limit counts whole packets, of which a program has 95 %.
		if ratio := got / limit; ratio < 0.87 || ratio > 1.05 {
			t.Errorf("%s: %.1f Mbit/s with a limit of %.0f", what, got/1e6, limit/1e6)
		}
	}
	within("sent", l.measure(a.Namespace), 50e6)
	within("received", l.measure(a.Namespace, "--reverse"), 50e6)
	within("sent by UDP", l.measure(a.Namespace, "--udp", "--bitrate", "200M"), 50e6)
	within("received by UDP", l.measure(a.Namespace, "--udp", "--bitrate", "200M", "--reverse"), 50e6)
	c, err := l.network.Counters("web")
	l.must(err)
	if c.HeldReceived.Dropped == 0 || c.HeldSent.Delayed == 0 {
		t.Errorf("nothing was held back: %+v", c)
	}
	l.must(l.network.SetBandwidth("web", 20e6))
	within("sent with another limit", l.measure(a.Namespace), 20e6)
	l.restart()
	if _, err := l.network.Attach(t.Context(), nodenet.Endpoint{UID: "web", Group: "web", Owner: "web", Bandwidth: 20e6}); err != nil {
		t.Fatal(err)
	}
	kept, err := l.network.Counters("web")
	l.must(err)
	if kept.HeldSent.Delayed == 0 {
		t.Error("a new process has begun to count again")
	}
	within("received after a restart", l.measure(a.Namespace, "--reverse"), 20e6)
	l.must(l.network.SetBandwidth("web", 0))
	if free := l.measure(a.Namespace); free < 100e6 {
		t.Errorf("without a limit: %.0f Mbit/s", free/1e6)
	}
	l.must(l.network.Detach(t.Context(), "web"))
}

// A limit is restored with a link that another program has removed.
func TestBandwidthComesBackWithTheLink(t *testing.T) {
	l := newLab(t)
	a, err := l.network.Attach(t.Context(), nodenet.Endpoint{UID: "web", Group: "web", Owner: "web", Bandwidth: 10e6})
	l.must(err)
	limits := func() string {
		out, _ := exec.Command("tc", "qdisc").Output()
		var inner []byte
		_ = inside(a.Namespace, func() (err error) { inner, err = exec.Command("tc", "qdisc").Output(); return err })
		return string(out) + string(inner)
	}
	count := func() error {
		n := 0
		for line := range strings.Lines(limits()) {
			if strings.Contains(line, "tbf") && strings.Contains(line, "rate 10Mbit") {
				n++
			}
		}
		if n != 2 {
			return fmt.Errorf("%d ends are limited:\n%s", n, limits())
		}
		return nil
	}
	l.must(count())
	l.run("", "ip", "link", "del", "cvtesttest-2")
	eventually(t, count)
}
