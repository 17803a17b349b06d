package chaos

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/cloudless/cloudless/test/sandbox"
)

var (
	seed   = flag.Uint64("seed", 0, "seed of the order of faults; 0 takes a new one")
	length = flag.Duration("length", 40*time.Second, "how long to do harm")
	only   = flag.String("only", "", "kinds of faults, with commas between them; all if empty")
)

func TestMain(m *testing.M) {
	if os.Getenv(tellTimeEnv) != "" {
		tellTime()
		return
	}
	os.Exit(sandbox.Main(m, "../bench/sleeper", "./printer", "./talker", "./shop", "./ledger"))
}

// TestChaos is the whole test. A failure says how to repeat the same faults in the same
// order, and where the evidence is.
func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and containers; make test runs it")
	}
	steps := plan(t, kinds)
	l := openLab(t, "lab", 3, nodeDisk, steps)
	listeners, err := l.follow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.talk(t.Context()); err != nil {
		t.Fatal(err)
	}
	judge(t, l, run(t, l, steps))
	healed := l.told.now()
	if err := l.until(t.Context(), func(context.Context) error { return l.allTalk(healed) }); err != nil {
		t.Errorf("calls by name after all was healed: %v", err)
	}
	for _, complaint := range l.talkComplaints() {
		t.Error(complaint)
	}
	if err := listeners.dismiss(t.Context()); err != nil {
		t.Error(err)
	}
	for _, complaint := range listeners.complaints() {
		t.Error(complaint)
	}
	if err := l.hang(t.Context()); err != nil {
		t.Error(err)
	}
	if err := l.loseForGood(t.Context()); err != nil {
		t.Error(err)
	}
	if !t.Failed() {
		t.Logf("timeline:\n%s", l.told)
	}
}

// plan is the schedule of the wanted kinds of faults.
func plan(t *testing.T, kinds map[string]fault) []step {
	if *seed == 0 {
		*seed = rand.Uint64N(1 << 32)
	}
	names := slices.Sorted(maps.Keys(kinds))
	if *only != "" {
		wanted := strings.Split(*only, ",")
		names = slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(wanted, name) })
	}
	if len(names) == 0 {
		t.Skipf("it has no faults of the kinds %s", *only)
	}
	return schedule(*seed, names, *length)
}

// openLab starts a lab that is closed with the test. If the test fails, it tells how to repeat it and keeps the evidence.
func openLab(t *testing.T, name string, nodes, disk int, steps []step) *lab {
	dir := filepath.Join(sandbox.Dir(), name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := newLab(t.Context(), dir, nodes, disk)
	t.Cleanup(l.close)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d; run it again with: make test-chaos SEED=%d CHAOS=%v\nschedule:\n%s\ntimeline:\n%s\nlogs: %s",
				*seed, *seed, *length, describe(steps), l.told, keep(t, l))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// run injects faults while clients call, and returns what they saw once everything has
// healed.
func run(t *testing.T, l *lab, steps []step) *crowd {
	image, err := l.push(t.Context(), "1")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.runApp(t.Context(), image); err != nil {
		t.Fatal(err)
	}
	c := newCrowd(l, image)
	if err := c.prepare(t.Context(), l.admin); err != nil {
		t.Fatal(err)
	}
	loops, err := c.connect(t.Context(), *seed)
	if err != nil {
		t.Fatal(err)
	}
	u := newUsers(t, l)
	ctx, stop := context.WithCancel(t.Context())
	var calling sync.WaitGroup
	for _, loop := range loops {
		calling.Go(func() { loop(ctx) })
	}
	harm := u.bear(t.Context(), func(ctx context.Context) error { return inflict(ctx, l, kinds, steps) })
	healed := l.converge(t.Context())
	if healed == nil {
		healed = c.resume(t.Context())
	}
	stop()
	calling.Wait()
	for what, err := range map[string]error{"faults": harm, "after all was healed": healed} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	u.judge(t)
	return c
}

func judge(t *testing.T, l *lab, c *crowd) {
	if err := c.readAll(t.Context()); err != nil {
		t.Error(err)
	}
	if drawing, err := linearizable(c.calls, l.told.faults); err != nil {
		path := filepath.Join(evidence(t), "history.html")
		t.Errorf("%v; drawn in %s (%v)", err, path, porcupine.VisualizePath(register, *drawing, path))
	}
	for what, err := range map[string]error{
		"versions": versions(&c.history), "stale reads": staleAnswers(&c.history),
		"acknowledged writes": l.until(t.Context(), c.acknowledgedWrites), "calls": c.enough(len(l.told.faults)),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if len(c.odd) > 0 {
		t.Errorf("answers that no fault explains:\n%s", strings.Join(c.odd, "\n"))
	}
	for _, crash := range l.crashes() {
		t.Error(crash)
	}
	t.Logf("seed %d: %d faults, %d calls on registers, %d stale reads, %d things kept, %d gone, failures %v",
		*seed, len(l.told.faults), len(c.calls), len(c.stale), len(c.kept), len(c.gone), c.failures)
}

// evidence is where a failed run leaves its data.
func evidence(t *testing.T) string {
	dir, err := filepath.Abs(fmt.Sprintf("../../build/chaos-%d", *seed))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// keep copies the logs of all machines, and the events of the cluster, to where they outlive the test.
func keep(t *testing.T, l *lab) string {
	dir := filepath.Join(evidence(t), filepath.Base(l.dir))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Error(err)
	}
	for _, m := range l.machines() {
		data, err := os.ReadFile(m.log)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, m.name+".log"), data, 0o644)
		}
		if err != nil {
			t.Error(err)
		}
	}
	if err := l.keepEvents(context.WithoutCancel(t.Context()), filepath.Join(dir, "events")); err != nil {
		t.Error(err)
	}
	return dir
}
