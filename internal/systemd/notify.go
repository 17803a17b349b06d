package systemd

import (
	"fmt"
	"net"
	"os"
	"strings"
)

// notifyEnv names the socket on which the manager waits for word.
const notifyEnv = "NOTIFY_SOCKET"

// Notifier tells the manager how the service gets on. The zero value is for a
// process that no manager waits for, and tells nobody.
type Notifier struct{ socket string }

// NewNotifier takes the manager's socket out of the environment, so that what
// this process starts does not speak in its name: runc would.
func NewNotifier() (Notifier, error) {
	n := Notifier{socket: os.Getenv(notifyEnv)}
	return n, os.Unsetenv(notifyEnv)
}

// Ready says that the service can be used.
func (n Notifier) Ready() error { return n.tell("READY=1") }

// Status says in a few words what is being done.
func (n Notifier) Status(doing string) error {
	return n.tell("STATUS=" + strings.ReplaceAll(doing, "\n", "; "))
}

func (n Notifier) tell(state string) error {
	if n.socket == "" {
		return nil
	}
	// A name that begins with @ is in the abstract namespace, and net reads it so.
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
