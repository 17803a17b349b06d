package consensus_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// stallingDisk is a file system of its own that can be made to stall: writes block until thaw.
func stallingDisk(t *testing.T) (dir string, freeze, thaw func()) {
	t.Helper()
	if testing.Short() {
		t.Skip("mounts, which needs root; make test runs it")
	}
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	image := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 512<<20); err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	run("mkfs.ext4", "-q", image)
	run("mount", "-o", "loop", image, dir)
	frozen := false
	thaw = func() {
		if frozen {
			run("fsfreeze", "--unfreeze", dir)
			frozen = false
		}
	}
	t.Cleanup(func() {
		thaw()
		run("umount", "--lazy", dir)
	})
	return dir, func() {
		run("fsfreeze", "--freeze", dir)
		frozen = true
	}, thaw
}

// stall is how long the disk blocks.
const stall = 2 * time.Second

// The disk of one server stalls for two seconds while changes are made. If it is a follower's, changes go on meanwhile;
// if it is the leader's, they go on afterwards. There is at most one new leader, and nothing is lost.
func TestStallingDisk(t *testing.T) {
	for name, leads := range map[string]bool{"of a follower": false, "of the leader": true} {
		t.Run(name, func(t *testing.T) {
			disk, freeze, thaw := stallingDisk(t)
			members := piloted(t, disk, "", "")
			slow := members[0]
			proposeSomewhere(t, members, 0)
			eventually(t, "the right one leads", func() bool {
				leader := leaderOf(members)
				if leader != nil && (leader == slow) != leads {
					to := map[bool]string{true: slow.id, false: members[1].id}[leads]
					_ = leader.Transfer(t.Context(), to)
				}
				return leader != nil && (leader == slow) == leads
			})
			before := leaderOf(members).Stats().Term

			ctx, cancel := context.WithCancel(t.Context())
			var acknowledged atomic.Int64
			done := make(chan []int)
			go func() {
				var written []int
				for n := 1; ctx.Err() == nil; n++ {
					leader := leaderOf(members)
					if leader == nil {
						time.Sleep(time.Millisecond)
						continue
					}
					if _, err := leader.Propose(ctx, numbered(n)); err == nil {
						written = append(written, n)
						acknowledged.Add(1)
					}
				}
				done <- written
			}()
			more := func(count int64) {
				t.Helper()
				goal := acknowledged.Load() + count
				eventually(t, "changes are made", func() bool { return acknowledged.Load() >= goal })
			}
			more(10)
			freeze()
			if !leads {
				more(10) // the others go on while it stalls
			}
			time.Sleep(stall) // the fault itself
			thaw()
			more(10)
			cancel()
			written := <-done
			now := leaderOf(members)
			eventually(t, "there is a leader", func() bool { now = leaderOf(members); return now != nil })
			if after := now.Stats().Term; after > before+1 {
				t.Errorf("the term was %d and is %d", before, after)
			}
			eventually(t, "all have all that was acknowledged", func() bool {
				return !slices.ContainsFunc(members, func(m *member) bool {
					have := numbers(m.Stale())
					return slices.ContainsFunc(written, func(n int) bool { return !slices.Contains(have, n) })
				})
			})
		})
	}
}
