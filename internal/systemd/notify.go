package systemd

import (
	"fmt"
	"net"
	"os"
	"strings"
)

// notifyEnv names the socket on which systemd receives notifications.
const notifyEnv = "NOTIFY_SOCKET"

// Notifier tells systemd the state of the service. The zero value does nothing.
type Notifier struct{ socket string }

// NewNotifier removes systemd's socket from the environment, so that child processes such as runc do not notify systemd.
func NewNotifier() (Notifier, error) {
	n := Notifier{socket: os.Getenv(notifyEnv)}
	return n, os.Unsetenv(notifyEnv)
}

// Ready reports that the service is ready.
func (n Notifier) Ready() error { return n.tell("READY=1") }

// Status reports in a few words what the service is doing.
func (n Notifier) Status(doing string) error {
	return n.tell("STATUS=" + strings.ReplaceAll(doing, "\n", "; "))
}

func (n Notifier) tell(state string) error {
	if n.socket == "" {
		return nil
	}
	// Package net supports names that begin with @, which are in the abstract namespace.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("reach the service manager: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	return nil
}
