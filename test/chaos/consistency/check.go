package consistency

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// forever is the end of a change that may still happen.
const forever = time.Duration(math.MaxInt64)

// patience bounds the search for an order of the calls of one key. It is no measure of speed: a search that takes longer
// counts as failed.
const patience = 5 * time.Minute

// Check returns what contradicts the promises of S3, a sentence for each contradiction. There is none if all is well.
func Check(calls []Call) (complaints []string) {
	keys := byKey(calls)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		r := newRegister(key, keys[key])
		found := r.complaints()
		if len(found) == 0 {
			found = r.order(patience)
		}
		complaints = append(complaints, found...)
	}
	return complaints
}

// register is what is known of one key.
type register struct {
	key            string
	reads, changes []Call
	// writes are the changes that store contents.
	writes map[Content]Call
	// sure is when a content was certainly there: its write was acknowledged, or it was seen.
	sure map[Content]time.Duration
}

func newRegister(key string, calls []Call) *register {
	r := &register{key: key, writes: map[Content]Call{}, sure: map[Content]time.Duration{}}
	for _, c := range calls {
		if !c.Verb.changes() {
			r.reads = append(r.reads, c)
			r.assure(c)
			continue
		}
		r.changes = append(r.changes, c)
		if c.Verb.writes() {
			r.writes[c.Seen.Content] = c
		}
		if c.Outcome == Done {
			r.assure(c)
		}
	}
	slices.SortStableFunc(r.reads, func(a, b Call) int { return cmp.Compare(a.Begin, b.Begin) })
	return r
}

// assure remembers that the content of a call was there at its end, or before.
func (r *register) assure(c Call) {
	if at, ok := r.sure[c.Seen.Content]; !ok || c.End < at {
		r.sure[c.Seen.Content] = c.End
	}
}

// settled is by when a change has certainly happened.
func (r *register) settled(c Call) time.Duration {
	if c.Outcome == Done {
		return c.End
	}
	if at, ok := r.sure[c.Seen.Content]; ok && c.Verb.writes() {
		return max(at, c.Begin)
	}
	return forever
}

// complaints are what single reads contradict. They name the calls; what only several reads together contradict is for
// order to find.
func (r *register) complaints() (all []string) {
	for _, read := range r.reads {
		if why := r.contradicts(read); why != "" {
			all = append(all, why)
		}
	}
	return all
}

func (r *register) contradicts(read Call) string {
	if read.Seen.Torn != "" {
		return fmt.Sprintf("torn object: %v", read)
	}
	if read.Seen.Content == None {
		return r.missing(read)
	}
	write, written := r.writes[read.Seen.Content]
	switch {
	case !written:
		return fmt.Sprintf("strange object: nobody wrote that under this key: %v", read)
	case write.Outcome == Failed:
		return fmt.Sprintf("refused write: it happened nevertheless:\n\t%v\n\t%v", write, read)
	case write.Begin > read.End:
		return fmt.Sprintf("read of the future:\n\t%v\n\t%v", read, write)
	}
	for _, later := range r.changes {
		if later.Outcome == Failed || later.Begin <= r.settled(write) || r.settled(later) >= read.Begin {
			continue
		}
		if later.Verb == Delete {
			return fmt.Sprintf("deleted object came back:\n\t%v\n\t%v\n\t%v", write, later, read)
		}
		return fmt.Sprintf("stale read:\n\t%v\n\t%v\n\t%v", write, later, read)
	}
	return ""
}

// missing says which write a read should have found that found nothing.
func (r *register) missing(read Call) string {
	for _, write := range r.changes {
		if !write.Verb.writes() || write.Outcome == Failed || r.settled(write) >= read.Begin {
			continue
		}
		if !slices.ContainsFunc(r.changes, func(c Call) bool {
			ended := c.Outcome == Done && c.End < write.Begin
			return c.Verb == Delete && c.Outcome != Failed && c.Begin <= read.End && !ended
		}) {
			return fmt.Sprintf("lost write: a %s finds nothing:\n\t%v\n\t%v", read.Verb, write, read)
		}
	}
	return ""
}

// order says whether no order of the calls agrees with the answers and with real time.
func (r *register) order(patience time.Duration) []string {
	calls := r.relevant()
	switch porcupine.CheckOperationsTimeout(model, operations(calls), patience) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return []string{fmt.Sprintf("%s: no order of %d calls was found in %v, and none was ruled out", r.key, len(calls), patience)}
	}
	return []string{fmt.Sprintf("%s: no order of its calls agrees with what they saw:\n%s", r.key, excerpt(calls))}
}

// relevant are the calls without those that no search needs: changes that did not happen, writes without an answer whose
// content nobody saw, and deletions without an answer after which nobody missed an object. They could all have happened
// at the end, or never.
func (r *register) relevant() (calls []Call) {
	var lastMissing time.Duration = -1
	for _, read := range r.reads {
		if read.Seen.Content == None {
			lastMissing = max(lastMissing, read.End)
		}
	}
	for _, c := range r.changes {
		_, seen := r.sure[c.Seen.Content]
		switch {
		case c.Outcome == Failed:
		case c.Outcome == Done:
			calls = append(calls, c)
		case c.Verb == Delete && c.Begin <= lastMissing:
			c.End = forever
			calls = append(calls, c)
		case c.Verb.writes() && seen:
			c.End = r.settled(c)
			calls = append(calls, c)
		}
	}
	return append(calls, r.reads...)
}

// model is a register of contents.
var model = porcupine.Model{
	Init: func() any { return None },
	Step: func(state, input, _ any) (bool, any) {
		c := input.(Call)
		if c.Verb.changes() {
			return true, c.Seen.Content
		}
		return state.(Content) == c.Seen.Content, state
	},
}

func operations(calls []Call) (all []porcupine.Operation) {
	for _, c := range calls {
		all = append(all, porcupine.Operation{ClientId: c.Client, Input: c, Call: int64(c.Begin), Return: int64(c.End)})
	}
	return all
}

// excerpt are the last calls until there is no order any more.
func excerpt(calls []Call) (lines string) {
	calls = slices.SortedFunc(slices.Values(calls), func(a, b Call) int { return cmp.Compare(a.End, b.End) })
	count := sort.Search(len(calls), func(count int) bool {
		return porcupine.CheckOperationsTimeout(model, operations(until(calls, count)), patience) == porcupine.Illegal
	})
	const most = 40
	calls = calls[:min(count, len(calls))]
	for _, c := range calls[max(0, len(calls)-most):] {
		lines += "\t" + c.String() + "\n"
	}
	return lines
}

// until are the first calls in the order of their ends. Others may have begun by then: the changes among them count like
// those without an answer.
func until(calls []Call, count int) []Call {
	part := slices.Clone(calls[:count])
	for _, c := range calls[count:] {
		if c.Verb.changes() {
			c.End = forever
			part = append(part, c)
		}
	}
	return part
}
