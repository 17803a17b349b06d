package e2e

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// notify runs a program as systemd runs a service of Type=notify. Once the program is
// ready, SIGTERM ends it. Its notifications are written to a file:
//
//	notify FILE PROGRAM [ARG...]
func notify(ts *testscript.TestScript, _ bool, args []string) {
	// A short path, because the paths of sockets are limited.
	dir, err := os.MkdirTemp("", "notify-")
	ts.Check(err)
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "socket")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	ts.Check(err)
	defer socket.Close()
	service := command(ts, args[1:])
	service.Env = append(service.Env, "NOTIFY_SOCKET="+name)
	ts.Check(service.Start())
	var said strings.Builder
	for buffer := make([]byte, 4096); !strings.Contains(said.String(), "READY=1"); {
		ts.Check(socket.SetReadDeadline(time.Now().Add(patience)))
		n, err := socket.Read(buffer)
		if err != nil {
			_ = service.Process.Kill()
			_ = service.Wait()
			ts.Fatalf("the service sent only %q: %v", said.String(), err)
		}
		said.Write(append(buffer[:n], '\n'))
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(said.String()), 0o600))
	ts.Check(service.Process.Signal(syscall.SIGTERM))
	if err := service.Wait(); err != nil {
		ts.Fatalf("after SIGTERM, the service ended with %v", err)
	}
}
