package secrets

import (
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// defaultSignal tells a program that a file has changed.
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
		switch now := k.find(w, e.Name); {
		case now != nil && idOf(now) == e.id(), e.Env != "" && e.UID == "", now == nil && e.UID == "":
		case e.Env != "": // only a new program gets another version, and further processes of this one none
			changed, env = true, true
			next.Entries[i].UID, next.Entries[i].Version = "", 0
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
			onChange := refOf(w.Refs, e).GetOnChange()
			untold := onChange == spec.OnChangeSignal || onChange == spec.OnChangeRestart
			next.Entries[i].UID, next.Entries[i].Version, next.Entries[i].Untold = now.GetUid(), now.GetVersion(), untold
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
		case spec.OnChangeSignal:
			signal := cmp.Or(ref.GetSignal(), defaultSignal)
			if !slices.Contains(c.Signals, signal) {
				c.Signals = append(c.Signals, signal)
			}
		case spec.OnChangeRestart:
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
