package consensus_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/cloudless/cloudless/internal/consensus"
)

// crashDir names the folder in which a child process of the tests writes.
const crashDir = "CLOUDLESS_TEST_CRASH_DIR"

// writeUntilKilled is the child: several goroutines propose numbered writes and print each acknowledged one.
func writeUntilKilled(dir string) {
	ctx := context.Background()
	o := lone(dir)
	o.SnapshotThreshold = 50
	c, err := consensus.Open(ctx, o)
	if err == nil {
		err = c.WaitLeader(ctx)
	}
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	next := 0
	if known := numbers(c.Stale()); len(known) > 0 {
		next = known[len(known)-1] + 1
	}
	var mu sync.Mutex
	take := func() int {
		mu.Lock()
		defer mu.Unlock()
		next++
		return next - 1
	}
	for range 8 {
		go func() {
			for {
				n := take()
				if _, err := c.Propose(ctx, numbered(n)); err != nil {
					fmt.Println("error", err)
					os.Exit(1)
				}
				fmt.Println(n) // one write each: a line is complete or missing
			}
		}()
	}
	for {
		if err := c.Snapshot(ctx); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
}

// A process that writes and takes snapshots is killed several times, with the same folder: every acknowledged write
// must be there afterwards.
func TestAcknowledgedWritesSurviveKill(t *testing.T) {
	dir := t.TempDir()
	var acknowledged []int
	for range 6 {
		acknowledged = append(acknowledged, killedWriter(t, dir, 1+rand.IntN(400))...)
	}
	c := open(t, lone(dir))
	there := numbers(c.Stale())
	for _, n := range acknowledged {
		if _, found := slices.BinarySearch(there, n); !found {
			t.Errorf("the write %d was acknowledged and is lost", n)
		}
	}
	t.Logf("%d acknowledged, %d there", len(acknowledged), len(there))
}

// killedWriter runs the child until it has acknowledged so many writes, kills it, and returns all acknowledged ones.
func killedWriter(t *testing.T, dir string, after int) []int {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), crashDir+"="+dir)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var acknowledged []int
	reader := bufio.NewReader(out)
	for {
		line, err := reader.ReadString('\n')
		if err != nil {
			if err != io.EOF {
				t.Fatal(err)
			}
			break
		}
		n, err := strconv.Atoi(line[:len(line)-1])
		if err != nil {
			t.Errorf("the child says: %s", line)
			break
		}
		if acknowledged = append(acknowledged, n); len(acknowledged) == after {
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = child.Wait() // it was killed
	if len(acknowledged) < after {
		t.Fatalf("the child ended by itself after %d writes", len(acknowledged))
	}
	return acknowledged
}
