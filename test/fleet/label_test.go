package main

import (
	"maps"
	"testing"
)

func TestLabelsAreDistributedEvenly(t *testing.T) {
	var labels labelChoices
	for _, text := range []string{"zone=a,b,c", "disk=ssd,hdd"} {
		if err := labels.Set(text); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[[2]string]int{}
	for i := range 60 {
		of := labels.of(i)
		seen[[2]string{of["zone"], of["disk"]}]++
	}
	for pair, n := range seen {
		if n != 10 {
			t.Errorf("%v occurs %d times", pair, n)
		}
	}
	if len(seen) != 6 || labels.String() != "zone=a,b,c disk=ssd,hdd" {
		t.Errorf("%s gives %v", labels.String(), seen)
	}
	for _, wrong := range []string{"", "zone", "=a", "zone="} {
		if labels.Set(wrong) == nil {
			t.Errorf("%q is taken for a label", wrong)
		}
	}
	if got := (labelChoices{}).of(3); !maps.Equal(got, map[string]string{}) {
		t.Errorf("without a choice there are %v", got)
	}
}
