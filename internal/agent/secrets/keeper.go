package secrets

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Options configures a keeper.
type Options struct {
	// Dir is a folder on a file system in memory; see Mount.
	Dir string
	// Broken is why there is no such folder. Replicas with secrets then wait, with this reason.
	Broken error
	Log    *slog.Logger
}

// Keeper holds the secrets of one node.
type Keeper struct {
	dir    string
	broken error
	log    *slog.Logger

	// wake has a token while there is something to acknowledge.
	wake chan struct{}
	// later has a token when another version may be the next to expire.
	later chan struct{}

	mu        sync.Mutex
	held      map[id]*v1.NodeSecret     // each with its value
	expired   map[string]*v1.NodeSecret // by uid: the newest one that has expired, without its value
	states    map[string]*state         // by replica
	news      map[string]chan struct{}  // by replica: has a token when something has changed for it
	applied   map[use]bool              // what replicas have
	unsaid    map[use]bool              // what of it the server of this session does not know yet
	destroyed bool
}

// use is a version of a secret that a replica has.
type use struct {
	id
	replica string
}

// Open reads what an earlier process has left. It refuses files that are damaged or foreign, and says so in the log.
func Open(opts Options) (*Keeper, error) {
	k := &Keeper{
		dir: opts.Dir, broken: opts.Broken, log: opts.Log,
		wake: make(chan struct{}, 1), later: make(chan struct{}, 1),
		held: map[id]*v1.NodeSecret{}, expired: map[string]*v1.NodeSecret{}, states: map[string]*state{}, news: map[string]chan struct{}{},
		applied: map[use]bool{}, unsaid: map[use]bool{},
	}
	if k.broken != nil {
		return k, nil
	}
	for _, name := range []string{valuesName, tempName} {
		if err := os.MkdirAll(filepath.Join(k.dir, name), 0o700); err != nil {
			return nil, fmt.Errorf("keep secrets: %w", err)
		}
	}
	if err := empty(filepath.Join(k.dir, tempName)); err != nil {
		return nil, err
	}
	if err := k.readValues(); err != nil {
		return nil, err
	}
	return k, k.readStates()
}

func (k *Keeper) readValues() error {
	files, err := os.ReadDir(filepath.Join(k.dir, valuesName))
	if err != nil {
		return fmt.Errorf("read the secrets of this node: %w", err)
	}
	for _, file := range files {
		data, err := read(filepath.Join(k.dir, valuesName, file.Name()))
		var secret *v1.NodeSecret
		if err == nil {
			secret, err = decodeValue(file.Name(), data)
		}
		if err != nil {
			k.log.Error("ignored a file among the secrets of this node", "file", file.Name(), "error", err)
			continue
		}
		k.held[idOf(secret)] = secret
	}
	return nil
}

func (k *Keeper) readStates() error {
	folders, err := os.ReadDir(k.dir)
	if err != nil {
		return fmt.Errorf("read the secrets of this node: %w", err)
	}
	for _, folder := range folders {
		name := folder.Name()
		if name == valuesName || name == tempName {
			continue
		}
		var s *state
		err := errors.New("it is no folder of a replica")
		if folder.IsDir() && uidPattern.MatchString(name) {
			var data []byte
			if data, err = read(filepath.Join(k.dir, name, stateName)); err == nil {
				s, err = decodeState(data)
			}
		}
		if err != nil {
			k.log.Error("ignored a folder among the secrets of this node", "folder", name, "error", err)
			continue
		}
		k.states[name] = s
		k.noteApplied(name, s)
	}
	return nil
}

func idOf(s *v1.NodeSecret) id { return id{s.GetUid(), s.GetVersion()} }

