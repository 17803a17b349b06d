package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestQuantiles(t *testing.T) {
	for _, c := range []struct {
		sample sample
		q      float64
		want   float64
	}{
		{nil, 0.5, 0},
		{sample{7}, 0.5, 7},
		{sample{7}, 0.9, 7},
		{sample{3, 1, 2}, 0.5, 2},
		{sample{4, 1, 3, 2}, 0.5, 2.5},
		{sample{4, 1, 3, 2}, 0, 1},
		{sample{4, 1, 3, 2}, 1, 4},
		{sample{10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110}, 0.9, 100},
	} {
		before := slices.Clone(c.sample)
		if got := c.sample.quantile(c.q); got != c.want {
			t.Errorf("quantile %g of %v: got %g, want %g", c.q, c.sample, got, c.want)
		}
		if !slices.Equal(before, c.sample) {
			t.Errorf("the sample %v became %v", before, c.sample)
		}
	}
}

func TestRefusedTransferHasNoSpeed(t *testing.T) {
	speed, err := receivedSpeed([]byte(`{"end": {"sum_received": {"bits_per_second": 2500000000}}}`))
	if err != nil || speed != 2.5 {
		t.Errorf("a transfer of 2.5 Gbit/s has %g, %v", speed, err)
	}
	if _, err := receivedSpeed([]byte(`{"end": {}, "error": "unable to connect to server: Connection refused"}`)); err == nil {
		t.Error("a transfer that did not begin has a speed")
	}
}

func TestFigureIsNotRounded(t *testing.T) {
	m := measurement{name: "start_p50", unit: "ms", target: ratioAtMost(1.5)}
	f := m.figure(result{value: 81.694, floor: 69.35})
	if *f.Value != 81.694 || f.Floor != 69.35 || f.Ratio != 81.694/69.35 {
		t.Errorf("got %+v", f)
	}
	if f := m.figure(result{value: 5}); f.Ratio != 0 {
		t.Errorf("without a floor the ratio is %g", f.Ratio)
	}
}

func TestFigureRecordsEveryQualifier(t *testing.T) {
	f := measurement{name: "idle_rss", unit: "MB"}.figure(result{value: 67, notes: []string{"one process", "after 30 s"}})
	if want := "one process; after 30 s"; f.Note != want {
		t.Errorf("the note is %q, want %q", f.Note, want)
	}
}

func TestTargetsAreComparedBeforeRounding(t *testing.T) {
	for _, c := range []struct {
		target       target
		value, floor float64
		want         string
	}{
		{ratioAtLeast(0.6), 596, 1000, "no"}, // which two digits show as 0.60
		{ratioAtLeast(0.6), 600, 1000, "yes"},
		{ratioAtLeast(0.6), 600, 0, "no"},
		{ratioAtMost(1.3), 1.304, 1, "no"},
		{ratioAtMost(1.3), 1.3, 1, "yes"},
		{atMost(1), 1.004, 0, "no"},
		{atMost(1), 1, 0, "yes"},
		{under(90), 90, 0, "no"},
		{under(90), 89.999, 0, "yes"},
		{exactly(1), 0.999, 0, "no"},
		{exactly(0), 0, 0, "yes"},
		{atMostFloorPlus(3), 14.001, 11, "no"},
		{atMostFloorPlus(3), 14, 11, "yes"},
		{noTarget, 7, 0, "-"},
	} {
		f := measurement{name: "x", target: c.target}.figure(result{value: c.value, floor: c.floor})
		if got := f.met(); got != c.want {
			t.Errorf("%g with the floor %g meets %q: %s, want %s", c.value, c.floor, c.target.text, got, c.want)
		}
	}
}

func TestFloorsOfWritesAreInSeries(t *testing.T) {
	if got := inSeries(3000, 6000); math.Abs(got-2000) > 1e-6 {
		t.Errorf("3000 calls and 6000 entries a second come to %g", got)
	}
}

func TestTableShowsEveryFigureAndNote(t *testing.T) {
	var out bytes.Buffer
	err := printTable(&out, []figure{
		{Name: "start_p50", Value: new(81.694), Unit: "ms", Floor: 69.35, Ratio: 1.178, target: ratioAtMost(1.5), notes: []string{"20 starts"}},
		{Name: "write_1", Value: new(11920.4), Unit: "per s", Floor: 20000, Ratio: 0.59602, target: ratioAtLeast(0.6)},
		{Name: "c2m_snapshot_stall", Unit: "ms", Floor: 4, target: under(100), notes: []string{"no snapshot"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"NAME                VALUE  UNIT   FLOOR  RATIO  TARGET              MET",
		"start_p50           81.69  ms     69.35  1.18   ratio at most 1.5   yes",
		"write_1             11920  per s  20000  0.60   ratio at least 0.6  no",
		"c2m_snapshot_stall  none   ms     4      0.00   under 100           -",
		"start_p50: 20 starts",
		"c2m_snapshot_stall: no snapshot",
		"",
	}, "\n")
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestFiguresAreAppendedAsLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "build", "bench.jsonl")
	for _, f := range []figure{
		{Name: "shim_rss", Value: new(11.4567), Unit: "MB", Floor: 11.23, Ratio: 1.02, Note: "9 shims; all idle", target: under(1)},
		measurement{name: "c2m_snapshot_stall", unit: "ms"}.figure(result{absent: true, floor: 4, notes: []string{"no snapshot"}}),
	} {
		if err := appendFigure(path, f); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"name":"shim_rss","value":11.4567,"unit":"MB","floor":11.23,"ratio":1.02,"note":"9 shims; all idle"}
{"name":"c2m_snapshot_stall","value":null,"unit":"ms","floor":4,"ratio":0,"note":"no snapshot"}
`
	if string(data) != want {
		t.Fatalf("got\n%s\nwant\n%s", data, want)
	}
}

func TestOnlyNamedFiguresAreMeasured(t *testing.T) {
	names := func(chosen []measurement) (all []string) {
		for _, m := range chosen {
			all = append(all, m.name)
		}
		return all
	}
	everything, err := choose("")
	if err != nil || len(everything) != len(measurements) {
		t.Errorf("nothing named: got %v, %v", names(everything), err)
	}
	some, err := choose("write_1,start_p50")
	if err != nil || !slices.Equal(names(some), []string{"start_p50", "write_1"}) {
		t.Errorf("got %v, %v", names(some), err)
	}
	if _, err := choose("start_p50,speed"); err == nil || !strings.Contains(err.Error(), "speed") {
		t.Errorf("an unknown name is refused by %v", err)
	}
}

func TestProcStatus(t *testing.T) {
	parent, err := procStatus(os.Getpid(), "PPid")
	if err != nil || parent != os.Getppid() {
		t.Errorf("the parent is %d, %v; want %d", parent, err, os.Getppid())
	}
	if rss, err := procStatus(os.Getpid(), "VmRSS"); err != nil || rss < 1000 {
		t.Errorf("this process has %d KiB, %v", rss, err)
	}
	if _, err := procStatus(os.Getpid(), "Nonsense"); err == nil {
		t.Error("a field that is not there was found")
	}
}
