package secrets

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// What a replica wants when one of its files has changed.
const (
	OnChangeNone    = "none"
	OnChangeSignal  = "signal"
	OnChangeRestart = "restart"
)

const defaultSignal = "SIGHUP"

// Change is what a running program must be told, because its files have changed.
type Change struct {
	// Signals to send, each once, and the secrets whose change restarts the program.
	Signals, Restart []string
	// Updated and Lost are the secrets whose files have another version, or are gone.
	Updated, Lost []string
}

// Refresh brings the files of a replica whose program runs up to date. It returns the same change again until Told is
// called, also after a restart of the agent.
func (k *Keeper) Refresh(w Wanted) (change Change, err error) {
	if k == nil || k.broken != nil || len(w.Refs) == 0 {
		return change, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.states[w.Replica]
	if s == nil || k.destroyed {
		return change, nil // it has no files here: its program was started by another release, or the folder was unmounted
	}
	next := &state{User: s.User, Started: true, Entries: slices.Clone(s.Entries)}
	changed, env := !s.Started, false
	for i, e := range next.Entries {
		switch now := k.current(w, e); {
		case now != nil && idOf(now) == e.id(), now == nil && e.UID == "":
		case e.Env != "": // the program keeps it, further processes do not get it
			if now == nil {
				changed, env = true, true
				next.Entries[i].UID, next.Entries[i].Version = "", 0
			}
		case now == nil:
			if err := os.Remove(k.filePath(w.Replica, e)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return change, noRoom(err)
			}
			next.Entries[i].UID, next.Entries[i].Version, next.Entries[i].Untold = "", 0, false
			change.Lost, changed = append(change.Lost, e.Name), true
		default:
			mode, uid, gid, err := rightsOf(w.Refs, e, s.User)
			if err != nil {
				return change, err
			}
			if err := k.place(k.filePath(w.Replica, e), now.GetValue(), mode, uid, gid); err != nil {
				return change, err
			}
			next.Entries[i].UID, next.Entries[i].Version, next.Entries[i].Untold = now.GetUid(), now.GetVersion(), true
			change.Updated, changed = append(change.Updated, e.Name), true
		}
	}
	if env {
		if err := k.keepVariables(w.Replica, next); err != nil {
			return change, err
		}
	}
	if changed {
		if err := k.save(w.Replica, next); err != nil {
			return change, err
		}
	}
	change.add(w.Refs, next)
	return change, nil
}

// current is the version that a replica has, or should have. A variable keeps its version.
func (k *Keeper) current(w Wanted, e entry) *v1.NodeSecret {
	if e.Env == "" {
		return k.find(w, e.Name, 0)
	}
	if e.Version == 0 {
		return nil
	}
	return k.find(w, e.Name, e.Version)
}

// keepVariables removes the variables of a replica whose secrets are gone, for the processes that start from now on.
func (k *Keeper) keepVariables(replica string, s *state) error {
	data, err := read(filepath.Join(k.replicaDir(replica), envName))
	if err != nil {
		return noRoom(err)
	}
	var variables map[string]string
	if err := json.Unmarshal(data, &variables); err != nil {
		return errors.New("the variables of a replica are damaged")
	}
	for _, e := range s.Entries {
		if e.Env != "" && e.Version == 0 {
			delete(variables, e.Env)
		}
	}
	return k.writeVariables(replica, variables)
}

// add says what the program must be told.
func (c *Change) add(refs []*v1.SecretRef, s *state) {
	for _, e := range s.Entries {
		if !e.Untold {
			continue
		}
		switch ref := refOf(refs, e); ref.GetOnChange() {
		case OnChangeSignal:
			signal := ref.GetSignal()
			if signal == "" {
				signal = defaultSignal
			}
			if !slices.Contains(c.Signals, signal) {
				c.Signals = append(c.Signals, signal)
			}
		case OnChangeRestart:
			c.Restart = append(c.Restart, e.Name)
		}
	}
}

// Told says that the program of a replica knows of all changes of its files.
func (k *Keeper) Told(replica string) error {
	if k == nil || k.broken != nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.states[replica]
	if s == nil || !slices.ContainsFunc(s.Entries, func(e entry) bool { return e.Untold }) {
		return nil
	}
	next := &state{User: s.User, Started: s.Started, Entries: slices.Clone(s.Entries)}
	for i := range next.Entries {
		next.Entries[i].Untold = false
	}
	return k.save(replica, next)
}
