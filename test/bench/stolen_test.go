package main

import (
	"testing"
	"time"
)

func TestStolenTimeIsRead(t *testing.T) {
	if got, err := parseStolen("cpu  77 6 13 42 12 0 11 175 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n"); err != nil || got != 1750*time.Millisecond {
		t.Errorf("read %s, %v", got, err)
	}
	for _, wrong := range []string{"", "cpu 1 2", "cpu0 1 2 3 4 5 6 7 8 9 10", "cpu 1 2 3 4 5 6 7 x 9 10"} {
		if got, err := parseStolen(wrong); err == nil {
			t.Errorf("read %s of %q", got, wrong)
		}
	}
	before, err := stolenTime()
	if err != nil {
		t.Fatal(err)
	}
	if after, err := stolenTime(); err != nil || after < before {
		t.Errorf("it was %s and is %s, %v", before, after, err)
	}
}
