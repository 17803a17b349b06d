package chaos

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// Registers are annotations of workloads. Every value is written by only one call, so a
// value identifies its call.

// verb is what a call was to do.
type verb string

const (
	read  verb = "read"
	write verb = "write"
	// swap writes if the register still has the value that was read before.
	swap verb = "swap"
)

// outcome is what the caller knows.
type outcome string

const (
	done outcome = "done"
	// refused is a swap that found another value, which the answer contains.
	refused outcome = "refused"
	// unknown is a write or swap without an answer: it may have happened, and may
	// still happen.
	unknown outcome = "unknown"
)

// call is one call of a client on one register.
type call struct {
	client      int
	register    string
	verb        verb
	begin, end  time.Duration
	value       string // that is written
	expected    string // by a swap
	outcome     outcome
	seen        string // the value in the answer
	seenVersion uint64
}

// observed is the value that was in the register when a call took effect, if the answer
// contains it.
func (c call) observed() (string, bool) {
	switch {
	case c.verb == read, c.outcome == refused:
		return c.seen, true
	case c.verb == swap && c.outcome == done:
		return c.expected, true
	}
	return "", false
}

func (c call) String() string {
	at := fmt.Sprintf("client %d, %.3fs to %.3fs, %s", c.client, c.begin.Seconds(), c.end.Seconds(), c.register)
	switch c.verb {
	case read:
		return fmt.Sprintf("%s: read %s at version %d", at, c.seen, c.seenVersion)
	case write:
		return fmt.Sprintf("%s: write %s, %s", at, c.value, c.outcome)
	}
	return fmt.Sprintf("%s: swap %s for %s, %s (seen %s)", at, c.expected, c.value, c.outcome, c.seen)
}

// history is all calls of a run whose outcome matters.
type history struct {
	mu    sync.Mutex
	calls []call
	// stale are answers of stale reads.
	stale []call
}

func (h *history) add(c call) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, c)
}

func (h *history) addStale(c call) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stale = append(h.stale, c)
}

// settle decides the calls of unknown outcome, without which the search for an order is
// hopeless. If no call saw the value, it was written after everything else, or never: the
// call can be dropped. If a call saw it, it was written before that call had its answer:
// that bounds the write. Neither changes the verdict.
func settle(calls []call) (settled []call) {
	seen := sightings{}
	for _, c := range calls {
		if value, ok := c.observed(); ok && c.outcome != unknown {
			seen.add(c.register, value, c.end)
		}
	}
	// A swap that happened has seen what it expected.
	for more := true; more; {
		more = false
		for _, c := range calls {
			if at, ok := seen.of(c.register, c.value); ok && c.verb == swap && c.outcome == unknown {
				more = seen.add(c.register, c.expected, at) || more
			}
		}
	}
	for _, c := range calls {
		if c.outcome == unknown {
			at, ok := seen.of(c.register, c.value)
			if !ok {
				continue
			}
			c.end, c.outcome = max(c.begin, at), done
		}
		settled = append(settled, c)
	}
	return settled
}

// sightings are by when a value of a register had been seen at the latest.
type sightings map[[2]string]time.Duration

func (s sightings) of(register, value string) (time.Duration, bool) {
	at, ok := s[[2]string{register, value}]
	return at, ok
}

// add reports whether that is new.
func (s sightings) add(register, value string, at time.Duration) bool {
	before, known := s.of(register, value)
	if known && before <= at {
		return false
	}
	s[[2]string{register, value}] = at
	return true
}

// register is the model of a register, one value at a time.
var register = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		c := input.(call)
		if value, ok := c.observed(); ok && value != state.(string) {
			return false, state
		}
		if c.verb == read || c.outcome == refused {
			return c.verb == read || c.expected != state.(string), state
		}
		return true, c.value
	},
	Partition: func(operations []porcupine.Operation) (parts [][]porcupine.Operation) {
		byRegister := map[string][]porcupine.Operation{}
		for _, o := range operations {
			name := o.Input.(call).register
			byRegister[name] = append(byRegister[name], o)
		}
		for _, name := range slices.Sorted(maps.Keys(byRegister)) {
			parts = append(parts, byRegister[name])
		}
		return parts
	},
	DescribeOperation: func(input, _ any) string {
		c := input.(call)
		switch {
		case c.verb == read:
			return "read " + c.seen
		case c.verb == write:
			return "write " + c.value
		case c.outcome == refused:
			return fmt.Sprintf("swap %s, but it is %s", c.expected, c.seen)
		}
		return fmt.Sprintf("swap %s for %s", c.expected, c.value)
	},
	DescribeState: func(state any) string { return state.(string) },
}

func operations(calls []call) (all []porcupine.Operation) {
	for _, c := range calls {
		all = append(all, porcupine.Operation{ClientId: c.client, Input: c, Call: int64(c.begin), Return: int64(c.end)})
	}
	return all
}

// checkPatience bounds the search for an order. It is no measure of speed: a search that
// takes longer counts as failed.
const checkPatience = 5 * time.Minute

// linearizable says why the calls cannot have happened in any order that agrees
// with the answers and with real time. The drawing shows how far an order goes.
func linearizable(calls []call, faults []span) (drawing *porcupine.LinearizationInfo, err error) {
	result, info := porcupine.CheckOperationsVerbose(register, operations(settle(calls)), checkPatience)
	if result == porcupine.Ok {
		return nil, nil
	}
	var notes []porcupine.Annotation
	for _, f := range faults {
		notes = append(notes, porcupine.Annotation{Tag: "faults", Start: int64(f.begin), End: int64(f.end), Description: f.what})
	}
	info.AddAnnotations(notes)
	if result == porcupine.Unknown {
		return &info, fmt.Errorf("no order of the %d calls was found in %v, and none was ruled out", len(calls), checkPatience)
	}
	return &info, fmt.Errorf("the history of %d calls is not linearizable", len(calls))
}

// versions says which call was applied twice, or which version has two values:
// a value belongs to one write, and so to one version. It holds for stale
// answers, too, which may be old but never wrong.
func versions(h *history) error {
	type version struct {
		register string
		number   uint64
	}
	valueOf, versionOf := map[version]call{}, map[[2]string]call{}
	for _, c := range slices.Concat(h.calls, h.stale) {
		if c.seenVersion == 0 {
			continue
		}
		byVersion, byValue := version{c.register, c.seenVersion}, [2]string{c.register, c.seen}
		if other, ok := valueOf[byVersion]; ok && other.seen != c.seen {
			return fmt.Errorf("version %d of %s has two values:\n%v\n%v", c.seenVersion, c.register, other, c)
		}
		if other, ok := versionOf[byValue]; ok && other.seenVersion != c.seenVersion {
			return fmt.Errorf("value %s of %s was written twice:\n%v\n%v", c.seen, c.register, other, c)
		}
		valueOf[byVersion], versionOf[byValue] = c, c
	}
	return nil
}

// staleAnswers says which stale answer shows a value whose write had not begun by then.
func staleAnswers(h *history) error {
	began := map[[2]string]time.Duration{}
	for _, c := range h.calls {
		if c.verb != read {
			began[[2]string{c.register, c.value}] = c.begin
		}
	}
	for _, c := range h.stale {
		if at, ok := began[[2]string{c.register, c.seen}]; !ok || at > c.end {
			return fmt.Errorf("a stale answer shows a value that was not written: %v", c)
		}
	}
	return nil
}
