package datadir

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Holder describes the process that holds a data folder, for processes that find the folder held.
type Holder struct {
	PID int `json:"pid"`
	// Address of its API; empty if it has none or is not known.
	Address string `json:"address,omitempty"`
	// Server and Node say whether the process runs a server and a node. Both are false until the process knows.
	Server bool `json:"server,omitempty"`
	Node   bool `json:"node,omitempty"`
	// Moving says that the process is starting or stopping.
	Moving bool `json:"moving,omitempty"`
	// NodeRemoved says that it is a server whose node was removed from the cluster.
	NodeRemoved bool `json:"nodeRemoved,omitempty"`
}

// AlreadyRunningError says that a process holds the data folder.
type AlreadyRunningError struct {
	DataDir string `json:"dataDir"`
	Holder
}

func (e *AlreadyRunningError) Error() string {
	return e.Sentence() + ": stop it with: cloudless down --data-dir " + e.DataDir
}

// Sentence says what runs, without the way out.
func (e *AlreadyRunningError) Sentence() string {
	at := ""
	if e.Address != "" {
		at = " at " + e.Address
	}
	return fmt.Sprintf("cloudless runs on %s already%s (process %d)", e.DataDir, at, e.PID)
}

// runs is the error for a process that finds the folder held.
func (h Holder) runs(path string) *AlreadyRunningError {
	h.Moving = h.Moving || h.PID <= 0
	return &AlreadyRunningError{DataDir: path, Holder: h}
}

// ReadHolder reads which process says that it holds the folder. It may have ended since.
func ReadHolder(path string) Holder {
	var holder Holder
	if data, err := os.ReadFile(lockPath(path)); err == nil {
		_ = json.Unmarshal(data, &holder) // a holder that has not written yet is unknown
	}
	return holder
}

// HolderPID is the process that holds the folder, 0 if none does.
func HolderPID(path string) int {
	if holder := ReadHolder(path); holder.PID > 0 && hasOpen(holder.PID, lockPath(path)) {
		return holder.PID
	}
	return 0
}

// HeldBy are the folders that processes hold; pids is a pattern for their process ids.
func HeldBy(pids string) (all []Record) {
	links, _ := filepath.Glob("/proc/" + pids + "/fd/*")
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || filepath.Base(target) != "lock" {
			continue
		}
		// By way of the process, which may see other mounts than this one.
		if record, err := ReadRecord(filepath.Join(filepath.Dir(filepath.Dir(link)), "root", filepath.Dir(target))); err == nil {
			all = append(all, record)
		}
	}
	return all
}

// UpdateHolder changes what other processes learn about this one.
func (f *Folder) UpdateHolder(change func(*Holder)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.holder)
	data, err := json.Marshal(f.holder)
	if err != nil {
		return err
	}
	if err := f.lock.Truncate(0); err != nil {
		return err
	}
	_, err = f.lock.WriteAt(data, 0)
	return err
}

// MarkStarted says that the process has started. When ctx ends, it says that the process is stopping: processes that
// come then wait, instead of reporting that it runs.
func (f *Folder) MarkStarted(ctx context.Context) error {
	if err := f.UpdateHolder(func(h *Holder) { h.Moving = false }); err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = f.UpdateHolder(func(h *Holder) { h.Moving = true }) })
	return nil
}
