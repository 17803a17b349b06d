package consensus

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"

	"github.com/cloudless/cloudless/internal/lockfile"
)

const (
	logDir   = "log"
	lockFile = "lock"
	// segmentSize bounds the time to check the log at start.
	segmentSize     = 16 << 20
	snapshotsToKeep = 2

	// wayBack says how to repair a server that has lost something it had acknowledged. Restoring a backup of one of
	// several servers would make it forget what it has agreed to since.
	wayBack = "if there are other servers, remove this one there with cloudless server rm, take its folder away with cloudless down --purge, and let this machine join again with a new token; if it is the only one, restore a backup of its folder"
)

// disk is what a server keeps in its folder: the log, votes and terms, and snapshots.
type disk struct {
	lock *lockfile.Lock
	log  *wal.WAL
	logs string // the log's folder
	// meta is the log's own metadata, which also has votes and terms. The log does not close it.
	meta      *metadb.BoltMetaDB
	snapshots *raft.FileSnapshotStore
}

// openDisk refuses a folder with damage or one that another process uses.
func openDisk(dir string, logger *hcLogger) (_ *disk, err error) {
	logs := filepath.Join(dir, logDir)
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return nil, err
	}
	d := &disk{logs: logs, meta: &metadb.BoltMetaDB{}}
	if d.lock, err = lockfile.Hold(filepath.Join(dir, lockFile)); err != nil {
		if errors.Is(err, lockfile.ErrHeld) {
			return nil, errors.New("another process is using it: stop that one first")
		}
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = d.close()
		}
	}()
	if err := verifyLog(logs); err != nil {
		return nil, err
	}
	if d.log, err = wal.Open(logs, wal.WithLogger(logger), wal.WithMetaStore(d.meta), wal.WithSegmentSize(segmentSize)); err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	if d.snapshots, err = raft.NewFileSnapshotStoreWithLogger(dir, snapshotsToKeep, logger); err != nil {
		return nil, fmt.Errorf("open the snapshots: %w", err)
	}
	return d, nil
}

// stepped is the log for deleting its beginning in steps.
func (d *disk) stepped() steppedLog { return steppedLog{d.log, d.logs} }

// restore loads the newest snapshot into the machine and checks that the log continues from there.
func (d *disk) restore(machine content) error {
	newest, err := d.snapshots.List()
	if err != nil {
		return fmt.Errorf("list the snapshots: %w", err)
	}
	covered := uint64(0)
	if len(newest) > 0 {
		if err := d.restoreSnapshot(newest[0].ID, machine); err != nil {
			return fmt.Errorf("the snapshot %s cannot be used: %w; %s", newest[0].ID, err, wayBack)
		}
		covered = newest[0].Index
	}
	first, err := d.log.FirstIndex()
	if err != nil {
		return fmt.Errorf("find the beginning of the log: %w", err)
	}
	if first > covered+1 {
		return fmt.Errorf("the entries %d to %d are missing between the newest snapshot and the log: %s",
			covered+1, first-1, wayBack)
	}
	return d.dropCovered(first, covered)
}

// dropCovered deletes the log if it ends before the newest snapshot. The snapshot came from another server, and this
// server was killed before raft had deleted the log itself: a log cannot be written with a gap.
func (d *disk) dropCovered(first, covered uint64) error {
	last, err := d.log.LastIndex()
	if err != nil {
		return fmt.Errorf("find the end of the log: %w", err)
	}
	if first == 0 || last >= covered {
		return nil
	}
	if err := d.log.DeleteRange(first, last); err != nil {
		return fmt.Errorf("take away the log before the newest snapshot: %w", err)
	}
	return nil
}

func (d *disk) restoreSnapshot(id string, machine content) error {
	_, saved, err := d.snapshots.Open(id)
	if err != nil {
		return err
	}
	return errors.Join(machine.restore(saved), saved.Close())
}

func (d *disk) close() error {
	var errs []error
	if d.log != nil {
		errs = append(errs, d.log.Close())
	}
	return errors.Join(append(errs, d.meta.Close(), d.lock.Close())...)
}
