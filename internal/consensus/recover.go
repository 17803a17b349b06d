package consensus

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// Recover makes this server the only one of its cluster, with what it has on its disk, when the majority is lost for
// good. What only the lost servers had is lost, and what they had not agreed on yet may become true. None of the others
// may reach this one afterwards, which is up to the caller: to raft a majority of them would be right, and what this one
// has agreed on alone would be undone. Nothing else may use Dir meanwhile; open it afterwards.
func Recover(o Options) (err error) {
	if err := o.validate(); err != nil {
		return err
	}
	log := newHCLogger(o.Logger)
	d, err := openDisk(o.Dir, log)
	if err != nil {
		return fmt.Errorf("open the log of server %s in %s: %w", o.ServerID, o.Dir, err)
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.restore(o.Store); err != nil { // refuses what is damaged
		return err
	}
	_, transport := raft.NewInmemTransport(raft.ServerAddress(o.Address))
	defer func() { err = errors.Join(err, transport.Close()) }()
	machine := newFSM(o.Store, o.Observer)
	alone := raft.Configuration{Servers: []raft.Server{{
		Suffrage: raft.Voter, ID: raft.ServerID(o.ServerID), Address: raft.ServerAddress(o.Address),
	}}}
	if err := raft.RecoverCluster(configOf(o, log, nil), machine, d.log, d.log, d.snapshots, transport, alone); err != nil {
		return fmt.Errorf("make server %s the only one: %w", o.ServerID, err)
	}
	return machine.broken
}
