package secrets

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// ErrInvalid says that a replica can never get its secrets as it asks for them.
var ErrInvalid = errors.New("secrets cannot be given as specified")

// Placed is where the secrets of a replica are on this machine.
type Placed struct {
	// Env is the file with its variables; empty if it has none.
	Env string
	// Folders are what to mount, by the path at which the program sees them.
	Folders map[string]string
}

// longestVariable is the kernel's limit for a variable with its name.
const longestVariable = 128<<10 - 2

// Prepare writes the secrets of a replica whose program is about to start. It fails with a MissingError if some are not
// there, and with ErrInvalid if they can never be given like this.
func (k *Keeper) Prepare(w Wanted) (Placed, error) {
	switch {
	case len(w.Refs) == 0:
		return Placed{}, nil
	case k == nil:
		return Placed{}, errors.New("this node cannot keep secrets")
	case k.broken != nil:
		return Placed{}, fmt.Errorf("this node cannot keep secrets: %w", k.broken)
	}
	if err := checkPaths(w.Refs); err != nil {
		return Placed{}, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	found, err := k.findAll(w)
	if err != nil {
		return Placed{}, err
	}
	if err := k.clear(w.Replica); err != nil { // what an earlier attempt has left
		return Placed{}, err
	}
	placed, err := k.write(w, found)
	if err != nil {
		return Placed{}, errors.Join(err, k.clear(w.Replica))
	}
	return placed, nil
}

// given is a secret for one use: as a variable, or as a file.
type given struct {
	entry  entry
	secret *v1.NodeSecret
	ref    *v1.SecretRef
}

// findAll finds the secrets of a replica, for each use in the order of the spec.
func (k *Keeper) findAll(w Wanted) (all []given, err error) {
	var missing []string
	add := func(ref *v1.SecretRef, e entry) {
		secret := k.find(w, ref.GetName())
		if secret == nil {
			missing = append(missing, ref.GetName())
			return
		}
		e.Name, e.UID, e.Version = ref.GetName(), secret.GetUid(), secret.GetVersion()
		all = append(all, given{e, secret, ref})
	}
	for _, ref := range w.Refs {
		if ref.GetEnv() != "" {
			add(ref, entry{Env: ref.GetEnv()})
		}
		if ref.GetPath() != "" {
			add(ref, entry{File: ref.GetPath()})
		}
	}
	if len(missing) > 0 {
		return nil, k.missing(w, missing)
	}
	return all, nil
}

// write writes the files of a replica that has none.
func (k *Keeper) write(w Wanted, all []given) (Placed, error) {
	if !uidPattern.MatchString(w.Replica) {
		return Placed{}, fmt.Errorf("%w: replica %q has no valid uid", ErrInvalid, w.Replica)
	}
	dir := k.replicaDir(w.Replica)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return Placed{}, noRoom(err)
	}
	folders, err := makeFolders(dir, w.Refs)
	if err != nil {
		return Placed{}, err
	}
	placed, s := Placed{Folders: map[string]string{}}, &state{User: User{}, Entries: []entry{}}
	for parent, number := range folders {
		placed.Folders[parent] = filepath.Join(dir, strconv.Itoa(number))
	}
	variables := map[string]string{}
	for _, g := range all {
		if g.entry.Env != "" {
			if err := checkVariable(g); err != nil {
				return Placed{}, err
			}
			variables[g.entry.Env] = string(g.secret.GetValue())
		} else {
			g.entry.Folder = folders[path.Dir(g.entry.File)]
			if err := k.place(k.filePath(w.Replica, g.entry), g.secret.GetValue(), 0, -1, -1); err != nil {
				return Placed{}, err
			}
		}
		s.Entries = append(s.Entries, g.entry)
	}
	if len(variables) > 0 {
		placed.Env = filepath.Join(dir, envName)
		if err := k.writeVariables(w.Replica, variables); err != nil {
			return Placed{}, err
		}
	}
	return placed, k.save(w.Replica, s)
}

// checkVariable refuses what cannot be in an environment.
func checkVariable(g given) error {
	value := g.secret.GetValue()
	problem := ""
	switch {
	case len(g.entry.Env)+len(value) > longestVariable:
		problem = "is longer than 128 KiB"
	case !utf8.Valid(value), slices.Contains(value, 0):
		problem = "is not text"
	default:
		return nil
	}
	return fmt.Errorf("%w: version %d of secret %s %s, so it cannot be the variable %s: use a path instead of env",
		ErrInvalid, g.entry.Version, g.entry.Name, problem, g.entry.Env)
}

