package chaos

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"pgregory.net/rapid"
)

func at(begin, end int, c call) call {
	c.register, c.begin, c.end = "r", time.Duration(begin), time.Duration(end)
	if c.outcome == "" {
		c.outcome = done
	}
	return c
}

// The checker refuses each of these broken histories, and accepts similar correct ones.
func TestBrokenHistoriesAreRefused(t *testing.T) {
	first := at(0, 1, call{verb: write, value: "a"})
	second := at(2, 3, call{verb: write, value: "b"})
	lost := at(2, 3, call{verb: write, value: "b", outcome: unknown})
	for what, c := range map[string]struct {
		calls []call
		right bool
	}{
		"a read of what was written":                  {[]call{first, second, at(4, 5, call{verb: read, seen: "b"})}, true},
		"a stale read":                                {[]call{first, second, at(4, 5, call{verb: read, seen: "a"})}, false},
		"a lost write":                                {[]call{first, at(2, 3, call{verb: read, seen: missing})}, false},
		"a read during a write":                       {[]call{first, at(2, 9, call{verb: write, value: "b"}), at(3, 4, call{verb: read, seen: "b"}), at(5, 6, call{verb: read, seen: "b"})}, true},
		"a read that goes back during a write":        {[]call{first, at(2, 9, call{verb: write, value: "b"}), at(3, 4, call{verb: read, seen: "b"}), at(5, 6, call{verb: read, seen: "a"})}, false},
		"a swap":                                      {[]call{first, at(2, 3, call{verb: swap, expected: "a", value: "b"})}, true},
		"a swap on an old value":                      {[]call{first, second, at(4, 5, call{verb: swap, expected: "a", value: "c"})}, false},
		"two swaps of one value":                      {[]call{first, at(2, 5, call{verb: swap, expected: "a", value: "b"}), at(2, 5, call{verb: swap, expected: "a", value: "c"})}, false},
		"a refused swap":                              {[]call{first, second, at(4, 5, call{verb: swap, expected: "a", outcome: refused, seen: "b"})}, true},
		"a swap refused with an old value":            {[]call{first, second, at(4, 5, call{verb: swap, expected: "x", outcome: refused, seen: "a"})}, false},
		"a swap refused for nothing":                  {[]call{first, at(2, 3, call{verb: swap, expected: "a", outcome: refused, seen: "a"})}, false},
		"an unanswered write that was not seen":       {[]call{first, lost, at(4, 5, call{verb: read, seen: "a"})}, true},
		"an unanswered write that happens later":      {[]call{first, lost, at(4, 5, call{verb: read, seen: "a"}), at(6, 7, call{verb: read, seen: "b"})}, true},
		"an unanswered write that happens and goes":   {[]call{first, lost, at(4, 5, call{verb: read, seen: "b"}), at(6, 7, call{verb: read, seen: "a"})}, false},
		"an unanswered write that happens too early":  {[]call{first, at(2, 3, call{verb: read, seen: "b"}), at(4, 5, call{verb: write, value: "b", outcome: unknown})}, false},
		"an unanswered swap of a value that is gone":  {[]call{first, second, at(4, 5, call{verb: swap, expected: "a", value: "c", outcome: unknown}), at(6, 7, call{verb: read, seen: "c"})}, false},
		"an answer with a value that was not written": {[]call{first, at(2, 3, call{verb: read, seen: "z"})}, false},
	} {
		drawing, err := linearizable(c.calls, nil)
		if (err == nil) != c.right || (err == nil) != (drawing == nil) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The verdict equals that of porcupine when calls of unknown outcome may happen at any time after they began, or never.
func TestSettlingChangesNoVerdict(t *testing.T) {
	open := register
	open.Step = func(state, input, output any) (bool, any) {
		if c := input.(call); c.outcome == unknown {
			if c.verb == swap && c.expected != state.(string) {
				return true, state // it has not happened, or not changed anything
			}
			return true, c.value
		}
		return register.Step(state, input, output)
	}
	verdicts := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		calls := randomHistory(t)
		var all []porcupine.Operation
		for _, o := range operations(calls) {
			if o.Input.(call).outcome == unknown {
				o.Return = math.MaxInt64
			}
			all = append(all, o)
		}
		settled, _ := linearizable(calls, nil)
		right := settled == nil
		if want := porcupine.CheckOperations(open, all); right != want {
			t.Fatalf("settled: %v, left open: %v, for\n%v", right, want, calls)
		}
		verdicts[right]++
	})
	if verdicts[true] == 0 || verdicts[false] == 0 {
		t.Errorf("all histories were alike: %v", verdicts)
	}
}

