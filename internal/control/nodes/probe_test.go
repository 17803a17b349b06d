package nodes

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// switched is a machine that answers as long as it is on.
type switched struct{ on atomic.Bool }

func (s *switched) probe(ctx context.Context, _ netip.Addr) bool {
	if s.on.Load() {
		return true
	}
	return dead(ctx, here)
}

// leadWith is lead for a ready node with a machine and a session that has lasted for a
// while.
func leadWith(t *testing.T, probe Probe, f func(l *Loop, s func() string)) {
	t.Helper()
	leadBehind(t, func(string) bool { return false }, probe, f)
}

// leadBehind is leadWith for a node whose session is relayed by another server.
func leadBehind(t *testing.T, cutOff func(string) bool, probe Probe, f func(l *Loop, s func() string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		proposer := &log{store: storeWith(t, node("enrolling")), index: 1}
		loop := New(proposer.store, proposer, probe)
		loop.CutOff = cutOff
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- loop.Run(ctx) }()
		loop.Connected("n", here, &v1.NodeStatus{})
		time.Sleep(2 * time.Second) // the loop learns whether the machine answers
		loop.Heartbeat("n", &v1.Heartbeat{})
		f(loop, func() string {
			synctest.Wait()
			return proposer.store.Snapshot().Node("n").GetStatus().GetState()
		})
		cancel()
		<-done
	})
}