// Apply takes what a server says.
func (k *Keeper) Apply(down *v1.SecretsDown) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.broken != nil || k.destroyed {
		return
	}
	gone, named := map[string]bool{}, map[id]bool{}
	for _, uid := range down.GetRemoved() {
		gone[uid] = true
	}
	for _, s := range down.GetSecrets() {
		named[idOf(s)] = true
	}
	for version := range k.held {
		switch {
		case gone[version.uid]:
			k.drop(version)
		case down.GetFull() && !named[version]:
			k.dropUnlessFollowed(version, down)
		}
	}
	for uid := range k.expired {
		if gone[uid] || down.GetFull() {
			delete(k.expired, uid)
		}
	}
	for _, s := range down.GetSecrets() {
		k.hold(s)
	}
	k.signal(k.later)
}

// hold keeps a version of a secret, or changes which replicas get it.
func (k *Keeper) hold(s *v1.NodeSecret) {
	version := idOf(s)
	before := k.held[version]
	if _, err := parseID(version.fileName()); err != nil {
		k.log.Error("ignored a secret with an invalid uid", "uid", s.GetUid())
		return
	}
	if len(s.GetReplicas()) == 0 {
		k.drop(version)
		return
	}
	if len(s.GetValue()) == 0 {
		if before == nil {
			k.log.Debug("a server will send a version of a secret later", "secret", s.GetName(), "version", s.GetVersion())
			return
		}
		s = copyOf(s, before.GetValue(), s.GetReplicas())
	}
	if hasExpired(s, time.Now()) {
		k.expire(s)
		return
	}
	if proto.Equal(before, s) {
		return
	}
	k.replaceOthers(s)
	k.keep(s)
}

// replaceOthers takes the other versions of a secret from the replicas that get this one.
func (k *Keeper) replaceOthers(s *v1.NodeSecret) {
	for version, other := range k.held {
		if version.uid != s.GetUid() || version == idOf(s) {
			continue
		}
		rest := slices.DeleteFunc(slices.Clone(other.GetReplicas()), func(r string) bool { return slices.Contains(s.GetReplicas(), r) })
		switch {
		case len(rest) == 0:
			k.drop(version)
		case len(rest) < len(other.GetReplicas()):
			k.keep(copyOf(other, other.GetValue(), rest))
		}
	}
}

// keep makes a version known, also to the next process.
func (k *Keeper) keep(s *v1.NodeSecret) {
	version := idOf(s)
	k.tell(k.held[version])
	k.tell(s)
	k.held[version] = s
	data, err := encodeValue(s)
	if err == nil {
		err = k.place(k.valuePath(version), data, 0, -1, -1)
	}
	if err != nil { // it is known until the agent restarts
		k.log.Error("cannot keep a secret for a restart of the agent", "secret", s.GetName(), "error", err)
	}
}

// copyOf is a version with another value and for other replicas.
func copyOf(s *v1.NodeSecret, value []byte, replicas []string) *v1.NodeSecret {
	return &v1.NodeSecret{
		Uid: s.GetUid(), Namespace: s.GetNamespace(), Name: s.GetName(), Version: s.GetVersion(), Value: value,
		ExpireTime: s.GetExpireTime(), Replicas: replicas,
	}
}

// drop forgets a version.
func (k *Keeper) drop(version id) {
	k.tell(k.held[version])
	delete(k.held, version)
	if err := os.Remove(k.valuePath(version)); err != nil && !errors.Is(err, os.ErrNotExist) {
		k.log.Error("cannot remove a secret from memory", "error", err)
	}
}

// dropUnlessFollowed forgets a version that a full set does not name. Replicas that get another one, whose value follows in
// a later message, keep theirs until then.
func (k *Keeper) dropUnlessFollowed(version id, full *v1.SecretsDown) {
	held := k.held[version]
	var keep []string
	for _, next := range full.GetSecrets() {
		if next.GetUid() != version.uid || len(next.GetValue()) > 0 || k.held[idOf(next)] != nil {
			continue
		}
		for _, replica := range next.GetReplicas() {
			if slices.Contains(held.GetReplicas(), replica) {
				keep = append(keep, replica)
			}
		}
	}
	if len(keep) == 0 {
		k.drop(version)
		return
	}
	k.keep(copyOf(held, held.GetValue(), keep))
}

