package consistency

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// Verb is what a call was to do.
type Verb string

// The verbs. A read by HEAD, by GET and by a range are all reads.
const (
	Read     Verb = "read"
	Put      Verb = "put"
	Complete Verb = "completion of an upload"
	Delete   Verb = "deletion"
	List     Verb = "listing"
)

func (v Verb) writes() bool { return v == Put || v == Complete }

func (v Verb) changes() bool { return v.writes() || v == Delete }

// Outcome is what the caller knows.
type Outcome string

// The outcomes. Reads and listings that were not answered say nothing: they are in no history.
const (
	Done Outcome = "acknowledged"
	// Failed is a change that certainly did not happen and never will.
	Failed Outcome = "refused"
	// Unknown is a change that may have happened, and may still happen.
	Unknown Outcome = "without an answer"
)

// Call is one call of a client. Its times are since the beginning of the run.
type Call struct {
	Client     int
	Verb       Verb
	Key        string
	Begin, End time.Duration
	Outcome    Outcome
	// Seen is what a read found, or what a change leaves: None for a deletion.
	Seen Seen
	// Listing is what a listing found.
	Listing Listing
}

// Seen is what is under a key.
type Seen struct {
	Content Content
	// Torn is why what was seen is no content that anybody wrote. It is empty if it is.
	Torn string
}

// Listing is a page of a listing: the keys after one, through another one. An empty Through is the end.
type Listing struct {
	After, Through string
	Found          map[string]Seen
}

// covers is whether the page would have a key.
func (l Listing) covers(key string) bool {
	return key > l.After && (l.Through == "" || key <= l.Through)
}

func (c Call) String() string {
	at := fmt.Sprintf("%.3fs to %.3fs, client %d", c.Begin.Seconds(), c.End.Seconds(), c.Client)
	switch {
	case c.Verb == Delete:
		return fmt.Sprintf("%s: deletion of %s, %s", at, c.Key, c.Outcome)
	case c.Verb.writes():
		return fmt.Sprintf("%s: %s of %s with %v, %s", at, c.Verb, c.Key, c.Seen.Content, c.Outcome)
	case c.Seen.Torn != "":
		return fmt.Sprintf("%s: %s found torn under %s: %s", at, c.Verb, c.Key, c.Seen.Torn)
	}
	return fmt.Sprintf("%s: %s found under %s %v", at, c.Verb, c.Key, c.Seen.Content)
}

// History is all calls of a run. Its methods may be called at once.
type History struct {
	mu    sync.Mutex
	calls []Call
}

// Add adds a call that has ended.
func (h *History) Add(c Call) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, c)
}

// Calls returns all calls so far.
func (h *History) Calls() []Call {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls)
}

// byKey are the calls on each key. A listing counts as a read of each key of its range that was ever the key of a call.
func byKey(calls []Call) map[string][]Call {
	keys := map[string][]Call{}
	for _, c := range calls {
		if c.Verb != List {
			keys[c.Key] = append(keys[c.Key], c)
			continue
		}
		for key := range c.Listing.Found {
			if _, known := keys[key]; !known {
				keys[key] = nil
			}
		}
	}
	for _, c := range calls {
		if c.Verb != List {
			continue
		}
		for key := range keys {
			if seen, found := c.Listing.Found[key]; found || c.Listing.covers(key) {
				one := c
				one.Key, one.Seen = key, seen
				keys[key] = append(keys[key], one)
			}
		}
	}
	return keys
}