// offlineAfter is how long after now the node goes offline.
func offlineAfter(t *testing.T, s func() string) time.Duration {
	t.Helper()
	began := time.Now()
	for s() != "offline" {
		if time.Since(began) > time.Minute {
			t.Fatal("the node is never offline")
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(began)
}

func TestDeadMachineIsOfflineWithinASecond(t *testing.T) {
	var m switched
	m.on.Store(true)
	leadWith(t, m.probe, func(l *Loop, s func() string) {
		l.Disconnected("n")
		m.on.Store(false)
		if took := offlineAfter(t, s); took > 700*time.Millisecond {
			t.Errorf("it took %s", took)
		}
	})
}

func TestMachineThatDiesSlowlyIsOfflineWithinASecond(t *testing.T) {
	var m switched
	m.on.Store(true)
	leadWith(t, m.probe, func(l *Loop, s func() string) {
		l.Disconnected("n")
		began := time.Now()
		time.Sleep(120 * time.Millisecond)
		m.on.Store(false)
		offlineAfter(t, s)
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

func TestAnsweringMachineHasTheReconnectWindow(t *testing.T) {
	leadWith(t, alive, func(l *Loop, s func() string) {
		l.Disconnected("n")
		if took := offlineAfter(t, s); took != windows.Reconnect {
			t.Errorf("it took %s", took)
		}
	})
}

// Behind a firewall that drops packets, a missing answer proves nothing.
func TestFirewalledMachineHasTheReconnectWindow(t *testing.T) {
	leadWith(t, dead, func(l *Loop, s func() string) {
		l.Disconnected("n")
		if took := offlineAfter(t, s); took != windows.Reconnect {
			t.Errorf("it took %s", took)
		}
	})
}

func TestMachineThatDiesWithinTheWindowIsSoonOffline(t *testing.T) {
	var m switched
	m.on.Store(true)
	leadWith(t, m.probe, func(l *Loop, s func() string) {
		l.Disconnected("n")
		time.Sleep(5 * time.Second)
		want(t, s, "ready")
		m.on.Store(false)
		if took := offlineAfter(t, s); took > 2*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// A node's session may be relayed by another server, which can vanish without a word.
func TestNodeBehindALostServerHasTheReconnectWindow(t *testing.T) {
	var cut atomic.Bool
	cut.Store(true)
	leadBehind(t, func(string) bool { return cut.Load() }, alive, func(l *Loop, s func() string) {
		time.Sleep(spec.DefaultLiveness.Silence + spec.DefaultLiveness.Reconnect - time.Second)
		want(t, s, "ready")
		l.Connected("n", here, &v1.NodeStatus{}) // by another server
		cut.Store(false)
		if took := offlineAfter(t, s); took.Round(time.Second) != spec.DefaultLiveness.Silence {
			t.Errorf("silent afterwards, it is offline after %s", took)
		}
	})
}

func TestNodeBehindALostServerIsSuspectedOnce(t *testing.T) {
	leadBehind(t, func(string) bool { return true }, alive, func(l *Loop, s func() string) {
		began := time.Now()
		time.Sleep(spec.DefaultLiveness.Silence + time.Second)
		want(t, s, "ready")
		l.Disconnected("n") // the connection to the other server is closed
		offlineAfter(t, s)
		if took := time.Since(began).Round(time.Second); took != spec.DefaultLiveness.Silence+spec.DefaultLiveness.Reconnect {
			t.Errorf("it is offline after %s", took)
		}
	})
}

func TestMachineLostWithItsServerIsSoonOffline(t *testing.T) {
	var m switched
	m.on.Store(true)
	leadBehind(t, func(string) bool { return true }, m.probe, func(l *Loop, s func() string) {
		m.on.Store(false)
		if took := offlineAfter(t, s); took > spec.DefaultLiveness.Silence+time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

func TestReconnectEndsTheSuspicion(t *testing.T) {
	var m switched
	m.on.Store(true)
	leadWith(t, m.probe, func(l *Loop, s func() string) {
		l.Disconnected("n")
		m.on.Store(false)
		time.Sleep(300 * time.Millisecond)
		l.Connected("n", here, &v1.NodeStatus{})
		for range 30 {
			time.Sleep(windows.Heartbeat)
			l.Heartbeat("n", &v1.Heartbeat{})
			want(t, s, "ready")
		}
	})
}

// A node comes back from another machine while the first one is probed: the race detector
// sees whether the two share an address.
func TestNodeReconnectsFromAnotherMachine(t *testing.T) {
	var m switched
	m.on.Store(true)
	leadWith(t, m.probe, func(l *Loop, s func() string) {
		for i := range byte(20) {
			l.Disconnected("n")
			l.Connected("n", netip.AddrFrom4([4]byte{192, 0, 2, i}), &v1.NodeStatus{})
			want(t, s, "ready")
		}
	})
}

func TestGoodbyeIsBelievedAtOnce(t *testing.T) {
	leadWith(t, alive, func(l *Loop, s func() string) {
		l.Goodbye("n", "stopped by cloudless down")
		want(t, s, "ready")
		l.Disconnected("n")
		want(t, s, "offline")
		if got := l.store.Snapshot().Node("n").GetStatus().GetReason(); got != "stopped by cloudless down" {
			t.Errorf("the reason is %q", got)
		}
		l.Connected("n", here, &v1.NodeStatus{})
		want(t, s, "ready")
	})
}

// Each time that a node goes offline is one loss, however it went.
func TestLossIsCountedOnce(t *testing.T) {
	for about, lose := range map[string]func(l *Loop){
		"silent":  func(*Loop) {},
		"broken":  func(l *Loop) { l.Disconnected("n") },
		"goodbye": func(l *Loop) { l.Goodbye("n", "stopped by cloudless down"); l.Disconnected("n") },
	} {
		t.Run(about, func(t *testing.T) {
			leadWith(t, alive, func(l *Loop, s func() string) {
				lose(l)
				offlineAfter(t, s)
				l.Disconnected("n") // the session of an offline node is ended
				wantLosses(t, l, 1)
			})
		})
	}
}

// A node that does not come to a new leader is one loss, too.
func TestLossSeenByANewLeaderIsCountedOnce(t *testing.T) {
	_ = lead(t, "ready", nil, func(t *testing.T, l *Loop, s func() string, _ func() int) {
		offlineAfter(t, s)
		wantLosses(t, l, 1)
	})
}

// The state may lag: a node whose session breaks before its return is committed goes
// offline once more.
func TestLossRightAfterAReturnIsCountedOnce(t *testing.T) {
	s := NewStanding(time.Now())
	s.Enter(spec.NodeOffline, time.Now())
	s.Mended()
	s.Broke(time.Now())
	s.Enter(spec.NodeReady, time.Now())
	s.Enter(spec.NodeOffline, time.Now())
	if got := s.record.GetLosses(); math.Abs(got-1) > 0.01 {
		t.Errorf("%.2f losses were counted", got)
	}
}

// A session that breaks after a long uptime counts from then on. Together with the loss
// that follows it is one.
func TestLossAfterALongUptimeIsCountedInFull(t *testing.T) {
	start := time.Now()
	s := NewStanding(start)
	s.Enter(spec.NodeReady, start)
	end := start.Add(lossesHalfLife)
	s.Broke(end)
	s.Enter(spec.NodeOffline, end)
	if got := s.record.GetLosses(); math.Abs(got-1) > 0.001 {
		t.Errorf("%.3f losses were counted", got)
	}
}

func wantLosses(t *testing.T, l *Loop, expected float64) {
	t.Helper()
	n := node("offline")
	l.Observe(n)
	if got := n.GetStatus().GetReliability().GetRecord().GetLosses(); math.Abs(got-expected) > 0.01 {
		t.Errorf("%.2f losses were counted, want %g", got, expected)
	}
}

// A refusal is an answer; an unreachable machine gives none.
func TestTCPProbe(t *testing.T) {
	if !TCPProbe(t.Context(), netip.MustParseAddr("127.0.0.1")) {
		t.Error("this machine does not answer itself")
	}
	if testing.Short() {
		t.Skip("an empty network needs root")
	}
	answered := make(chan bool)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its network
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
		}
		answered <- TCPProbe(t.Context(), netip.MustParseAddr("192.0.2.7"))
	}()
	if <-answered {
		t.Error("a probe of an unused address was answered")
	}
}

// A change of the leader alone makes no node offline, not even one without a session at
// that moment. What the old leader knew of machines no longer counts.
func TestReturningLeaderGivesAFullInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proposer := &log{store: storeWith(t, node("enrolling")), index: 1}
		loop := New(proposer.store, proposer, alive)
		run := func(f func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- loop.Run(ctx) }()
			synctest.Wait()
			f()
			synctest.Wait()
			cancel()
			<-done
		}
		now := func() string { return proposer.store.Snapshot().Node("n").GetStatus().GetState() }
		run(func() { loop.Connected("n", here, &v1.NodeStatus{}) })
		loop.Disconnected("n") // because the leader has changed
		time.Sleep(time.Hour)
		run(func() {
			time.Sleep(windows.Reconnect - time.Millisecond)
			want(t, now, "ready")
			loop.Connected("n", here, &v1.NodeStatus{})
			time.Sleep(windows.Silence - time.Millisecond)
			want(t, now, "ready")
		})
		if events := proposer.store.Snapshot().Count(state.KindEvent); events != 1 {
			t.Errorf("%d events tell of a node that became ready once", events)
		}
	})
}

// The windows follow the configuration at once, also by class. Shorter windows start over
// for all nodes.
func TestWindowsFollowTheConfiguration(t *testing.T) {
	leadWith(t, alive, func(l *Loop, s func() string) {
		configure := func(c *v1.ClusterSpec) {
			put(t, l, &v1.Cluster{Metadata: &v1.Metadata{Uid: "c", Name: "c"}, Spec: c})
			synctest.Wait()
		}
		configure(&v1.ClusterSpec{Liveness: &v1.Liveness{Heartbeat: "10s", Silence: "30s"}})
		l.Heartbeat("n", &v1.Heartbeat{})
		time.Sleep(29 * time.Second)
		want(t, s, "ready")
		configure(&v1.ClusterSpec{Liveness: &v1.Liveness{Silence: "5s"}})
		time.Sleep(5*time.Second - time.Millisecond)
		want(t, s, "ready")
		time.Sleep(time.Millisecond)
		want(t, s, "offline")
		l.Heartbeat("n", &v1.Heartbeat{})
		want(t, s, "ready")

		configure(&v1.ClusterSpec{NodeClasses: []*v1.NodeClass{{Name: "laptops", Labels: "kind=laptop", Liveness: &v1.Liveness{Silence: "1m"}}}})
		n := node("ready")
		n.Metadata.Labels = map[string]string{"kind": "laptop"}
		put(t, l, n)
		synctest.Wait()
		l.Heartbeat("n", &v1.Heartbeat{})
		time.Sleep(59 * time.Second)
		want(t, s, "ready")
		time.Sleep(time.Second)
		want(t, s, "offline")
	})
}

// A cordon takes effect with its own transaction.
func TestSettleFollowsAvailability(t *testing.T) {
	leadWith(t, alive, func(l *Loop, s func() string) {
		want(t, s, "ready")
		n := node("ready")
		n.Spec = &v1.NodeSpec{Availability: "cordoned", AvailabilityReason: "new disk"}
		l.Settle(n)
		if n.GetStatus().GetState() != "cordoned" || n.GetStatus().GetReason() != "new disk" {
			t.Errorf("the node is %v", n.GetStatus())
		}
		put(t, l, n)
		want(t, s, "cordoned")
		l.Heartbeat("n", &v1.Heartbeat{Status: &v1.NodeStatus{Capacity: &v1.NodeResources{Cpu: "8"}}})
		want(t, s, "cordoned")
	})
}

// The documentation says that servers probe nodes, at which port and how often.
func TestDocsDescribeTheProbe(t *testing.T) {
	pages, err := filepath.Glob("../../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	pages = append(pages, "../../../README.md")
	tells := fmt.Sprintf("every %s minutes", map[time.Duration]string{5 * time.Minute: "five"}[probeEvery])
	told := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		words := strings.Join(strings.Fields(string(text)), " ")
		for _, wrong := range []string{"never connect to", "ever connects to a node", "calls no node", "only knocks"} {
			if strings.Contains(words, wrong) {
				t.Errorf("%s says %q", page, wrong)
			}
		}
		if strings.Contains(words, fmt.Sprintf("TCP port %d", probePort)) && strings.Contains(words, tells) {
			told++
		}
	}
	if told < 3 { // first-app.md, nodes.md and architecture.md
		t.Errorf("%d pages tell of it", told)
	}
}
