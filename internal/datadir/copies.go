package datadir

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/cloudless/cloudless/internal/lockfile"
)

// A data folder may be moved to another machine, as long as both do not use it. Servers that reach each other detect
// a copy (see package server). This file has what one machine can detect by itself.

// MachineMark tells this machine from others by its system and its hardware; empty if neither has an id. It is a
// digest, because the ids themselves are private.
func MachineMark(root string) string {
	id, err := os.ReadFile(filepath.Join(root, "etc/machine-id"))
	if err != nil || strings.TrimSpace(string(id)) == "" {
		return ""
	}
	board, _ := os.ReadFile(filepath.Join(root, "sys/class/dmi/id/product_uuid")) // copies of a virtual machine differ in it
	sum := sha256.Sum256([]byte("cloudless\x00" + strings.TrimSpace(string(id)) + "\x00" + strings.TrimSpace(string(board))))
	return hex.EncodeToString(sum[:8])
}

// NoticeMove warns if the folder was last used on another machine, and makes it one of this machine. It does not
// refuse: whether the folder is still used there cannot be seen from here, and a moved disk must work.
func (f *Folder) NoticeMove(mark string, progress func(string), logger *slog.Logger) error {
	if mark == "" || mark == f.Machine {
		return nil
	}
	if f.Machine != "" {
		warning := fmt.Sprintf("data folder %s was last used on another machine: if it still runs there, stop one of the two, because other machines cannot tell them apart; "+
			"if this should be a cloud of its own, remove the copy with: cloudless down --purge --data-dir %s, and start again", f.path, f.path)
		logger.Warn(warning)
		progress(warning)
	}
	return f.Update(func(r *Record) { r.Machine = mark })
}

// LockMachine refuses a second cloud with the same id on one machine: they would share the bridge, cgroups and
// sockets. The lock is held until the folder is released.
func (f *Folder) LockMachine() error {
	if f.machineLock != nil {
		return nil
	}
	if err := os.MkdirAll(f.RunDir(), 0o700); err != nil {
		return fmt.Errorf("make the folder of running things: %w", err)
	}
	// Replicas in user namespaces must get through to their root folders. What is in this folder stays closed.
	if err := os.Chmod(filepath.Dir(f.RunDir()), 0o711); err != nil {
		return fmt.Errorf("open the way to root folders: %w", err)
	}
	path := filepath.Join(f.RunDir(), "lock")
	lock, err := lockfile.Hold(path)
	if errors.Is(err, lockfile.ErrHeld) {
		return fmt.Errorf("data folder %s is a copy of another one, which is in use on this machine: use that one, or remove this copy with: rm -r %s", f.path, f.path)
	}
	if err != nil {
		return fmt.Errorf("hold this machine: %w", err)
	}
	f.machineLock = lock
	return nil
}
