package main

import (
	"slices"
	"testing"
	"time"
)

func TestStolenTimeIsReadOfEachCore(t *testing.T) {
	got, err := parseStolen("cpu  77 6 13 42 12 0 11 175 0 0\ncpu0 1 2 3 4 5 6 7 100 0 0\ncpu1 1 2 3 4 5 6 7 75 0 0\nintr 1 2 3 4 5 6 7 8 9\n")
	if err != nil || !slices.Equal(got, stolen{time.Second, 750 * time.Millisecond}) {
		t.Errorf("read %s, %v", got, err)
	}
	if most := got.since(stolen{990 * time.Millisecond, 700 * time.Millisecond}); most != 50*time.Millisecond {
		t.Errorf("the core that was away the longest was so for %s", most)
	}
	for _, wrong := range []string{"", "cpu 1 2 3 4 5 6 7 8 9 10", "cpu0 1 2", "cpu0 1 2 3 4 5 6 7 x 9 10"} {
		if got, err := parseStolen(wrong); err == nil {
			t.Errorf("read %s of %q", got, wrong)
		}
	}
	before, err := stolenTime()
	if err != nil {
		t.Fatal(err)
	}
	if after, err := stolenTime(); err != nil || len(after) != len(before) || after.since(before) < 0 {
		t.Errorf("it was %s and is %s, %v", before, after, err)
	}
}
