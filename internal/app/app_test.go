package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cloudless/cloudless/internal/cli/local"
)

func TestUndoRunsBackwardsAndOnce(t *testing.T) {
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

func TestNodeNameIsBroughtIntoForm(t *testing.T) {
	for from, want := range map[string]string{
		"web":                                    "web",
		"Bob's Laptop":                           "bob-s-laptop",
		"host.example.com":                       "host-example-com",
		"---":                                    "node",
		"ümlaut":                                 "mlaut",
		strings.Repeat("a", 62) + ".example.com": strings.Repeat("a", 62),
		strings.Repeat("a", 100):                 strings.Repeat("a", 63),
	} {
		if got := nodeName(local.Machine{Name: from}); got != want {
			t.Errorf("nodeName(%q) = %q, want %q", from, got, want)
		}
	}
	if nodeName(local.Machine{}) == "" {
		t.Error("a machine without a wish has no name")
	}
}

func TestReachableAddress(t *testing.T) {
	for from, want := range map[string]string{
		"127.0.0.1:7700": "127.0.0.1:7700",
		"0.0.0.0:7700":   "127.0.0.1:7700",
		"[::]:7700":      "127.0.0.1:7700",
		"192.0.2.1:7700": "192.0.2.1:7700",
		"nonsense":       "nonsense",
	} {
		if got := reachable(from); got != want {
			t.Errorf("reachable(%q) = %q, want %q", from, got, want)
		}
	}
}

func TestHostsNameTheAddressAndThisMachine(t *testing.T) {
	if got := hosts("192.0.2.1:7700"); !slices.Contains(got, "192.0.2.1") || !slices.Contains(got, "127.0.0.1") {
		t.Errorf("hosts are %v", got)
	}
	if got := hosts("0.0.0.0:7700"); slices.Contains(got, "0.0.0.0") {
		t.Errorf("hosts are %v", got)
	}
}

func TestRoleThatWasAskedToStopHasNotFailed(t *testing.T) {
	if err := endedByContext(fmt.Errorf("wrapped: %w", context.Canceled)); err != nil {
		t.Errorf("ended with %v", err)
	}
	if err := endedByContext(errors.New("broken")); err == nil {
		t.Error("a failure is forgotten")
	}
}
