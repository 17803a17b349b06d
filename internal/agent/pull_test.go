package agent

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
)

func (h *handle) Progress(context.Context, string) (driver.Progress, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.progress, h.progress.Total > 0
}

func withLogin(a *v1.Assignment, password string) *v1.Assignment {
	a.Login = &v1.RegistryLogin{Host: "registry", Username: "ann", Password: password}
	return a
}

// The login of an assignment is used for the pull and never written to disk. A restarted
// agent has none until a server sends it again.
func TestLoginIsUsedAndNeverWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		const password = "s3cret-of-ann"
		want := password
		n.tasks.prepare = func(_ context.Context, task driver.Task) error {
			n.tasks.mu.Lock()
			defer n.tasks.mu.Unlock()
			if task.Login == nil || task.Login.Password != want {
				return fmt.Errorf("%w: refused with %v", driver.ErrImage, task.Login)
			}
			return nil
		}
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.await(t, "a", "backoff")
		s.send(t, delta(withLogin(assignment("a"), password))) // the next attempt has it
		s.await(t, "a", "running")
		s.send(t, delta(withLogin(assignment("b"), password)))
		s.await(t, "b", "running")
		err := filepath.WalkDir(n.dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			if strings.Contains(string(data), password) {
				t.Errorf("the password is in %s", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// A pull is reported at most twice a second, and not after it has ended.
func TestPullProgressIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		const steps = 10
		n.tasks.prepare = func(context.Context, driver.Task) error {
			for i := range int64(steps * 10) {
				n.tasks.mu.Lock()
				n.tasks.progress = driver.Progress{Done: i + 1, Total: steps * 10}
				n.tasks.mu.Unlock()
				time.Sleep(progressInterval / 10)
			}
			return nil
		}
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		var seen []*v1.Progress
		for {
			status := s.next(t, "a")
			if p := status.GetProgress(); p != nil {
				seen = append(seen, p)
			}
			if status.GetPhase() == "running" {
				if status.GetProgress() != nil {
					t.Error("what runs is still pulled")
				}
				break
			}
		}
		if len(seen) == 0 || len(seen) > steps {
			t.Fatalf("%d reports of a pull of %v", len(seen), steps*progressInterval)
		}
		for i, p := range seen {
			if p.GetTotalBytes() != steps*10 || i > 0 && p.GetDoneBytes() <= seen[i-1].GetDoneBytes() || p.GetWhat() != "pulling registry/hello@sha256:1" {
				t.Errorf("report %d is %v", i, p)
			}
		}
	})
}

// next is the next report about a replica.
func (s *session) next(t *testing.T, uid string) *v1.ReplicaStatus {
	t.Helper()
	for len(s.reported[uid]) == 0 {
		select {
		case up := <-s.ups:
			s.keep(up.GetReport().GetReplicas())
		case <-s.stream.Context().Done():
			t.Fatal("the session has ended")
		}
	}
	status := s.reported[uid][0]
	s.reported[uid] = s.reported[uid][1:]
	return status
}
