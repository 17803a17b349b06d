package chunks_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"github.com/cloudless/cloudless/internal/object/chunks"
)

// crashDir names the folder in which a child process of the tests writes.
const crashDir = "CLOUDLESS_TEST_CHUNKS_DIR"

// crashSize is the size of a chunk by its number: small ones, and some for the lanes of large ones.
func crashSize(n int) int {
	if n%5 == 0 {
		return 300_000 + n%1000
	}
	return 1 + n*977%9000
}

// changeUntilKilled is the child: several goroutines put, stamp and delete chunks of their own, and print what is
// acknowledged. They print a deletion before it begins, too, because nobody knows then whether the chunk is there.
func changeUntilKilled(dir string) {
	fail := func(err error) {
		fmt.Println("error", err)
		os.Exit(1)
	}
	s, err := chunks.Open(small(dir))
	if err != nil {
		fail(err)
	}
	ctx := context.Background()
	first := rand.IntN(1 << 40)
	for w := range 8 {
		go func() {
			for n := first + w; ; n += 8 {
				hash, data := content(n, crashSize(n))
				if err := s.Put(ctx, hash, data, 1); err != nil {
					fail(err)
				}
				fmt.Println("put", n) // one write each: a line is complete or missing
				switch n / 8 % 4 {
				case 1:
					if _, err := s.Stamp(ctx, hash, 2); err != nil {
						fail(err)
					}
					fmt.Println("stamp", n)
				case 2, 3:
					fmt.Println("deleting", n)
					if _, err := s.Delete(ctx, []chunks.Hash{hash}, 1); err != nil {
						fail(err)
					}
					fmt.Println("deleted", n)
				}
			}
		}()
	}
	for {
		if err := s.Reclaim(ctx); err != nil {
			fail(err)
		}
	}
}

// A process that changes chunks and returns their space is killed several times, with the same folder. What it has
// acknowledged must be so afterwards.
func TestAcknowledgedChangesSurviveKill(t *testing.T) {
	dir := t.TempDir()
	last := map[int]string{}
	for range 8 {
		killedChild(t, dir, 1+rand.IntN(1500), last)
	}
	for _, index := range []string{"kept", "lost"} {
		o := small(dir)
		s := open(t, o)
		epochs := list(t, s)
		counts := map[string]int{}
		for n, state := range last {
			counts[state]++
			hash, data := content(n, crashSize(n))
			got, err := s.Get(hash, 0, 0, nil)
			switch {
			case state == "deleting":
				if err != nil && !errors.Is(err, chunks.ErrMissing) {
					t.Errorf("chunk %d, which was being deleted: %v", n, err)
				}
			case state == "deleted":
				if !errors.Is(err, chunks.ErrMissing) {
					t.Errorf("chunk %d, which was deleted: %v", n, err)
				}
			case err != nil || !bytes.Equal(got, data):
				t.Errorf("chunk %d: %v", n, err)
			case state == "stamp" && epochs[hash] != 2:
				t.Errorf("chunk %d has the epoch %d", n, epochs[hash])
			}
		}
		t.Logf("with the index %s: %v, there are %d", index, counts, len(epochs))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(dir + "/index"); err != nil {
			t.Fatal(err)
		}
	}
}

// killedChild runs the child until it has printed so many lines, kills it, and collects the last state of each chunk.
func killedChild(t *testing.T, dir string, after int, last map[int]string) {
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
	lines := 0
	for reader := bufio.NewReader(out); ; {
		line, err := reader.ReadString('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		var state string
		var n int
		if _, err := fmt.Sscanln(line, &state, &n); err != nil {
			t.Errorf("the child says: %s", line)
			continue
		}
		last[n] = state
		if lines++; lines == after {
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = child.Wait() // it was killed
	if lines < after {
		t.Fatalf("the child ended by itself after %d lines", lines)
	}
}