func (k *Keeper) valuePath(version id) string {
	return filepath.Join(k.dir, valuesName, version.fileName())
}

// tell wakes the replicas that get a version.
func (k *Keeper) tell(s *v1.NodeSecret) {
	for _, replica := range s.GetReplicas() {
		if news := k.news[replica]; news != nil {
			k.signal(news)
		}
	}
}

func (k *Keeper) signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// News has a token when something has changed for a replica. It is nil in a nil keeper.
func (k *Keeper) News(replica string) <-chan struct{} {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.news[replica] == nil {
		k.news[replica] = make(chan struct{}, 1)
	}
	return k.news[replica]
}

// Wake is News with a token at once.
func (k *Keeper) Wake(replica string) <-chan struct{} {
	if k == nil {
		return nil
	}
	news := k.News(replica)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.signal(k.news[replica])
	return news
}

// Wanted says which secrets a replica uses, and how.
type Wanted struct {
	Replica, Namespace string
	Refs               []*v1.SecretRef
}

// find returns the version of a secret that a replica gets.
func (k *Keeper) find(w Wanted, name string) *v1.NodeSecret {
	for _, s := range k.held {
		if s.GetName() == name && s.GetNamespace() == w.Namespace && slices.Contains(s.GetReplicas(), w.Replica) {
			return s
		}
	}
	return nil
}

// Check says which secrets are missing for a replica, by a MissingError. It is nil in a nil keeper.
func (k *Keeper) Check(w Wanted) error {
	if k == nil || k.broken != nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	_, err := k.findAll(w)
	return err
}

// MissingError says that a replica cannot start yet, because secrets are missing.
type MissingError struct{ Reason string }

func (e *MissingError) Error() string { return e.Reason }

// missing explains which secrets the node does not have for a replica.
func (k *Keeper) missing(w Wanted, names []string) error {
	slices.Sort(names)
	names = slices.Compact(names)
	for _, name := range names {
		for _, s := range k.expired {
			if s.GetName() == name && s.GetNamespace() == w.Namespace && slices.Contains(s.GetReplicas(), w.Replica) {
				return &MissingError{fmt.Sprintf("it waits for another version of secret %s, because version %d has expired: set one with: cloudless secret set %s",
					name, s.GetVersion(), name)}
			}
		}
	}
	if len(names) == 1 {
		return &MissingError{"it waits for secret " + names[0] + " from a server"}
	}
	return &MissingError{"it waits for secrets " + strings.Join(names, ", ") + " from a server"}
}

// Retain removes what is left of replicas that are not known.
func (k *Keeper) Retain(known func(replica string) bool) {
	if k == nil {
		return
	}
	k.mu.Lock()
	var unknown []string
	for replica := range k.states {
		if !known(replica) {
			unknown = append(unknown, replica)
		}
	}
	k.mu.Unlock()
	for _, replica := range unknown {
		if err := k.Release(replica); err != nil {
			k.log.Error("cannot remove the secrets of a replica that is gone", "replica", replica, "error", err)
		}
	}
}

// Release removes everything that a replica had.
func (k *Keeper) Release(replica string) error {
	if k == nil || k.broken != nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.news, replica)
	return k.clear(replica)
}

// clear removes the files of a replica.
func (k *Keeper) clear(replica string) error {
	if k.destroyed || !uidPattern.MatchString(replica) {
		return nil
	}
	if err := os.RemoveAll(k.replicaDir(replica)); err != nil {
		return fmt.Errorf("remove the secrets of a replica: %w", err)
	}
	delete(k.states, replica)
	k.forgetApplied(replica)
	return nil
}

func (k *Keeper) replicaDir(replica string) string { return filepath.Join(k.dir, replica) }

// Destroy removes everything and unmounts the folder, because the machine is no longer a node.
func (k *Keeper) Destroy() error {
	if k == nil || k.broken != nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.destroyed = true
	clear(k.held)
	clear(k.states)
	return Unmount(k.dir)
}
