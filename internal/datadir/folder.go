package datadir

import (
	"bytes"
	"cmp"
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
	"github.com/cloudless/cloudless/internal/lockfile"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/state"
)

// format is raised when an older version could no longer read the folder.
const format = 1

// Folder is a data folder.
type Folder struct {
	// FormerNode is the node that the machine was before this process made it another one.
	FormerNode string

	path string
	lock *lockfile.Lock
	// machineLock is held while something of this cloud may run on this machine.
	machineLock *lockfile.Lock
	// isNew says that this process has made it a cloud's folder.
	isNew bool
	// preexisting are the names that were in the folder before that.
	preexisting []string

	mu sync.Mutex // guards what follows while parts start side by side
	Record
	holder Holder
}

var validID = regexp.MustCompile(`^[a-z0-9]{8}$`)

// ValidID reports whether a name can be the id of a cloud on this machine.
func ValidID(name string) bool { return validID.MatchString(name) }

// Record is what the folder says about itself, in cloud.json.
type Record struct {
	Format int `json:"format"`
	// ID names the cloud on this machine: in /run, in cgroups, in containerd.
	ID        string `json:"id"`
	ServerUID string `json:"serverUID"`
	// Cluster is the id of the cluster, once there is one.
	Cluster string `json:"cluster,omitempty"`
	// Joined are the addresses, separated by commas, of the servers that let this server join; empty for the server
	// that founded its cluster.
	Joined string `json:"joined,omitempty"`
	// Recovered is set when this folder's server was made the only one of its cluster, until it has removed the others
	// from the state.
	Recovered bool `json:"recovered,omitempty"`
	// Machine is the mark of the machine that last used the folder.
	Machine string `json:"machine,omitempty"`
	// Listen and Advertise are the last addresses of the server; Advertise is empty if it was not given.
	Listen    string `json:"listen,omitempty"`
	Advertise string `json:"advertise,omitempty"`
	// Zone and ElectionTimeout are the server's last settings.
	Zone            string        `json:"zone,omitempty"`
	ElectionTimeout time.Duration `json:"electionTimeout,omitempty"`
	// ContainerdAddress is the external containerd that was used last.
	ContainerdAddress string `json:"containerdAddress,omitempty"`
}

// At is a folder to look at without holding it. Nothing is read.
func At(path string) *Folder { return &Folder{path: path} }

// View reads a folder without holding it; fs.ErrNotExist if there is none.
func View(path string) (*Folder, error) {
	record, err := ReadRecord(path)
	if err != nil {
		return nil, err
	}
	return &Folder{path: path, Record: record}, nil
}

// Path is the folder's path, or that of something in it.
func (f *Folder) Path(parts ...string) string {
	return filepath.Join(append([]string{f.path}, parts...)...)
}

// RunDir is where the sockets and locks of this cloud are.
func (f *Folder) RunDir() string { return RunDir(f.ID) }

// RunDir is where the sockets and locks of a cloud are. It is short, because paths of sockets must be.
func RunDir(id string) string { return filepath.Join("/run/cloudless", id) }

// SecretsDir is where the secrets of this cloud's replicas are, in memory.
func (f *Folder) SecretsDir() string { return filepath.Join(f.RunDir(), "secrets") }

// HasServer reports whether a server has stored something in the folder.
func (f *Folder) HasServer() bool {
	_, err := os.Stat(f.Path("server", "raft"))
	return err == nil
}

// Founds reports whether this folder's server founds a cluster if there is none yet. A server that has joined one
// never does.
func (f *Folder) Founds() bool { return f.Joined == "" }

// Endpoint is where a server listens, and where others reach it; Advertise is empty if that follows from Listen.
type Endpoint struct{ Listen, Advertise string }

// ListenAgain completes an endpoint with the last one of the folder's server, because the others look for it there.
func (f *Folder) ListenAgain(e Endpoint) Endpoint {
	if e.Listen == "" {
		e.Listen, e.Advertise = f.Listen, cmp.Or(e.Advertise, f.Advertise)
	}
	return e
}

// AuthorityPath is where a server keeps the cluster's certificate authority.
func (f *Folder) AuthorityPath() string { return f.Path("server", "authority") }

// KeyPath is where a server keeps the key that seals the cluster's secrets.
func (f *Folder) KeyPath() string { return f.Path("server", "kek.json") }

// JoiningServerPath is the key of a server that is joining.
func (f *Folder) JoiningServerPath() string { return f.Path("server", "joining.pem") }

// ReachedPath is where a server keeps how far its log had come. It is beside the log, so that it survives the log.
func (f *Folder) ReachedPath() string { return f.Path("server", "reached") }

// NamesPath is where a server keeps the names of objects, and NamesReachedPath how far their log had come.
func (f *Folder) NamesPath() string        { return f.Path("server", "names") }
func (f *Folder) NamesReachedPath() string { return f.Path("server", "names-reached") }

// Open takes the folder for this process and creates it if it does not exist.
func Open(path string) (*Folder, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make data folder: %w", err)
	}
	if err := CheckPrivate(path); err != nil {
		return nil, err
	}
	f, err := hold(path)
	if err != nil {
		return nil, err
	}
	if err := f.identify(); err != nil {
		f.Release()
		return nil, err
	}
	return f, nil
}

// retryPause is the pause between two looks at a process that is starting or ending.
const retryPause = 20 * time.Millisecond

