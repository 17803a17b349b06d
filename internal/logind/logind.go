// Package logind hears from systemd-logind, over D-Bus, that the machine is about to shut down
// or to sleep, and delays that for as long as logind allows. It knows nothing of nodes and
// replicas.
package logind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/godbus/dbus/v5"
)

// The names of logind on the bus.
const (
	service      = "org.freedesktop.login1"
	path         = dbus.ObjectPath("/org/freedesktop/login1")
	manager      = service + ".Manager"
	shutdown     = manager + ".PrepareForShutdown"
	sleep        = manager + ".PrepareForSleep"
	maxDelay     = manager + ".InhibitDelayMaxUSec"
	defaultDelay = 5 * time.Second
)

// margin is kept of the delay, so that the lock is released before logind stops waiting.
const margin = 500 * time.Millisecond

// Handler is told what the machine is about to do.
type Handler struct {
	// Leave is called when the machine is about to shut down or to sleep. Its context ends when
	// logind does not wait any longer; the machine goes on when Leave returns.
	Leave func(ctx context.Context, reason string)
	// Stay is called when the machine has woken up, or does not shut down after all.
	Stay func()
}

// The reasons that Leave gets.
const (
	ShutsDown = "The machine shuts down."
	Sleeps    = "The machine goes to sleep."
)

// Watch tells the handler what the machine is about to do, until ctx ends or the bus closes the
// connection. The address is empty for the system bus.
func Watch(ctx context.Context, address string, h Handler) error {
	conn, err := connect(address)
	if err != nil {
		return fmt.Errorf("connect to the system bus: %w", err)
	}
	defer conn.Close()
	signals := make(chan *dbus.Signal, 16)
	conn.Signal(signals)
	for _, member := range []string{"PrepareForShutdown", "PrepareForSleep"} {
		err := conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface(manager), dbus.WithMatchMember(member), dbus.WithMatchObjectPath(path))
		if err != nil {
			return fmt.Errorf("follow the signals of logind: %w", err)
		}
	}
	w := &watch{conn: conn, handler: h}
	defer w.release()
	if err := w.hold(ctx); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case s, open := <-signals:
			if !open {
				return errors.New("the system bus has closed the connection")
			}
			if err := w.handle(ctx, s); err != nil {
				return err
			}
		}
	}
}

func connect(address string) (*dbus.Conn, error) {
	if address == "" {
		return dbus.ConnectSystemBus()
	}
	return dbus.Connect(address)
}

// watch holds the lock that makes logind wait.
type watch struct {
	conn    *dbus.Conn
	handler Handler
	lock    *os.File // nil if it is released
}

// hold takes the lock.
func (w *watch) hold(ctx context.Context) error {
	if w.lock != nil {
		return nil
	}
	var fd dbus.UnixFD
	call := w.conn.Object(service, path).CallWithContext(ctx, manager+".Inhibit", 0,
		"shutdown:sleep", "Cloudless", "replicas move to other nodes", "delay")
	if err := call.Store(&fd); err != nil {
		return fmt.Errorf("ask logind for a delay lock: %w", err)
	}
	w.lock = os.NewFile(uintptr(fd), "delay lock")
	return nil
}

// release lets the machine go on.
func (w *watch) release() {
	if w.lock != nil {
		_ = w.lock.Close()
		w.lock = nil
	}
}

// handle acts on a signal of logind.
func (w *watch) handle(ctx context.Context, s *dbus.Signal) error {
	var begins bool
	if s.Name != shutdown && s.Name != sleep || dbus.Store(s.Body, &begins) != nil {
		return nil
	}
	if !begins {
		w.handler.Stay()
		return w.hold(ctx)
	}
	reason := ShutsDown
	if s.Name == sleep {
		reason = Sleeps
	}
	delayed, cancel := context.WithTimeout(ctx, w.delay())
	defer cancel()
	w.handler.Leave(delayed, reason)
	w.release()
	return nil
}

// delay is how long logind waits, minus the margin.
func (w *watch) delay() time.Duration {
	delay := defaultDelay
	if v, err := w.conn.Object(service, path).GetProperty(maxDelay); err == nil {
		if micros, ok := v.Value().(uint64); ok {
			delay = time.Duration(micros) * time.Microsecond
		}
	}
	return max(delay-margin, delay/2)
}
