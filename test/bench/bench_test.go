package main

import (
	"bytes"
	"encoding/json"
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

func TestFigureHasItsRatio(t *testing.T) {
	m := measurement{name: "start_p50", unit: "ms", target: "ratio at most 1.5"}
	f := m.figure(result{value: 81.694, floor: 69.35, notes: []string{"a note"}})
	if f.Value != 81.69 || f.Floor != 69.35 || f.Ratio != 1.18 {
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

func TestTableShowsEveryFigureAndNote(t *testing.T) {
	var out bytes.Buffer
	err := printTable(&out, []figure{
		{Name: "start_p50", Value: 81.69, Unit: "ms", Floor: 69.35, Ratio: 1.18, target: "ratio at most 1.5", notes: []string{"20 starts"}},
		{Name: "write_1", Value: 12345, Unit: "per s", Floor: 20000, Ratio: 0.62, target: "ratio at least 0.5"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"NAME       VALUE  UNIT   FLOOR  RATIO  TARGET",
		"start_p50  81.69  ms     69.35  1.18   ratio at most 1.5",
		"write_1    12345  per s  20000  0.62   ratio at least 0.5",
		"start_p50: 20 starts",
		"",
	}, "\n")
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestFiguresAreAppendedAsLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "build", "bench.jsonl")
	for _, name := range []string{"shim_rss", "up_ready"} {
		if err := appendFigure(path, figure{Name: name, Value: 11.4, Unit: "MB", Floor: 11.23, Ratio: 1.02, Note: "9 shims; all idle", target: "t"}); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if want := `{"name":"shim_rss","value":11.4,"unit":"MB","floor":11.23,"ratio":1.02,"note":"9 shims; all idle"}`; len(lines) != 2 || lines[0] != want {
		t.Fatalf("got %q, want two lines, the first one %s", lines, want)
	}
	var last figure
	if err := json.Unmarshal([]byte(lines[1]), &last); err != nil || last.Name != "up_ready" {
		t.Errorf("the last line is %q, %v", lines[1], err)
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
