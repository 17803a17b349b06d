package consistency

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// at makes a call from one second to another.
func at(begin, end int, verb Verb, key string, seen Content, outcome Outcome) Call {
	return Call{
		Begin: time.Duration(begin) * time.Second, End: time.Duration(end) * time.Second,
		Verb: verb, Key: key, Seen: Seen{Content: seen}, Outcome: outcome,
	}
}

func put(begin, end int, c Content) Call     { return at(begin, end, Put, "k", c, Done) }
func tried(begin, end int, c Content) Call   { return at(begin, end, Put, "k", c, Unknown) }
func read(begin, end int, c Content) Call    { return at(begin, end, Read, "k", c, Done) }
func deleted(begin, end int) Call            { return at(begin, end, Delete, "k", None, Done) }
func triedToDelete(begin, end int) Call      { return at(begin, end, Delete, "k", None, Unknown) }
func refused(begin, end int, c Content) Call { return at(begin, end, Put, "k", c, Failed) }

func listed(begin, end int, after, through string, found map[string]Content) Call {
	c := Call{Verb: List, Begin: time.Duration(begin) * time.Second, End: time.Duration(end) * time.Second}
	c.Listing = Listing{After: after, Through: through, Found: map[string]Seen{}}
	for key, content := range found {
		c.Listing.Found[key] = Seen{Content: content}
	}
	return c
}

// a to d are the contents of the tests.
var (
	a = Content{Writer: 1, Number: 1, Size: 100}
	b = Content{Writer: 2, Number: 1, Size: 100}
	c = Content{Writer: 3, Number: 1, Size: 100}
)

func TestPlantedFlawsAreFound(t *testing.T) {
	torn := read(3, 4, None)
	_, err := Identify(slices.Concat(a.Bytes()[:64], b.Bytes()[64:]))
	torn.Seen.Torn = err.Error()
	missingPart := at(1, 2, Complete, "k", Content{Writer: 1, Number: 1, Size: 1000}, Done)
	whole := missingPart.Seen.Content.Bytes()
	partial := read(3, 4, None)
	_, err = Identify(slices.Concat(whole[:320], whole[640:]))
	partial.Seen.Torn = err.Error()
	tornList := listed(3, 4, "", "", nil)
	tornList.Listing.Found["k"] = Seen{Torn: "it has an ETag of nobody"}
	for what, test := range map[string]struct {
		calls []Call
		says  string
	}{
		"an acknowledged put is lost":      {[]Call{put(1, 2, a), read(3, 4, None)}, "lost write"},
		"a put that was seen is lost":      {[]Call{tried(1, 9, a), read(2, 3, a), read(4, 5, None)}, "lost write"},
		"a completion is lost":             {[]Call{at(1, 2, Complete, "k", a, Done), read(3, 4, None)}, "lost write: a read"},
		"a put after a deletion is lost":   {[]Call{deleted(1, 2), put(3, 4, a), read(5, 6, None)}, "lost write"},
		"an overwrite is lost":             {[]Call{put(1, 2, a), put(3, 4, b), read(5, 6, a)}, "stale read"},
		"a read is stale once":             {[]Call{put(1, 2, a), put(3, 4, b), read(5, 6, a), read(7, 8, b)}, "stale read"},
		"a deleted object comes back":      {[]Call{put(1, 2, a), deleted(3, 4), read(5, 6, None), read(7, 8, a)}, "deleted object came back"},
		"an object mixes two writes":       {[]Call{put(1, 2, a), put(1, 2, b), torn}, "torn object"},
		"a part of an upload is missing":   {[]Call{missingPart, partial}, "torn object"},
		"a refused put happens":            {[]Call{refused(1, 2, a), read(3, 4, a)}, "refused write"},
		"a read is before its put":         {[]Call{read(1, 2, a), put(3, 4, a)}, "read of the future"},
		"an object is of another key":      {[]Call{at(1, 2, Put, "other", a, Done), read(3, 4, a)}, "strange object"},
		"a listing misses a key":           {[]Call{put(1, 2, a), listed(3, 4, "", "", nil)}, "lost write: a listing"},
		"a page of a listing misses a key": {[]Call{put(1, 2, a), listed(3, 4, "j", "l", map[string]Content{})}, "lost write: a listing"},
		"a listing shows a deleted key":    {[]Call{put(1, 2, a), deleted(3, 4), listed(5, 6, "", "", map[string]Content{"k": a})}, "deleted object came back"},
		"a listing shows an old object":    {[]Call{put(1, 2, a), put(3, 4, b), listed(5, 6, "", "", map[string]Content{"k": a})}, "stale read"},
		"a listing shows a strange key":    {[]Call{listed(5, 6, "", "", map[string]Content{"k": a})}, "strange object"},
		"a listing shows a torn object":    {[]Call{put(1, 2, a), tornList}, "torn object"},
		"reads go back and forth":          {[]Call{tried(1, 9, a), tried(1, 9, b), read(2, 3, a), read(4, 5, b), read(6, 7, a)}, "no order"},
		"two readers see two orders":       {[]Call{put(1, 9, a), put(1, 9, b), read(2, 3, a), read(4, 5, b), read(10, 11, a)}, "no order"},
		"an object comes and goes": {
			[]Call{put(1, 2, a), triedToDelete(3, 9), read(4, 5, None), read(6, 7, a)}, "no order",
		},
	} {
		t.Run(what, func(t *testing.T) {
			complaints := Check(test.calls)
			if len(complaints) != 1 || !strings.Contains(complaints[0], test.says) {
				t.Errorf("the complaints are %q", complaints)
			}
		})
	}
}

