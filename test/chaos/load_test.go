package chaos

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

const second = time.Second

// replicaLife is when a made-up replica serves.
type replicaLife struct {
	release    string
	begin, end time.Duration
}

// made is a history of requests, 250 in a second, that replicas answer at random. Without any, a request fails.
func made(length time.Duration, replicas ...replicaLife) (all []request) {
	random := rand.New(rand.NewPCG(1, 2))
	for at := time.Duration(0); at < length; at += 4 * time.Millisecond {
		r := request{begin: at, end: at + time.Millisecond, by: "n1"}
		var serving []int
		for i, one := range replicas {
			if one.begin <= at && at < one.end {
				serving = append(serving, i)
			}
		}
		if len(serving) == 0 {
			r.failure = "connection refused"
		} else {
			i := serving[random.IntN(len(serving))]
			r.replica, r.release = fmt.Sprintf("shop-%d", i), replicas[i].release
		}
		all = append(all, r)
	}
	return all
}

func always(release string) replicaLife { return replicaLife{release, 0, time.Hour} }

func lossOf(begin, end time.Duration) []span {
	return []span{{what: "n2" + lossOfMachine, begin: begin, end: end}}
}

// The checker finds each of these breaches, and accepts similar histories without one.
func TestBrokenAvailabilityIsFound(t *testing.T) {
	good := always("good-1")
	for what, c := range map[string]struct {
		replicas []replicaLife
		faults   []span
		breach   string // part of a complaint; empty if there is none
	}{
		"three replicas serve":         {[]replicaLife{good, good, good}, nil, ""},
		"the fourth is missing":        {[]replicaLife{good, good, good, {"good-1", 0, 20 * second}}, nil, ""},
		"the third is missing":         {[]replicaLife{good, good, {"good-1", 0, 20 * second}}, nil, "below minAvailable from 20."},
		"the third is missing a while": {[]replicaLife{good, good, {"good-1", 0, 20 * second}, {"good-1", 21 * second, time.Hour}}, nil, "below minAvailable from 20."},
		"the third is replaced":        {[]replicaLife{good, good, {"good-1", 0, 21 * second}, {"good-2", 20 * second, time.Hour}}, nil, ""},
		"too few before all have started": {
			[]replicaLife{good, good, {"good-1", 5 * second, time.Hour}}, nil, "",
		},
		"the third is missing because its machine was lost": {
			[]replicaLife{good, good, {"good-1", 0, 20 * second}, {"good-1", 30 * second, time.Hour}}, lossOf(20*second, 23*second), "",
		},
		"the third is missing long after the loss": {
			[]replicaLife{good, good, {"good-1", 0, 20 * second}, {"good-1", 40 * second, time.Hour}}, lossOf(20*second, 23*second), "below minAvailable from 33.000s to 3",
		},
		"another fault is no loss": {
			[]replicaLife{good, good, {"good-1", 0, 20 * second}, {"good-1", 22 * second, time.Hour}},
			[]span{{what: "s2 killed", begin: 20 * second, end: 22 * second}},
			"below minAvailable from 20.",
		},
		"the third is replaced because its node is stranded": {
			[]replicaLife{good, good, {"good-1", 0, 20 * second}, {"good-1", 22 * second, time.Hour}},
			[]span{{what: "n2" + byPause, begin: 10 * second, end: 35 * second}},
			"",
		},
		"nothing replaces the third on a stranded node": {
			[]replicaLife{good, good, {"good-1", 0, 20 * second}, {"good-1", 35 * second, time.Hour}},
			[]span{{what: "n2" + byCut, begin: 10 * second, end: 35 * second}},
			"below minAvailable from 20.",
		},
		"requests that fail":                         {[]replicaLife{{"good-1", 0, 20 * second}, {"good-1", 21 * second, time.Hour}}, nil, "requests failed, and nothing explains it"},
		"a bad release gets traffic":                 {[]replicaLife{good, good, good, {"never-ready-4", 10 * second, 11 * second}}, nil, "release never-ready-4 got"},
		"one that exits gets traffic":                {[]replicaLife{good, good, good, {"exits-2", 10 * second, 12 * second}}, nil, "release exits-2 got"},
		"a bad one is all that is left after a loss": {[]replicaLife{good, good, good, {"exits-2", 10 * second, 12 * second}}, lossOf(10*second, 11*second), ""},
	} {
		cost := count(made(60*second, c.replicas...), 3, c.faults)
		complaints := strings.Join(cost.complaints(), "\n")
		if (c.breach == "") != (complaints == "") || !strings.Contains(complaints, c.breach) {
			t.Errorf("%s: the complaints are %q, expected %q", what, complaints, c.breach)
		}
	}
}

// Failures around the loss of a machine are excused and counted; any other is not.
func TestOnlyALossExcusesFailures(t *testing.T) {
	failing := func(at time.Duration) request { return request{begin: at, end: at + second, failure: "timeout"} }
	cost := count([]request{
		failing(10 * second), // ends before the loss
		failing(19 * second), // the loss happens meanwhile
		failing(25 * second),
		failing(23*second + settles), // begins at the last moment
		failing(24*second + settles),
	}, 0, lossOf(20*second, 23*second))
	if len(cost.failed) != 2 || cost.excused != 3 {
		t.Errorf("%d failures are held against the cluster and %d are excused", len(cost.failed), cost.excused)
	}
}

// A stranded node explains failures of its own callers only.
func TestStrandingExcusesOneNode(t *testing.T) {
	failing := func(by string) request {
		return request{by: by, begin: 20 * second, end: 21 * second, failure: "refused"}
	}
	for fault, want := range map[string]int{"n1" + byKill: 1, "n1" + byPause: 1, "n1" + byCut: 1, cutOfAllNodes: 2, "s1" + byPause: 0, "disk of n1 filled up": 0} {
		cost := count([]request{failing("n1"), failing("n2")}, 0, []span{{what: fault, begin: 15 * second, end: 17 * second}})
		if cost.excused != want {
			t.Errorf("%s excuses %d failures, want %d", fault, cost.excused, want)
		}
	}
}

// The time below minAvailable is measured to a fraction of a second.
func TestShortageIsMeasured(t *testing.T) {
	good := always("good-1")
	for _, gap := range []time.Duration{second, 3 * second, 10 * second} {
		cost := count(made(60*second, good, good, replicaLife{"good-1", 0, 20 * second}, replicaLife{"good-2", 20*second + gap, time.Hour}), 3, nil)
		if off := (total(cost.short) - gap).Abs(); off > 300*time.Millisecond {
			t.Errorf("of %v below minAvailable, %v were found", gap, total(cost.short))
		}
	}
}
