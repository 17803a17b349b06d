package names_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cloudless/cloudless/internal/server/names"
)

// crashDir names the folder in which a child process of the tests writes.
const crashDir = "CLOUDLESS_TEST_CRASH_DIR"

// writeUntilKilled is the child: several goroutines put objects and print the key of each acknowledged one, while the log
// is shortened again and again.
func writeUntilKilled(dir string) {
	ctx := context.Background()
	g, err := names.Open(ctx, lone(dir))
	if err == nil {
		err = g.WaitLeader(ctx)
	}
	fail := func(err error) {
		fmt.Println("error", err)
		os.Exit(1)
	}
	if err != nil {
		fail(err)
	}
	for lane := range 8 {
		go func() {
			for n := 0; ; n++ {
				key := fmt.Sprintf("%d-%d-%d", os.Getpid(), lane, n)
				if err := put(ctx, g, key); err != nil {
					fail(err)
				}
				fmt.Println(key) // one write each: a line is complete or missing
			}
		}()
	}
	for {
		if err := g.Snapshot(ctx); err != nil {
			fail(err)
		}
	}
}

// A process that writes and shortens its log is killed several times: every acknowledged object is there afterwards,
// although the names themselves are not synced before they are acknowledged.
func TestAcknowledgedNamesSurviveKill(t *testing.T) {
	dir := t.TempDir()
	var acknowledged []string
	for range 5 {
		acknowledged = append(acknowledged, killedWriter(t, dir, 1+rand.IntN(300))...)
	}
	g := open(t, lone(dir))
	view, err := g.View(t.Context())
	must(t, err)
	defer view.Close()
	for _, key := range acknowledged {
		if !has(t, view, key) {
			t.Errorf("%s was acknowledged and is lost", key)
		}
	}
	totals, err := view.Totals()
	if err != nil || int(totals.Objects) < len(acknowledged) {
		t.Errorf("%d acknowledged, %+v, %v", len(acknowledged), totals, err)
	}
}

// killedWriter runs the child until it has acknowledged so many objects, kills it, and returns all acknowledged ones.
func killedWriter(t *testing.T, dir string, after int) (acknowledged []string) {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), crashDir+"="+dir)
	out, err := child.StdoutPipe()
	must(t, err)
	must(t, child.Start())
	for reader := bufio.NewReader(out); ; {
		line, err := reader.ReadString('\n')
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			break
		}
		if strings.HasPrefix(line, "error") {
			t.Errorf("the child says: %s", line)
			break
		}
		if acknowledged = append(acknowledged, strings.TrimSpace(line)); len(acknowledged) == after {
			must(t, child.Process.Kill())
		}
	}
	_ = child.Wait() // it was killed
	if len(acknowledged) < after {
		t.Fatalf("the child ended by itself after %d objects", len(acknowledged))
	}
	return acknowledged
}
