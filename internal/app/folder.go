package app

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cloudless/cloudless/internal/atomicfile"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/lockfile"
	"github.com/cloudless/cloudless/internal/server"
	"github.com/cloudless/cloudless/internal/state"
)

// folderFormat is raised when an older version could not read the folder any
// more.
const folderFormat = 1

// folder is the data folder of one cloud on this machine. One process holds it
// at a time.
type folder struct {
	path string
	lock *lockfile.Lock
	// machineLock is held while something of this cloud may run on this machine.
	machineLock *lockfile.Lock
	// fresh is whether this process has made it a cloud's folder.
	fresh bool
	// others are what lay in it before that.
	others []string
	// formerNode is the node that the machine was before this process made it another one.
	formerNode string

	mu sync.Mutex // guards what follows while parts start side by side
	folderID
	said holder // what those are told who find the folder held
}

var validID = regexp.MustCompile(`^[a-z0-9]{8}$`)

// folderID is what the folder says about itself.
type folderID struct {
	Format int `json:"format"`
	// ID names the cloud on this machine: in /run, in cgroups, in containerd.
	ID        string `json:"id"`
	ServerUID string `json:"serverUID"`
	// Cluster is the id of the cluster, once there is one.
	Cluster string `json:"cluster,omitempty"`
	// Joined are the addresses, with commas between them, of the servers that let
	// this one join theirs; empty for the server that founded its cluster.
	Joined string `json:"joined,omitempty"`
	// Recovered is set when this folder's server was made the only one of its
	// cluster, until it has removed the others from the state.
	Recovered bool `json:"recovered,omitempty"`
	// Machine is a mark of the machine that the folder was last used on.
	Machine string `json:"machine,omitempty"`
	// Listen and Advertise are where the server listened last, and was reached by others if that was said.
	Listen    string `json:"listen,omitempty"`
	Advertise string `json:"advertise,omitempty"`
	// Zone and ElectionTimeout are what the server was told last.
	Zone            string        `json:"zone,omitempty"`
	ElectionTimeout time.Duration `json:"electionTimeout,omitempty"`
	// ContainerdAddress is the outside containerd that was used last.
	ContainerdAddress string `json:"containerdAddress,omitempty"`
}

func (f *folder) sub(parts ...string) string {
	return filepath.Join(append([]string{f.path}, parts...)...)
}

func (f *folder) runDir() string { return runDir(f.ID) }

// runDir is where sockets and the like of a cloud lie. It is short, because
// paths of sockets must be.
func runDir(id string) string { return filepath.Join("/run/cloudless", id) }

// openFolder takes the folder for this process and makes it if it is not there.
func openFolder(path string) (*folder, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make data folder: %w", err)
	}
	if err := private(path); err != nil {
		return nil, err
	}
	f, err := holdFolder(path)
	if err != nil {
		return nil, err
	}
	if err := f.identify(); err != nil {
		f.release()
		return nil, err
	}
	return f, nil
}

// movePause is how often somebody looks who waits for a process to come up or to end.
const movePause = 20 * time.Millisecond

// openFolderFor opens the folder of a role. Somebody who waits until the role is ready
// waits for a process that is just coming up, which is then the one, or is ending.
func openFolderFor(ctx context.Context, process local.Process) (*folder, error) {
	for {
		f, err := openFolder(process.DataDir)
		held, ok := errors.AsType[*local.AlreadyRunningError](err)
		if !ok || !held.Moving || !process.Attended {
			return f, err
		}
		process.Progress(fmt.Sprintf("waiting for process %d, which is starting or stopping", held.PID))
		if err := pause(ctx, movePause); err != nil {
			return nil, err
		}
	}
}

// private refuses a folder in which somebody else could lay traps for us.
func private(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("look at data folder: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("data folder %s can be written by others than the user who runs cloudless: choose another --data-dir, or correct it with: chown %d %s && chmod go-w %s",
			path, os.Geteuid(), path, path)
	}
	return nil
}

// openExistingFolder takes a folder that must be there; fs.ErrNotExist if not.
func openExistingFolder(path string) (*folder, error) {
	// Looked at before it is held, because holding leaves a file, ...
	if _, err := readFolderID(path); err != nil {
		return nil, err
	}
	f, err := holdFolder(path)
	if err != nil {
		return nil, err
	}
	// ... and read after, because a holder may have changed it until then.
	if f.folderID, err = readFolderID(path); err != nil {
		f.release()
		return nil, err
	}
	return f, nil
}

func lockPath(path string) string { return filepath.Join(path, "lock") }

