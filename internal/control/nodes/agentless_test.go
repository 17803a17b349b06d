package nodes

import (
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// reportEvery is how often a machine says that its agent is gone.
const reportEvery = time.Second

// withoutAgent lets a machine say for a while that its agent is gone and its replicas run on.
func withoutAgent(l *Loop, length time.Duration) {
	for range length / reportEvery {
		time.Sleep(reportEvery)
		l.AgentLost("n", true)
	}
}

func TestNodeWhoseAgentAndReplicasEndedIsOfflineAtOnce(t *testing.T) {
	for name, lose := range map[string]func(l *Loop){
		"the session breaks first":    func(l *Loop) { l.Disconnected("n"); l.AgentLost("n", false) },
		"the session breaks after it": func(l *Loop) { l.AgentLost("n", false); l.Disconnected("n") },
		"the replicas end later":      func(l *Loop) { l.Disconnected("n"); l.AgentLost("n", true); l.AgentLost("n", false) },
	} {
		t.Run(name, func(t *testing.T) {
			leadWith(t, alive, func(l *Loop, s func() string) {
				lose(l)
				want(t, s, "offline")
			})
		})
	}
}

func TestNothingMovesWhileReplicasRunWithoutAgent(t *testing.T) {
	leadWith(t, alive, func(l *Loop, s func() string) {
		l.Disconnected("n")
		withoutAgent(l, 6*windows.Reconnect)
		want(t, s, "ready")
		l.Connected("n", here, &v1.NodeStatus{})
		want(t, s, "ready")
	})
}

func TestNodeWhoseMachineFallsSilentWithoutAgentIsOffline(t *testing.T) {
	leadWith(t, alive, func(l *Loop, s func() string) {
		l.Disconnected("n")
		withoutAgent(l, 2*windows.Reconnect)
		want(t, s, "ready")
		if after := offlineAfter(t, s); after > windows.Silence+time.Second {
			t.Errorf("the node is offline %s after its machine fell silent", after)
		}
	})
}

func TestAgentMustComeBackSomeDay(t *testing.T) {
	leadWith(t, alive, func(l *Loop, s func() string) {
		l.Disconnected("n")
		withoutAgent(l, agentAbsence+2*reportEvery)
		want(t, s, "offline")
	})
}

// What was said of an earlier agent must not count against the next one.
func TestReturnedAgentIsTrustedAgain(t *testing.T) {
	leadWith(t, alive, func(l *Loop, s func() string) {
		l.Disconnected("n")
		l.AgentLost("n", false)
		want(t, s, "offline")
		l.Connected("n", here, &v1.NodeStatus{})
		want(t, s, "ready")
		l.Disconnected("n")
		time.Sleep(windows.Reconnect - time.Second)
		want(t, s, "ready")
	})
}
