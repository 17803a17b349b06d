package drivertest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/driver"
)

// secretValue occurs nowhere else.
const secretValue = "a-secret-of-the-suite"

// sameSecret is a shell expression for it, so that no script contains it.
const sameSecret = `"$(printf '%s-of-the-%s' a-secret suite)"`

func secrets(t *testing.T, s *suite) {
	yes, can := true, s.driver.Capabilities()
	for _, kind := range []struct {
		name string
		able bool
		edit func(*driver.Task)
	}{
		{"by default", true, func(*driver.Task) {}},
		{"in a user namespace", can.UserNamespaces, func(task *driver.Task) { task.Security.UserNamespace = &yes }},
		{"in a sandbox", len(can.Sandboxes) > 0, func(task *driver.Task) { task.Sandbox = "gvisor" }},
	} {
		if !kind.able {
			continue // the suite says so elsewhere
		}
		t.Run("variables "+kind.name, func(t *testing.T) { secretVariables(t, s, kind.edit) })
		t.Run("a folder of the machine is seen as it changes "+kind.name, func(t *testing.T) { folders(t, s, kind.edit) })
	}
	t.Run("the owner learns the user before the task starts", func(t *testing.T) { owners(t, s) })
	t.Run("a signal reaches the first process", func(t *testing.T) {
		task := s.shell(t, "trap 'echo got it; exit 9' HUP; echo ready; while true; do sleep 0.05; done")
		s.start(t, task)
		s.logUntil(t, task, "ready")
		wantError(t, s.driver.Signal(s.ctx(t), task.ID, "SIGNONSENSE"), driver.ErrInvalid)
		must(t, s.driver.Signal(s.ctx(t), task.ID, "SIGHUP"))
		s.logUntil(t, task, "got it")
		if exit, err := s.driver.Wait(s.ctx(t), task.ID); err != nil || exit.Code != 9 {
			t.Errorf("got %+v, %v", exit, err)
		}
		wantError(t, s.driver.Signal(s.ctx(t), task.ID, "SIGHUP"), driver.ErrNotRunning)
		wantError(t, s.driver.Signal(s.ctx(t), "no-such-task", "SIGHUP"), driver.ErrNotFound)
	})
}

func secretVariables(t *testing.T, s *suite, edit func(*driver.Task)) {
	path := filepath.Join(memory(t), "env")
	must(t, os.WriteFile(path, []byte(`{"PASSWORD":"`+secretValue+`","FROM_TASK":"secret"}`), 0o600))
	check := `[ "$PASSWORD" = ` + sameSecret + ` ] && echo "same, $FROM_TASK"`
	task := s.shell(t, check+"; exec sleep 100000")
	task.Env = map[string]string{"FROM_TASK": "plain"}
	task.SecretEnv = path
	edit(&task)
	if s.NoSecretEnv {
		_, err := s.driver.Start(s.ctx(t), task)
		wantError(t, err, driver.ErrInvalid)
		return
	}
	s.start(t, task)
	s.logUntil(t, task, "same, secret")
	var out bytes.Buffer
	process, err := s.driver.Exec(s.ctx(t), task.ID, driver.Exec{Command: []string{"sh", "-c", check}, Stdout: &out})
	must(t, err)
	if code, err := process.Wait(s.ctx(t)); err != nil || code != 0 || out.String() != "same, secret\n" {
		t.Errorf("a further process: %q, code %d, %v", out.String(), code, err)
	}
	t.Run("no file of the driver has them", func(t *testing.T) {
		for _, path := range s.Files(t) {
			if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(secretValue)) {
				t.Errorf("%s has the secret", path)
			}
		}
	})
	t.Run("missing ones keep the task from starting", func(t *testing.T) {
		missing := s.shell(t, "true")
		missing.SecretEnv = path + ".missing"
		edit(&missing)
		if _, err := s.driver.Start(s.ctx(t), missing); err == nil || errors.Is(err, driver.ErrInvalid) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a failed start does not show them", func(t *testing.T) {
		failing := s.shell(t, "true")
		failing.SecretEnv, failing.Command = path, []string{"/no/such/program"}
		edit(&failing)
		if _, err := s.driver.Start(s.ctx(t), failing); err == nil || strings.Contains(err.Error(), secretValue) {
			t.Errorf("got %v", err)
		}
	})
}

// memory is a folder on a file system in memory.
func memory(t *testing.T) string {
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=1m,mode=0700"))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

func folders(t *testing.T, s *suite, edit func(*driver.Task)) {
	dir := memory(t)
	folder := filepath.Join(dir, "folder")
	must(t, os.Mkdir(folder, 0o755))
	user := 0 // of the task, on this machine
	write := func(content string) {
		t.Helper()
		temp := filepath.Join(dir, "new")
		must(t, os.WriteFile(temp, []byte(content), 0o400))
		must(t, os.Chown(temp, user, user))
		must(t, os.Rename(temp, filepath.Join(folder, "file")))
	}
	task := s.shell(t, `cat /run/secrets/file; echo
		touch /run/secrets/new 2>/dev/null && echo wrote
		while [ "$(cat /run/secrets/file)" = first ]; do sleep 0.02; done
		cat /run/secrets/file; echo
		echo done`)
	task.User, task.ReadOnlyRoot = "web", true
	task.Folders = map[string]string{"/run/secrets": folder}
	task.Owner = func(u driver.User) error {
		user = u.UID + u.Shift
		write("first")
		return nil
	}
	edit(&task)
	s.start(t, task)
	if lines := s.logUntil(t, task, "first"); len(lines) != 1 {
		t.Errorf("got %q", lines)
	}
	if user < 1234 || task.Security.UserNamespace != nil && user == 1234 {
		t.Errorf("its user is %d on this machine", user)
	}
	write("second")
	if lines := s.logUntil(t, task, "done"); fmt.Sprint(lines) != "[first second done]" {
		t.Errorf("got %q", lines)
	}
}

func owners(t *testing.T, s *suite) {
	task := s.shell(t, "true")
	task.User = "web"
	var got []driver.User
	task.Owner = func(u driver.User) error {
		got = append(got, u)
		return nil
	}
	s.run(t, task)
	if len(got) != 1 || got[0].UID != 1234 || got[0].GID != 5678 {
		t.Errorf("got %+v", got)
	}
	refused := errors.New("there is no room")
	task = s.shell(t, "true")
	task.Owner = func(driver.User) error { return refused }
	_, err := s.driver.Start(s.ctx(t), task)
	wantError(t, err, refused)
	if _, found := s.status(t, task.ID); found {
		t.Error("something is left of the task")
	}
}
