package systemd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Manager controls units.
type Manager interface {
	// Do runs systemctl with these arguments.
	Do(ctx context.Context, args ...string) error
}

// Systemctl is the systemd of this machine.
type Systemctl struct{}

// Do runs systemctl.
func (Systemctl) Do(ctx context.Context, args ...string) error {
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, "systemctl", args...)
	cmd.Stdout, cmd.Stderr = &said, &said
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return ErrNoSystemd
	}
	if err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, strings.Join(strings.Fields(said.String()), " "))
	}
	return nil
}

// ErrNoSystemd means that systemd does not run on this machine.
var ErrNoSystemd = errors.New("this machine does not run systemd: let its own service manager run cloudless up, or start it with: cloudless up --detach")

// Running returns an error unless systemd runs on this machine.
func Running() error {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return ErrNoSystemd
	}
	return nil
}
