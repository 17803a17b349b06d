package consensus

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/cloudless/cloudless/internal/state"
)

// Recovered is how far a server was: the newest entry of its log, and the recorded one. If that is higher, the log has
// lost what is between.
type Recovered struct{ Term, Index, Reached uint64 }

// Recover makes this server the only one of its cluster, with what it has on disk, when the majority is lost for good.
// Entries that only the lost servers had are lost, and uncommitted entries may take effect. The caller must ensure that
// none of the others reaches this server afterwards: for raft a majority of them would be right, and undo what this
// server has committed alone. Nothing else may use Dir meanwhile; open it afterwards.
//
// It returns how far the server was. What its log has lost is given up.
func Recover(o Options) (was Recovered, err error) {
	if o.Store == nil {
		return was, errNoStore
	}
	return recoverGroup(o, &transactions{store: o.Store}, func(d *disk, have []Server) error {
		if o.Lost == nil {
			return nil
		}
		newest, err := d.newest(o)
		if err != nil {
			return err
		}
		return o.Lost(have, newest)
	})
}

// HoldsGroup reports whether a folder has anything of a group.
func HoldsGroup(dir string) (bool, error) {
	if _, err := os.Stat(filepath.Join(dir, logDir)); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	d, err := openDisk(dir, newHCLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return false, err
	}
	holds, err := raft.HasExistingState(d.log, d.log, d.snapshots)
	return holds, errors.Join(err, d.close())
}

// RecoverGroup is [Recover] for another group than the control group, which was recovered before.
func RecoverGroup(o Options, machine Machine) (was Recovered, err error) {
	return recoverGroup(o, machine, func(*disk, []Server) error { return nil })
}

func recoverGroup(o Options, machine Machine, lost func(*disk, []Server) error) (was Recovered, err error) {
	if err := o.validate(); err != nil {
		return was, err
	}
	log := newHCLogger(o.Logger)
	d, err := openDisk(o.Dir, log)
	if err != nil {
		return was, fmt.Errorf("open the log of server %s in %s: %w", o.ServerID, o.Dir, err)
	}
	defer func() { err = errors.Join(err, d.close()) }()
	f := newFSM(machine, o)
	if err := d.restore(f.content); err != nil { // refuses damage
		return was, err
	}
	if was.Term, was.Index, err = d.end(); err != nil {
		return was, fmt.Errorf("read the log of server %s: %w", o.ServerID, err)
	}
	mark := reached{path: o.Reached}
	if was.Reached, err = mark.read(); err != nil {
		return was, err
	}
	_, transport := raft.NewInmemTransport(raft.ServerAddress(o.Address))
	defer func() { err = errors.Join(err, transport.Close()) }()
	have, err := raft.GetConfiguration(configOf(o, log, nil), f, d.log, d.log, d.snapshots, transport)
	if err != nil {
		return was, fmt.Errorf("read who takes part: %w", err)
	}
	if err := lost(d, slices.DeleteFunc(serversOf(have), func(s Server) bool { return s.ID == o.ServerID })); err != nil {
		return was, err
	}
	alone := raft.Configuration{Servers: []raft.Server{{
		Suffrage: raft.Voter, ID: raft.ServerID(o.ServerID), Address: raft.ServerAddress(o.Address),
	}}}
	if err := raft.RecoverCluster(configOf(o, log, nil), f, d.log, d.log, d.snapshots, transport, alone); err != nil {
		return was, fmt.Errorf("make server %s the only one: %w", o.ServerID, err)
	}
	if was.Reached > was.Index {
		// The loss is accepted, so that the server starts with what is left.
		if err := mark.write(was.Index); err != nil {
			return was, err
		}
	}
	return was, f.broken
}

// newest is the state with the whole log, committed or not. If the server was killed, the newest snapshot may be old or
// missing. An unreadable log fails later, when raft opens it.
func (d *disk) newest(o Options) (*state.Snapshot, error) {
	store := state.New()
	machine := newFSM(&transactions{store: store}, o)
	if err := d.restore(machine.content); err != nil {
		return nil, err
	}
	first, err := d.log.FirstIndex()
	if err != nil {
		return nil, fmt.Errorf("find the beginning of the log: %w", err)
	}
	last, err := d.log.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("find the end of the log: %w", err)
	}
	for index := max(first, store.Snapshot().Index()+1); index <= last; index++ {
		var entry raft.Log
		if err := d.log.GetLog(index, &entry); err != nil {
			return nil, fmt.Errorf("read entry %d of the log: %w", index, err)
		}
		machine.Apply(&entry)
	}
	return store.Snapshot(), nil
}

// end is the newest entry of the log, or of the newest snapshot.
func (d *disk) end() (term, index uint64, err error) {
	if kept, err := d.snapshots.List(); err == nil && len(kept) > 0 {
		term, index = kept[0].Term, kept[0].Index
	}
	last, err := d.log.LastIndex()
	if err != nil || last <= index {
		return term, index, err
	}
	var entry raft.Log
	err = d.log.GetLog(last, &entry)
	return entry.Term, last, err
}