// randomHistory is one of a register that mostly works.
func randomHistory(t *rapid.T) (calls []call) {
	value, begun := "", []string{""}
	clock := 0
	for i := range rapid.IntRange(4, 9).Draw(t, "calls") {
		c := call{client: i, register: "r", verb: rapid.SampledFrom([]verb{read, write, swap}).Draw(t, "verb"), outcome: done}
		clock += rapid.IntRange(0, 3).Draw(t, "pause")
		c.begin, c.end = time.Duration(clock), time.Duration(clock+rapid.IntRange(1, 9).Draw(t, "length"))
		right := rapid.IntRange(0, 9).Draw(t, "luck") > 3
		shown := value
		if !right {
			shown = rapid.SampledFrom(begun).Draw(t, "shown")
		}
		happens := c.verb != read
		switch c.verb {
		case read:
			c.seen = shown
		case swap:
			c.expected = rapid.SampledFrom(begun).Draw(t, "expected")
			if happens = c.expected == shown; !happens {
				c.outcome, c.seen = refused, shown
			}
		}
		if c.verb != read {
			c.value = fmt.Sprint("v", i)
		}
		if c.verb != read && rapid.IntRange(0, 2).Draw(t, "answer") == 0 {
			c.outcome, c.seen = unknown, ""
			happens = happens && rapid.Bool().Draw(t, "happens")
		}
		if happens {
			value = c.value
		}
		if c.verb != read {
			begun = append(begun, c.value)
		}
		calls = append(calls, c)
	}
	return calls
}

// Versions reveal calls that were applied twice, which the order alone may not.
func TestVersionsRevealCallsAppliedTwice(t *testing.T) {
	seen := func(value string, version uint64) call {
		return at(0, 1, call{verb: read, seen: value, seenVersion: version})
	}
	for what, c := range map[string]struct {
		history *history
		right   bool
	}{
		"once":                      {&history{calls: []call{seen("a", 1), seen("b", 2), seen("a", 1)}}, true},
		"a value twice":             {&history{calls: []call{seen("a", 1), seen("a", 2)}}, false},
		"a version twice":           {&history{calls: []call{seen("a", 1), seen("b", 1)}}, false},
		"another in a stale answer": {&history{calls: []call{seen("a", 1)}, stale: []call{seen("b", 1)}}, false},
	} {
		if err := versions(c.history); (err == nil) != c.right {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestStaleAnswersMayBeOldButNotInvented(t *testing.T) {
	written := []call{at(0, 1, call{verb: write, value: "a"}), at(5, 6, call{verb: write, value: "b"})}
	for what, c := range map[string]struct {
		answer call
		right  bool
	}{
		"old":              {at(8, 9, call{verb: read, seen: "a"}), true},
		"new":              {at(8, 9, call{verb: read, seen: "b"}), true},
		"of the future":    {at(2, 3, call{verb: read, seen: "b"}), false},
		"not written":      {at(8, 9, call{verb: read, seen: "c"}), false},
		"of what is there": {at(8, 9, call{verb: read, seen: missing}), false},
	} {
		if err := staleAnswers(&history{calls: written, stale: []call{c.answer}}); (err == nil) != c.right {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The same seed always gives the same order, another seed another one, with every kind in it and no unknown kind.
func TestSeedFixesTheOrderOfFaults(t *testing.T) {
	names := slices.Sorted(maps.Keys(kinds))
	one, again, other := schedule(1, names, time.Hour), schedule(1, names, time.Hour), schedule(2, names, time.Hour)
	if describe(one) != describe(again) || describe(one) == describe(other) {
		t.Error("a seed does not say which order it is")
	}
	if shorter := schedule(1, names, time.Minute); describe(shorter) != describe(one[:len(shorter)]) {
		t.Error("a longer run begins otherwise")
	}
	count := map[string]int{}
	for i, s := range one {
		count[s.kind]++
		if kinds[s.kind] == nil || s.length <= 0 || i > 0 && s.at <= one[i-1].at {
			t.Errorf("step %d is %v", i, s)
		}
	}
	for _, name := range names {
		if n := count[name]; n < len(one)/len(names) {
			t.Errorf("%s comes %d times in %d", name, n, len(one))
		}
	}
}