// OpenWaiting opens the folder. It waits for another process that is starting or stopping: that process then runs on
// the folder or has left it.
func OpenWaiting(ctx context.Context, path string, progress func(string)) (*Folder, error) {
	for {
		f, err := Open(path)
		held, ok := errors.AsType[*AlreadyRunningError](err)
		if !ok || !held.Moving {
			return f, err
		}
		progress(fmt.Sprintf("waiting for process %d, which is starting or stopping", held.PID))
		if err := sleep.For(ctx, retryPause); err != nil {
			return nil, err
		}
	}
}

// CheckPrivate refuses a folder in which another user could lay traps for us.
func CheckPrivate(path string) error {
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

// OpenExisting takes a folder that must exist; fs.ErrNotExist if not.
func OpenExisting(path string) (*Folder, error) {
	// Read before the folder is held, because holding it leaves a file, ...
	if _, err := ReadRecord(path); err != nil {
		return nil, err
	}
	f, err := hold(path)
	if err != nil {
		return nil, err
	}
	// ... and after, because the previous holder may have changed it until then.
	if f.Record, err = ReadRecord(path); err != nil {
		f.Release()
		return nil, err
	}
	return f, nil
}

func lockPath(path string) string { return filepath.Join(path, "lock") }

// endPatience is how long a process that is ending may keep its folder.
const endPatience = 10 * time.Second

func hold(path string) (*Folder, error) {
	lock, err := lockfile.Hold(lockPath(path))
	for deadline := time.Now().Add(endPatience); errors.Is(err, lockfile.ErrHeld); lock, err = lockfile.Hold(lockPath(path)) {
		holder := ReadHolder(path)
		if !isEnding(holder.PID) || time.Now().After(deadline) {
			return nil, holder.runs(path)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return nil, fmt.Errorf("open data folder: %w", err)
	}
	f := &Folder{path: path, lock: lock}
	if err := f.UpdateHolder(func(h *Holder) { *h = Holder{PID: os.Getpid(), Moving: true} }); err != nil {
		f.Release()
		return nil, err
	}
	return f, nil
}

// isEnding reports whether a process has ended or is about to. A killed process has its files open until the kernel
// closes them, but it no longer uses them.
func isEnding(pid int) bool {
	if pid <= 0 {
		return false // it has not written its description yet
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

// Release lets other processes have the folder.
func (f *Folder) Release() {
	_ = f.lock.Close()
	if f.machineLock != nil {
		_ = f.machineLock.Close()
	}
}

func (f *Folder) identify() error {
	record, err := ReadRecord(f.path)
	if err == nil {
		f.Record = record
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f.isNew = true
	entries, err := os.ReadDir(f.path)
	if err != nil {
		return fmt.Errorf("look at data folder: %w", err)
	}
	for _, entry := range entries {
		if entry.Name() != filepath.Base(lockPath(f.path)) {
			f.preexisting = append(f.preexisting, entry.Name())
		}
	}
	f.Record = Record{
		Format:    format,
		ID:        strings.ToLower(rand.Text()[:8]),
		ServerUID: state.NewUID(),
	}
	return f.Update(func(*Record) {})
}

// New reports whether this process has made it a cloud's folder, and nothing has been achieved with it yet.
func (f *Folder) New() bool { return f.isNew }

// Preexisting are the names that were in a new folder before.
func (f *Folder) Preexisting() []string { return f.preexisting }

// Keep says that a new folder is in use now: RemoveIfNew no longer removes it.
func (f *Folder) Keep() { f.isNew = false }

// RemoveIfNew restores the folder to what it was before this process made it a cloud's.
func (f *Folder) RemoveIfNew() {
	if !f.isNew {
		return
	}
	for _, name := range []string{"agent", "server/kek.json", "server/authority", "server", "cloud.json", "lock"} {
		_ = os.Remove(f.Path(name)) // a folder with something in it stays
	}
	_ = os.Remove(f.path)
}

// TryPort refuses an address on which nothing can listen before anything is stored in a new folder: leftovers would
// be in the way of another attempt.
func (f *Folder) TryPort(ctx context.Context, address string) error {
	if !f.isNew {
		return nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err == nil {
		return l.Close()
	}
	f.RemoveIfNew()
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("address %s is used by another process: stop that one, or listen on another with --api-addr", address)
	}
	return fmt.Errorf("listen on %s: %w", address, err)
}

// Update changes what the folder says about itself.
func (f *Folder) Update(change func(*Record)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.Record
	change(&f.Record)
	if _, err := os.Stat(f.Path("cloud.json")); err == nil && f.Record == before {
		return nil
	}
	data, err := json.MarshalIndent(f.Record, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Replace(f.Path("cloud.json"), data)
}

// ReadRecord reads what a folder says about itself; fs.ErrNotExist if it is no data folder.
func ReadRecord(path string) (Record, error) {
	var record Record
	name := filepath.Join(path, "cloud.json")
	data, err := os.ReadFile(name)
	if err != nil {
		return record, fmt.Errorf("read data folder: %w", err)
	}
	if err := json.Unmarshal(data, &record); err != nil || !ValidID(record.ID) {
		return record, fmt.Errorf("%s is damaged: restore it from a backup, or choose another --data-dir", name)
	}
	if record.Format > format {
		return record, fmt.Errorf("data folder %s was written by a newer version of cloudless (format %d, this version knows %d): use the newer version", path, record.Format, format)
	}
	return record, nil
}
