package nodes

import (
	"fmt"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// presence is whether a node is there.
type presence int

const (
	// unsure is a node that may still come in time: it keeps its state.
	unsure presence = iota
	heard
	away
)

// follow is the state machine: it returns the next state of a node, by whether it is there,
// whether it can run replicas, and the availability that the operator wants.
func follow(state string, p presence, canRun bool, availability string) string {
	switch {
	case p == away && state != spec.NodeEnrolling && state != "":
		return spec.NodeOffline
	case p == heard && !canRun:
		return spec.NodeFailed
	case p == heard, p == unsure && inService(state):
		return stateInService(availability)
	case state == "":
		return spec.NodeEnrolling
	}
	return state
}

func inService(state string) bool {
	return state == spec.NodeReady || state == spec.NodeCordoned || state == spec.NodeDraining
}

func stateInService(availability string) string {
	switch availability {
	case spec.AvailabilityCordoned:
		return spec.NodeCordoned
	case spec.AvailabilityDraining:
		return spec.NodeDraining
	}
	return spec.NodeReady
}

// Observation is what is known of a node in memory.
type Observation struct {
	// Status is the agent's last report about the machine, without usage.
	Status *v1.NodeStatus
	// LastSeen is when the agent's last message came.
	LastSeen  time.Time
	Connected bool
	// Broken is when a disconnected node lost its session.
	Broken time.Time
	// Gone is whether the machine of a disconnected node no longer answers, though it did
	// while the node was connected.
	Gone bool
	// Kept is when the machine of a disconnected node last said that its agent is gone and
	// its replicas run on. Deserted is whether it said that they have ended, too.
	Kept     time.Time
	Deserted bool
	// Goodbye is the reason if the agent has said goodbye.
	Goodbye string
	// NotBefore is when the judging of the node began: with its current timeouts, and
	// without the time that this server was stalled.
	NotBefore time.Time
	// Missed is how many terms in a row this server led long enough to hear of the node,
	// and did not.
	Missed int
}

// missedTermsLimit is how many missed terms reduce a node's window to the silence limit.
// Otherwise frequent changes of the leader would keep it from ever going offline, because
// each leader starts over.
const missedTermsLimit = 3

// window is how long a node without a session may take to come back.
func (o Observation) window(live spec.Liveness) time.Duration {
	if o.Missed >= missedTermsLimit {
		return min(live.Silence, live.Reconnect)
	}
	return live.Reconnect
}

// agentAbsence is how long a node may be without an agent while its replicas run on, and
// its machine says so.
const agentAbsence = 5 * time.Minute

// returnsBy is when a node without a session must be back.
func (o Observation) returnsBy(since time.Time, live spec.Liveness) time.Time {
	from := latest(since, o.NotBefore, o.LastSeen, o.Broken)
	by := from.Add(o.window(live))
	if kept := o.Kept.Add(live.Silence); kept.After(by) {
		by = latest(by, earliest(kept, from.Add(agentAbsence)))
	}
	return by
}

// look says whether a node is there, until when that holds without news (zero means
// forever), and why if it is away.
func (o Observation) look(now, since time.Time, live spec.Liveness) (p presence, until time.Time, why string) {
	from := latest(since, o.NotBefore, o.LastSeen)
	switch {
	case o.Connected:
		if until = from.Add(live.Silence); now.Before(until) {
			return heard, until, ""
		}
		return away, time.Time{}, "not heard of for " + spec.FormatDuration(live.Silence)
	case o.Goodbye != "":
		return away, time.Time{}, o.Goodbye
	case o.Gone:
		return away, time.Time{}, "its session broke and its machine does not answer"
	case o.Deserted:
		return away, time.Time{}, "its agent and all of its replicas have ended"
	}
	if until = o.returnsBy(since, live); now.Before(until) {
		return unsure, until, ""
	}
	if o.Kept.After(latest(since, o.Broken)) {
		return away, time.Time{}, "its agent did not come back"
	}
	if o.Missed >= missedTermsLimit {
		return away, time.Time{}, fmt.Sprintf("no session for %s, nor the last %d times that the server led which leads now", spec.FormatDuration(o.window(live)), o.Missed)
	}
	return away, time.Time{}, "no session for " + spec.FormatDuration(live.Reconnect)
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func latest(first time.Time, more ...time.Time) time.Time {
	for _, t := range more {
		if t.After(first) {
			first = t
		}
	}
	return first
}