// endPatience is how long a process that is ending may hold on to its folder.
const endPatience = 10 * time.Second

func holdFolder(path string) (*folder, error) {
	lock, err := lockfile.Hold(lockPath(path))
	for deadline := time.Now().Add(endPatience); errors.Is(err, lockfile.ErrHeld); lock, err = lockfile.Hold(lockPath(path)) {
		who := readHolder(path)
		if !isEnding(who.PID) || time.Now().After(deadline) {
			return nil, who.runs(path)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return nil, fmt.Errorf("open data folder: %w", err)
	}
	f := &folder{path: path, lock: lock}
	if err := f.say(func(h *holder) { *h = holder{PID: os.Getpid(), Moving: true} }); err != nil {
		f.release()
		return nil, err
	}
	return f, nil
}

// isEnding reports whether a process has ended or cannot but end: one that was killed
// has its files until the kernel comes to take them, but does not run on them any more.
func isEnding(pid int) bool {
	if pid <= 0 {
		return false // it has not written yet who it is
	}
	const exiting = 0x4 // PF_EXITING of the kernel
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
	}
	// The name of the program comes before, in brackets, and may contain anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(string(fields[6]), 10, 64)
	return err == nil && flags&exiting != 0
}

// wayOut says what to do with the folder of a server that must not go on with it.
// The folder is named: the usual one of this machine may be that of a server that
// must, even that of the original of a copy.
func (f *folder) wayOut(err error) error {
	switch {
	case errors.Is(err, server.ErrRemoved):
		return command.ForGood(fmt.Errorf("%w: remove its data folder with: cloudless down --purge --data-dir %s, and join again with a new token", err, f.path))
	case errors.Is(err, server.ErrCopy):
		return fmt.Errorf("%w: remove this copy with: cloudless down --purge --data-dir %s, and join as a new server, or stop the other one first if this machine is to take its place", err, f.path)
	}
	return err
}

func (f *folder) release() {
	_ = f.lock.Close()
	if f.machineLock != nil {
		_ = f.machineLock.Close()
	}
}

func (f *folder) identify() error {
	id, err := readFolderID(f.path)
	if err == nil {
		f.folderID = id
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f.fresh = true
	entries, err := os.ReadDir(f.path)
	if err != nil {
		return fmt.Errorf("look at data folder: %w", err)
	}
	for _, entry := range entries {
		if entry.Name() != filepath.Base(lockPath(f.path)) {
			f.others = append(f.others, entry.Name())
		}
	}
	f.folderID = folderID{
		Format:    folderFormat,
		ID:        strings.ToLower(rand.Text()[:8]),
		ServerUID: state.NewUID(),
	}
	return f.remember(func(*folderID) {})
}

// forsake leaves a folder that was made for nothing as it was found.
func (f *folder) forsake() {
	if !f.fresh {
		return
	}
	for _, name := range []string{"agent", "server/kek.json", "server/authority", "server", "cloud.json", "lock"} {
		_ = os.Remove(f.sub(name)) // a folder with something in it stays
	}
	_ = os.Remove(f.path)
}

// tryPort refuses an address on which nothing can listen before anything is
// made in a new folder: what is half made would be in the way of another try.
func (f *folder) tryPort(ctx context.Context, address string) error {
	if !f.fresh {
		return nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err == nil {
		return l.Close()
	}
	f.forsake()
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("address %s is used by another process: stop that one, or listen on another with --api-addr", address)
	}
	return fmt.Errorf("listen on %s: %w", address, err)
}

// keep makes forsake leave the folder alone.
func (f *folder) keep() { f.fresh = false }

// remember changes what the folder says about itself.
func (f *folder) remember(change func(*folderID)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.folderID
	change(&f.folderID)
	if _, err := os.Stat(f.sub("cloud.json")); err == nil && f.folderID == before {
		return nil
	}
	data, err := json.MarshalIndent(f.folderID, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Replace(f.sub("cloud.json"), data)
}

func readFolderID(path string) (folderID, error) {
	var id folderID
	name := filepath.Join(path, "cloud.json")
	data, err := os.ReadFile(name)
	if err != nil {
		return id, fmt.Errorf("read data folder: %w", err)
	}
	if err := json.Unmarshal(data, &id); err != nil || !validID.MatchString(id.ID) {
		return id, fmt.Errorf("%s is damaged: restore it from a backup, or choose another --data-dir", name)
	}
	if id.Format > folderFormat {
		return id, fmt.Errorf("data folder %s was written by a newer version of cloudless (format %d, this version knows %d): use the newer version", path, id.Format, folderFormat)
	}
	return id, nil
}
