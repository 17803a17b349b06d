package sim

import (
	"fmt"
	"hash"
	"hash/fnv"
	"strings"
	"time"
)

// kept is how many lines of a story are shown when it fails.
const kept = 60

// trace is the story so far: a hash of all of it, and its last lines.
type trace struct {
	hash  hash.Hash64
	last  [kept]string
	lines int
	// tell receives every line, if it is not nil.
	tell func(string)
}

func newTrace(tell func(string)) trace { return trace{hash: fnv.New64a(), tell: tell} }

func (t *trace) add(line string) {
	_, _ = t.hash.Write([]byte(line)) // never fails
	_, _ = t.hash.Write([]byte{'\n'})
	t.last[t.lines%kept] = line
	t.lines++
	if t.tell != nil {
		t.tell(line)
	}
}

func (t *trace) tail() string {
	var b strings.Builder
	for i := max(0, t.lines-kept); i < t.lines; i++ {
		b.WriteString("  " + t.last[i%kept] + "\n")
	}
	return b.String()
}

// note adds a line to the story.
func (w *World) note(format string, args ...any) {
	w.trace.add(fmt.Sprintf("%12s ", w.now.Truncate(time.Millisecond)) + fmt.Sprintf(format, args...))
}

// Failure is an invariant that did not hold.
type Failure struct {
	Invariant string
	Detail    string
	At        time.Duration
}

func (f *Failure) Error() string {
	return fmt.Sprintf("invariant %q does not hold at %s: %s", f.Invariant, f.At, f.Detail)
}

// fail ends the story. Only the first failure counts.
func (w *World) fail(invariant, format string, args ...any) {
	if w.failure == nil {
		w.failure = &Failure{Invariant: invariant, Detail: fmt.Sprintf(format, args...), At: w.now}
		w.note("BROKEN: %s: %s", invariant, w.failure.Detail)
	}
}
