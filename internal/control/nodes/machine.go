package nodes

import (
	"fmt"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// The states of a node; the package comment draws the ways between them.
const (
	stateEnrolling = "enrolling"
	stateReady     = "ready"
	stateDraining  = "draining"
	stateCordoned  = "cordoned"
	stateOffline   = "offline"
	stateFailed    = "failed"
)

// The operator's wishes for a node, see NodeSpec.availability.
const (
	wishCordoned = "cordoned"
	wishDraining = "draining"
)

// presence is whether a node is there.
type presence int

const (
	// unsure is a node that may still come in time: it keeps its state.
	unsure presence = iota
	heard
	away
)

// follow is the state machine: the state after one in which a node was, by
// whether it is there, whether it can run anything, and what is wished of it.
func follow(state string, p presence, canRun bool, wish string) string {
	switch {
	case p == away && state != stateEnrolling && state != "":
		return stateOffline
	case p == heard && !canRun:
		return stateFailed
	case p == heard, p == unsure && inService(state):
		return inServiceAs(wish)
	case state == "":
		return stateEnrolling
	}
	return state
}

func inService(state string) bool {
	return state == stateReady || state == stateCordoned || state == stateDraining
}

func inServiceAs(wish string) string {
	switch wish {
	case wishCordoned:
		return stateCordoned
	case wishDraining:
		return stateDraining
	}
	return stateReady
}

// Observation is what is known of a node in memory.
type Observation struct {
	// Status is what the agent last said about the machine, without usage.
	Status *v1.NodeStatus
	// LastSeen is when the agent last said anything.
	LastSeen  time.Time
	Connected bool
	// Broken is when a node that is not connected lost its session.
	Broken time.Time
	// Gone is whether the machine of a node that is not connected does not answer
	// any more, though it did while the node was.
	Gone bool
	// Goodbye is why the agent will not be back soon, if it has said so.
	Goodbye string
	// NotBefore is since when the node is judged: by the liveness it has now, and
	// without the time that this server has stood still.
	NotBefore time.Time
	// Missed is how often in a row this server has led for long enough to hear of
	// the node, and has not, before others led.
	Missed int
}

// oftenMissed is after how many times a node has only the silence to come. A
// leader that changes again and again would else keep it from ever being offline:
// each begins anew.
const oftenMissed = 3

// window is how long a node without a session may take to come back.
func (o Observation) window(live spec.Liveness) time.Duration {
	if o.Missed >= oftenMissed {
		return min(live.Silence, live.Reconnect)
	}
	return live.Reconnect
}

// look says whether a node is there, until when that holds without news, zero
// if for ever, and if it is away why.
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
	}
	if until = latest(from, o.Broken).Add(o.window(live)); now.Before(until) {
		return unsure, until, ""
	}
	if o.Missed >= oftenMissed {
		return away, time.Time{}, fmt.Sprintf("no session for %s, nor the last %d times that the server led which leads now", spec.FormatDuration(o.window(live)), o.Missed)
	}
	return away, time.Time{}, "no session for " + spec.FormatDuration(live.Reconnect)
}

func latest(first time.Time, more ...time.Time) time.Time {
	for _, t := range more {
		if t.After(first) {
			first = t
		}
	}
	return first
}
