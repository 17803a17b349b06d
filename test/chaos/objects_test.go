package chaos

import (
	"context"
	"flag"
	"slices"
	"testing"
)

// TestChaosObjects does harm to the servers and nodes of an object store while clients use it over S3, and then checks
// that they saw nothing that S3 promises not to happen, and that everything that was acknowledged is there and intact.
func TestChaosObjects(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root")
	}
	if !isSet("length") {
		t.Skip("takes minutes: make test-chaos runs it")
	}
	steps := plan(t, new(objects).kinds())
	if *only == "" {
		first(steps, losingMidway, "kill-names", rotting)
	}
	l := openLab(t, "objects", objectNodes, objectDisk, steps)
	o, err := newObjects(t.Context(), l, *seed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.close)
	if err := o.work(t.Context(), func(ctx context.Context) error {
		if err := inflict(ctx, l, o.kinds(), steps); err != nil {
			return err
		}
		return l.until(ctx, l.whole)
	}); err != nil {
		t.Error(err)
	}
	for _, settle := range []func(context.Context) error{o.resume, o.converge, o.readAll} {
		if err := settle(t.Context()); err != nil {
			t.Errorf("after all was healed: %v", err)
		}
	}
	for _, complaint := range o.complaints() {
		t.Error(complaint)
	}
	for _, crash := range l.crashes() {
		t.Error(crash)
	}
	if begun := slices.ContainsFunc(steps, func(s step) bool { return s.kind == losingMidway }); begun && o.lost == 0 {
		t.Error("no upload lost a node in the middle")
	}
	t.Logf("seed %d: %d faults; %v", *seed, len(l.told.faults), o)
	if !t.Failed() {
		t.Logf("timeline:\n%s", l.told)
	}
}

// isSet is whether a flag was given.
func isSet(name string) (given bool) {
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}
