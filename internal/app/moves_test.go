package app

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/state"
)

// restored returns the state that a server would have after a start with this folder, before it reaches another one.
func restored(t *testing.T, path string) *state.Snapshot {
	t.Helper()
	store := state.New()
	all, err := filepath.Glob(filepath.Join(path, "server", "raft", "snapshots", "*[0-9]", "state.bin"))
	must.Succeed(t, err)
	if len(all) == 0 {
		return store.Snapshot()
	}
	written := func(path string) time.Time {
		info, err := os.Stat(path)
		must.Succeed(t, err)
		return info.ModTime()
	}
	file, err := os.Open(slices.MaxFunc(all, func(a, b string) int { return written(a).Compare(written(b)) }))
	must.Succeed(t, err)
	defer file.Close()
	must.Succeed(t, store.Restore(file))
	return store.Snapshot()
}

// TestServerAddressesSurviveARestart, even if all servers lose power right after one has moved.
func TestServerAddressesSurviveARestart(t *testing.T) {
	t.Parallel()
	s := found(t)
	moves := s.join("s2")
	s.stop("s2")
	elsewhere := freeAddress(t)
	s.start("s2", moves.path, elsewhere, "")
	s.until(func(all map[string]*v1.ServerStatus) bool {
		return all["s2"].GetAddress() == elsewhere && all["s2"].GetHealthy()
	})
	for _, o := range s.running {
		for restored(t, o.path).ServerByName("s2").GetSpec().GetAddress() != elsewhere {
			select {
			case <-s.ctx.Done():
				t.Fatalf("server %s would look for server s2 where it was", o.name)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}