func (k *Keeper) writeVariables(replica string, variables map[string]string) error {
	data, err := json.Marshal(variables)
	if err != nil {
		return errors.New("the variables cannot be encoded")
	}
	return k.place(filepath.Join(k.replicaDir(replica), envName), data, 0, -1, -1)
}

// makeFolders makes a folder for each folder in which the replica has files, and returns their numbers.
func makeFolders(dir string, refs []*v1.SecretRef) (map[string]int, error) {
	folders := map[string]int{}
	for _, ref := range refs {
		if ref.GetPath() != "" {
			folders[path.Dir(ref.GetPath())] = 0
		}
	}
	for number, parent := range slices.Sorted(maps.Keys(folders)) {
		folders[parent] = number
		if err := makeDir(filepath.Join(dir, strconv.Itoa(number))); err != nil {
			return nil, err
		}
	}
	return folders, nil
}

// makeDir makes a folder that every user of a container may search, whatever the umask is.
func makeDir(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if err == nil || errors.Is(err, os.ErrExist) {
		err = os.Chmod(dir, 0o755)
	}
	return noRoom(err)
}

// filePath is where a file of a replica is on this machine.
func (k *Keeper) filePath(replica string, e entry) string {
	return filepath.Join(k.replicaDir(replica), strconv.Itoa(e.Folder), path.Base(e.File))
}

// checkPath refuses a path that no file can be mounted at. Servers refuse more, with better words.
func checkPath(file string) error {
	if !path.IsAbs(file) || path.Clean(file) != file || path.Dir(file) == "/" || strings.ContainsRune(file, 0) {
		return fmt.Errorf("%w: %q is not the absolute path of a file in a folder", ErrInvalid, file)
	}
	return nil
}

// checkPaths refuses paths that exclude each other.
func checkPaths(refs []*v1.SecretRef) error {
	files := map[string]bool{}
	for _, ref := range refs {
		file := ref.GetPath()
		if file == "" {
			continue
		}
		if err := checkPath(file); err != nil {
			return err
		}
		if files[file] {
			return fmt.Errorf("%w: two secrets have the path %s", ErrInvalid, file)
		}
		files[file] = true
	}
	return nil
}

// save writes the state of a replica, and acknowledges what has changed in it.
func (k *Keeper) save(replica string, s *state) error {
	data, err := encodeState(s)
	if err == nil {
		err = k.place(filepath.Join(k.replicaDir(replica), stateName), data, 0, -1, -1)
	}
	if err != nil {
		return err
	}
	k.states[replica] = s
	k.noteApplied(replica, s)
	return nil
}

// Own gives the files of a replica to their owners, once the user of its program is known.
func (k *Keeper) Own(replica string, refs []*v1.SecretRef, user User) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.states[replica]
	if s == nil {
		return errors.New("the secrets of the replica are gone")
	}
	next := state{User: user, Started: s.Started, Entries: s.Entries}
	for _, e := range s.Entries {
		if e.File == "" {
			continue
		}
		mode, uid, gid, err := rightsOf(refs, e, user)
		if err != nil {
			return err
		}
		file := k.filePath(replica, e)
		if err := os.Chown(file, uid, gid); err != nil {
			return noRoom(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			return noRoom(err)
		}
	}
	return k.save(replica, &next)
}

// refOf is what a replica's spec says of a file; nil if it says nothing.
func refOf(refs []*v1.SecretRef, e entry) *v1.SecretRef {
	for _, ref := range refs {
		if ref.GetName() == e.Name && ref.GetPath() == e.File {
			return ref
		}
	}
	return nil
}

const defaultMode = 0o400

// rightsOf are the mode and owner of a file, by the ids of this machine.
func rightsOf(refs []*v1.SecretRef, e entry, user User) (mode os.FileMode, uid, gid int, err error) {
	ref := refOf(refs, e)
	mode, uid, gid = defaultMode, user.UID, user.GID
	if text := ref.GetMode(); text != "" {
		bits, err := strconv.ParseUint(text, 8, 9)
		if err != nil {
			return 0, 0, 0, fmt.Errorf("%w: %q is not a mode of a file", ErrInvalid, text)
		}
		mode = os.FileMode(bits)
	}
	if text := ref.GetOwner(); text != "" {
		first, second, group := strings.Cut(text, ":")
		if uid, err = strconv.Atoi(first); err == nil && group {
			gid, err = strconv.Atoi(second)
		}
		if err != nil || uid < 0 || gid < 0 {
			return 0, 0, 0, fmt.Errorf("%w: %q is not an owner of a file", ErrInvalid, text)
		}
	}
	return mode, uid + user.Shift, gid + user.Shift, nil
}
