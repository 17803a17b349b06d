package drivertest

import (
	"io"
	"net/netip"
	"syscall"
	"testing"

	"github.com/cloudless/cloudless/internal/driver"
)

func dials(t *testing.T, s *suite) {
	listening := netip.MustParseAddrPort("127.0.0.1:8080")
	task := s.shell(t, "nc -l -p 8080 -e echo hello & until cat /proc/net/tcp* | grep -q :1F90; do :; done; echo ready; exec sleep 100000")
	s.start(t, task)
	s.logUntil(t, task, "ready")
	t.Run("its own loopback address is reached", func(t *testing.T) {
		conn, err := s.driver.Dial(s.ctx(t), task.ID, "tcp", listening)
		must(t, err)
		defer conn.Close()
		if got, err := io.ReadAll(conn); err != nil || string(got) != "hello\n" {
			t.Errorf("it answers %q, %v", got, err)
		}
	})
	t.Run("a closed port is refused", func(t *testing.T) {
		_, err := s.driver.Dial(s.ctx(t), task.ID, "tcp", netip.MustParseAddrPort("127.0.0.1:8081"))
		wantError(t, err, syscall.ECONNREFUSED)
	})
	t.Run("only a running task has a network", func(t *testing.T) {
		_, err := s.driver.Dial(s.ctx(t), "no-such-task", "tcp", listening)
		wantError(t, err, driver.ErrNotFound)
		must(t, s.driver.Stop(s.ctx(t), task.ID, "SIGKILL", 0))
		_, err = s.driver.Dial(s.ctx(t), task.ID, "tcp", listening)
		wantError(t, err, driver.ErrNotRunning)
	})
}
