package app

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

// A data folder may have been brought to another machine, which is right as
// long as it is not used on both. Those that can reach each other find out (see
// package server); here is what one machine can see by itself.

// machineMark tells this machine from others, as far as its system and its
// hardware say who they are; empty if they do not. It is a digest, because the
// ids themselves are nobody else's business.
func machineMark(root string) string {
	id, err := os.ReadFile(filepath.Join(root, "etc/machine-id"))
	if err != nil || strings.TrimSpace(string(id)) == "" {
		return ""
	}
	board, _ := os.ReadFile(filepath.Join(root, "sys/class/dmi/id/product_uuid")) // copies of a virtual machine differ in it
	sum := sha256.Sum256([]byte("cloudless\x00" + strings.TrimSpace(string(id)) + "\x00" + strings.TrimSpace(string(board))))
	return hex.EncodeToString(sum[:8])
}

// noticeMove says so where the folder was last used on another machine, and
// makes it one of this machine. Whether it still runs there cannot be seen from
// here: a disk that has moved must not be refused.
func (f *folder) noticeMove(mark string, progress func(string), logger *slog.Logger) error {
	if mark == "" || mark == f.Machine {
		return nil
	}
	if f.Machine != "" {
		warning := fmt.Sprintf("data folder %s was last used on another machine: if it still runs there, stop one of the two, because they are one and the same to everybody else; "+
			"if this is to be a cloud of its own, remove the copy with: cloudless down --purge --data-dir %s, and start anew", f.path, f.path)
		logger.Warn(warning)
		progress(warning)
	}
	return f.remember(func(id *folderID) { id.Machine = mark })
}

// holdMachine refuses a second cloud with one id on one machine: they would have
// the same bridge, cgroups and sockets. It holds until the folder is released.
func (f *folder) holdMachine() error {
	if f.machineLock != nil {
		return nil
	}
	if err := os.MkdirAll(f.runDir(), 0o700); err != nil {
		return fmt.Errorf("make the folder of running things: %w", err)
	}
	path := filepath.Join(f.runDir(), "lock")
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