func TestCorrectHistoriesAreAccepted(t *testing.T) {
	for what, calls := range map[string][]Call{
		"nothing at all":                        {},
		"a read beside a put":                   {put(1, 5, a), read(2, 3, None), read(2, 4, a)},
		"puts beside each other":                {put(1, 5, a), put(2, 4, b), read(6, 7, a), read(8, 9, a)},
		"a put without an answer":               {put(1, 2, a), tried(3, 4, b), read(5, 6, a)},
		"one that happens late":                 {put(1, 2, a), tried(3, 4, b), read(5, 6, a), read(7, 8, b)},
		"one that is overwritten":               {tried(1, 2, a), put(3, 4, b), read(5, 6, a)},
		"a deletion without an answer":          {put(1, 2, a), triedToDelete(3, 4), read(5, 6, a), read(7, 8, None)},
		"one that happens after another put":    {put(1, 2, a), triedToDelete(3, 4), put(5, 6, b), read(7, 8, b), read(9, 10, None)},
		"one that never happens":                {put(1, 2, a), triedToDelete(3, 4), read(5, 6, a)},
		"a refused put":                         {refused(1, 2, a), read(3, 4, None)},
		"a listing beside changes":              {put(1, 2, a), deleted(3, 6), listed(4, 5, "", "", map[string]Content{"k": a}), listed(4, 5, "", "", nil)},
		"listings of other ranges":              {put(1, 2, a), listed(3, 4, "k", "", nil), listed(3, 4, "", "j", nil)},
		"a listing after a deletion":            {put(1, 2, a), deleted(3, 4), listed(5, 6, "", "", nil)},
		"two deletions":                         {deleted(1, 2), put(3, 4, c), deleted(5, 6), deleted(7, 8), read(9, 10, None)},
		"equal contents under two keys":         {put(1, 2, a), at(1, 2, Put, "other", a, Done), at(3, 4, Delete, "other", None, Done), read(5, 6, a)},
		"a put that is seen before its answer":  {put(1, 9, a), read(2, 3, a), deleted(4, 5), read(6, 7, None)},
		"a put that was seen and then replaced": {tried(1, 2, a), read(3, 4, a), put(5, 6, b), read(7, 8, b)},
	} {
		if complaints := Check(calls); len(complaints) > 0 {
			t.Errorf("%s: %s", what, strings.Join(complaints, "\n"))
		}
	}
}

// simulated is a history of a store that does what it should, except with some probability.
func simulated(random *rand.Rand, flaw float64) (calls []Call) {
	state, old, wild := None, None, []Call(nil)
	for i := range 40 {
		begin := time.Duration(i*10) - time.Duration(random.IntN(25))
		call := Call{Client: i, Key: "k", Begin: begin, End: time.Duration(i*10) + time.Duration(random.IntN(25)), Outcome: Done, Verb: Read}
		if len(wild) > 0 && random.IntN(4) == 0 { // what had no answer happens after all
			old, state, wild = state, wild[0].Seen.Content, wild[1:]
		}
		switch random.IntN(5) {
		case 0:
			call.Verb, call.Seen.Content = Put, Content{Writer: 1, Number: uint32(i), Size: 100}
		case 1:
			call.Verb = Delete
		default:
			call.Seen.Content = state
			if random.Float64() < flaw {
				call.Seen.Content = old
			}
		}
		if call.Verb.changes() {
			if random.IntN(4) == 0 {
				call.Outcome = Unknown
				wild = append(wild, call)
			} else {
				old, state = state, call.Seen.Content
			}
		}
		calls = append(calls, call)
	}
	return calls
}

func TestCorrectStoresAreNeverBlamed(t *testing.T) {
	for seed := range uint64(500) {
		if complaints := Check(simulated(rand.New(rand.NewPCG(seed, 1)), 0)); len(complaints) > 0 {
			t.Fatalf("seed %d: %s", seed, strings.Join(complaints, "\n"))
		}
	}
}

// What single reads contradict has no order either, and dropping calls that no search needs hides nothing.
func TestComplaintsAgreeWithTheSearchForAnOrder(t *testing.T) {
	found := 0
	for seed := range uint64(500) {
		calls := simulated(rand.New(rand.NewPCG(seed, 2)), 0.1)
		r := newRegister("k", calls)
		all := newRegister("k", calls)
		single, order := r.complaints(), all.order(patience)
		if len(single) > 0 && len(order) == 0 {
			t.Fatalf("seed %d: there is an order, but %s", seed, strings.Join(single, "\n"))
		}
		if len(order) > 0 {
			found++
		}
	}
	if found < 50 {
		t.Errorf("only %d of 500 flawed histories have no order", found)
	}
}
