package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// The whole challenge with a few nodes, with the real binary.
func TestSmallChallenge(t *testing.T) {
	if testing.Short() || os.Geteuid() != 0 {
		t.Skip("needs root and bin/cloudless")
	}
	t.Chdir("../..")
	l, err := newLab(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	r, err := l.gather(t.Context(), crowd{nodes: 30, workloads: 5, replicas: 600})
	if err != nil {
		t.Fatal(err)
	}
	last := r.history[len(r.history)-1]
	if last.running != 600 || last.placed != 600 || last.told != 600 && last.told != 0 { // the fleet reports once a second
		t.Errorf("in the end there were %+v", last)
	}
	if r.rss < 10<<10 || r.server <= 0 || r.logBytes == 0 || len(r.writes) == 0 {
		t.Errorf("measured %+v", r)
	}
	if drawn, err := os.ReadFile(r.plot); err != nil || !bytes.Contains(drawn, []byte("600 replicas")) {
		t.Errorf("drawn was %q, %v", drawn, err)
	}
}

func TestSmallChallengeHasAnotherName(t *testing.T) {
	name := func(size crowd) string {
		l := &lab{crowded: &crowdRun{crowd: size, took: time.Second}}
		r, err := measureCrowd("seconds", (*crowdRun).time)(t.Context(), l)
		if err != nil || !strings.HasPrefix(r.notes[0], size.about()) {
			t.Errorf("%v: got %v, %v", size, r, err)
		}
		return measurement{name: "c2m_seconds", target: atMost(180)}.figure(r).Name
	}
	slow := theCrowd
	slow.heartbeat = "10s"
	for want, size := range map[string]crowd{
		"c2m_seconds":                 theCrowd,
		"c2m_50000_on_610_seconds":    {nodes: 610, workloads: 100, replicas: 50_000},
		"c2m_2000000_on_6100_seconds": slow,
	} {
		if got := name(size); got != want {
			t.Errorf("%s is recorded as %s, want %s", size.about(), got, want)
		}
	}
}

func TestStallWithoutSnapshotHasNoValue(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	r := &crowdRun{writes: []smallWrite{{span{at(0), at(5)}, 0}, {span{at(10), at(40)}, 20 * time.Millisecond}}}
	if got := r.stall(); !got.absent || got.floor != 30 {
		t.Errorf("without a snapshot the result is %+v", got)
	}
	r.snapshots = []span{{at(35), at(50)}}
	if got := r.stall(); got.absent || got.value != 30 || got.floor != 5 {
		t.Errorf("with a snapshot the result is %+v, want 30 ms with nothing subtracted", got)
	}
}

func TestEveryWorkloadHasItsShareOfTheCrowd(t *testing.T) {
	c := crowd{nodes: 1, workloads: 7, replicas: 100}
	sum := 0
	for i := range c.workloads {
		n := c.of(i)
		if n < 14 || n > 15 {
			t.Errorf("workload %d has %d replicas", i, n)
		}
		sum += n
	}
	if sum != c.replicas {
		t.Errorf("all have %d", sum)
	}
	if c.check() != nil || (&crowd{nodes: 1, workloads: 10, replicas: 9}).check() == nil {
		t.Error("a crowd is too small for its workloads, or is not")
	}
}

func TestDrawingIsWellFormed(t *testing.T) {
	began := time.Now()
	var out bytes.Buffer
	plotCrowd(&out, []crowdMoment{
		{at: 0}, {at: time.Second, placed: 500, running: 100}, {at: 2 * time.Second, placed: 1000, running: 1000},
	}, began, []span{{began.Add(time.Second), began.Add(1500 * time.Millisecond)}}, 1000)
	decoder := xml.NewDecoder(strings.NewReader(out.String()))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, out.String())
		}
	}
	for _, part := range []string{"1000 replicas in 2 s", "placed</text>", "acknowledged</text>", `points="80.0,370.0 430.0,205.0 780.0,40.0"`, `x="430.0" y="40" width="175.0"`} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%s is missing in\n%s", part, out.String())
		}
	}
	plotCrowd(io.Discard, nil, began, nil, 1) // nothing was seen
}

func TestWritesDuringSnapshotsAreSeparate(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	writes := []smallWrite{{span{at(0), at(5)}, 0}, {span{at(10), at(40)}, 20 * time.Millisecond}, {span{at(30), at(37)}, 10 * time.Millisecond}, {span{at(30), at(43)}, 0}, {span{at(60), at(61)}, 0}}
	inside, outside := split(writes, []span{{at(35), at(50)}})
	if during := timesOf(inside); !slices.Equal(during, sample{30, 7, 13}) {
		t.Errorf("during a snapshot they took %v", during)
	}
	if otherwise := timesOf(outside); !slices.Equal(otherwise, sample{5, 1}) {
		t.Errorf("others took %v", otherwise)
	}
	if most := longest(inside); most != writes[1] {
		t.Errorf("the longest is %v", most)
	}
}
