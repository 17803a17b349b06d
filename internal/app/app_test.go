package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
)

func quiet(string) {}

func TestUndoRunsBackwardsAndOnce(t *testing.T) {
	t.Parallel()
	var u undo
	var ran []int
	for i := range 3 {
		u.add(func() { ran = append(ran, i) })
	}
	u.run()
	u.run()
	if !slices.Equal(ran, []int{2, 1, 0}) {
		t.Errorf("ran %v", ran)
	}
}

func TestHostsNameTheAddressAndThisMachine(t *testing.T) {
	t.Parallel()
	if got := hosts("192.0.2.1:7700"); !slices.Contains(got, "192.0.2.1") || !slices.Contains(got, "127.0.0.1") {
		t.Errorf("hosts are %v", got)
	}
	if got := hosts("0.0.0.0:7700"); slices.Contains(got, "0.0.0.0") {
		t.Errorf("hosts are %v", got)
	}
}

func TestStoppedRoleReturnsNoError(t *testing.T) {
	t.Parallel()
	if err := endedByContext(fmt.Errorf("wrapped: %w", context.Canceled)); err != nil {
		t.Errorf("ended with %v", err)
	}
	if err := endedByContext(errors.New("broken")); err == nil {
		t.Error("a failure is forgotten")
	}
}
