// Package driver is the contract between the agent and whatever really runs a
// replica: containers today, microVMs and WebAssembly later.
//
// A driver runs tasks. A task is one attempt at running a replica on this
// machine: it is started once, exits once and is removed once. Restart policy,
// assignments and everything else that spans attempts belong to the agent; a
// driver knows nothing of workloads, servers or the cluster.
//
// What a driver guarantees:
//   - Tasks outlive the process that started them. After a crash of the agent,
//     List names every task that still exists and Wait attaches to it again.
//   - Every verb may be repeated: starting what was started, stopping what has
//     stopped and removing what is gone are not errors.
//   - Verbs may be called at the same time, also for the same task.
//   - Remove leaves nothing behind: no process, mount, namespace, cgroup,
//     socket or file, whatever state the task was in.
//   - Output of a task goes to Task.LogDir in the format of package logfile,
//     except where an ability is missing and Capabilities says so.
//
// Package drivertest holds the conformance suite that every driver passes.
package driver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"time"
)

// Errors that an agent treats differently. Drivers wrap them with the operation and its
// object.
var (
	// ErrNotFound means that the driver has no task with that id.
	ErrNotFound = errors.New("no such task")
	// ErrImage means that the image is not available: it does not exist, may not be pulled
	// or is for another architecture. An immediate retry will not help.
	ErrImage = errors.New("image not available")
	// ErrInvalid means that the task can never start as specified, for example because its
	// command does not exist in the image.
	ErrInvalid = errors.New("task cannot run")
	// ErrNotRunning means that the verb needs a running task.
	ErrNotRunning = errors.New("task is not running")
)

// Driver runs tasks with one technology on this machine.
type Driver interface {
	// Name is the name by which a workload's spec asks for this driver.
	Name() string

	// Capabilities says what this driver can and cannot do on this machine.
	Capabilities() Capabilities

	// Prepare fetches and unpacks what the task needs, so that Start is quick.
	Prepare(ctx context.Context, task Task) error

	// Start prepares and runs the task. When it fails, nothing of the task is left. It does
	// not touch a task that was started before, whether it still runs or not. It returns
	// the task's current status.
	Start(ctx context.Context, task Task) (Status, error)

	// Wait blocks until the task has exited and all its output is on disk. It may be called
	// any number of times, also after a crash of the caller and after the exit. An error
	// means that the exit could not be observed, never that the task failed. ErrNotRunning
	// means that there is no exit: the task was created and not started, or a removal was
	// interrupted.
	Wait(ctx context.Context, id string) (Exit, error)

	// Stop asks the task to end with signal, or with the image's own if it is empty, and
	// kills it after grace. It returns when the task has exited.
	Stop(ctx context.Context, id string, signal string, grace time.Duration) error

	// Remove removes every trace of the task, killing it first if it runs.
	Remove(ctx context.Context, id string) error

	// List returns every task that this driver has on this machine.
	List(ctx context.Context) ([]Status, error)
}

// Execer is a driver that can run further processes inside a running task.
type Execer interface {
	Exec(ctx context.Context, id string, exec Exec) (Process, error)
}

// Signaler is a driver that can send a signal to the first process of a task.
type Signaler interface {
	// Signal sends a signal by name, for example "SIGHUP".
	Signal(ctx context.Context, id string, signal string) error
}

// Rooter is a driver whose tasks have files that are accessible from outside.
type Rooter interface {
	// Root opens the root folder of a running task as its processes see it, mounts
	// included. Its content is untrusted: lookups must not follow links out of it.
	Root(ctx context.Context, id string) (Root, error)
}

// Root is the root folder of a task.
type Root struct {
	// Dir cannot be read itself, only used for lookups. The caller closes it.
	Dir *os.File
	// UID and GID are those of the task's first process, as the machine numbers them.
	UID, GID int
	// Hidden are the folders of the task in which Dir has not what the task sees.
	Hidden []string
}

// Dialer is a driver that can connect from inside a running task's network.
type Dialer interface {
	// Dial connects to an address as a process of the task would: 127.0.0.1 is the task's own. The network is "tcp" or
	// "udp". The connection may outlive the task.
	Dial(ctx context.Context, id, network string, address netip.AddrPort) (net.Conn, error)
}

// Checker is a driver that can say whether it works at all.
type Checker interface {
	// Check returns why no task can be started now. It must be cheap.
	Check(ctx context.Context) error
}

// Meter is a driver that measures what a task uses.
type Meter interface {
	Stats(ctx context.Context, id string) (Stats, error)
}

// Pooler is a driver whose tasks share a limit of memory.
type Pooler interface {
	// Pool returns what all tasks together may use and do use. Its limit is 0 if there is none.
	Pool() (Pool, error)
	// LimitPool sets what all tasks together may use, in bytes.
	LimitPool(bytes int64) error
}

// Pool is the memory that the tasks of a driver share, in bytes.
type Pool struct {
	Limit, Used int64
	// Stalled is the share of the last ten seconds in which no process of a task could go on for lack of memory, in
	// percent. It is 0 where the kernel does not tell.
	Stalled float64
}

// ImageStore is a driver that keeps images on this machine.
type ImageStore interface {
	// Images lists the images that are here.
	Images(ctx context.Context) ([]StoredImage, error)
	// RemoveImage removes an image, unless a task uses it.
	RemoveImage(ctx context.Context, ref string) error
}

// StoredImage is an image on this machine.
type StoredImage struct {
	Ref     string
	Bytes   int64 // with its unpacked layers, also those that it shares
	InUse   bool
	LastUse time.Time
}

// Weigher is a driver that measures what tasks write to their own layers.
type Weigher interface {
	// DiskUsage is what the task has written to its own layer, in bytes. It may take long if there are many files.
	DiskUsage(ctx context.Context, id string) (int64, error)
}

// Progresser is a driver that can report the progress of fetching an image while Prepare or
// Start is running.
type Progresser interface {
	// Progress returns false if the image is not being fetched now.
	Progress(ctx context.Context, image string) (Progress, bool)
}

// Progress is how far something has come.
type Progress struct {
	Done  int64 // bytes
	Total int64 // bytes, 0 if unknown
}

// Capabilities is what the agent reports to users.
type Capabilities struct {
	// Version names the technology and its version, for example "containerd 2.4.2".
	Version string
	// Missing has one sentence for each thing that this driver cannot do here.
	Missing []string
	// Sandboxes are those that tasks can run in.
	Sandboxes []string
	// UserNamespaces is whether tasks can run in user namespaces.
	UserNamespaces bool
}

// Task describes one attempt at running a replica.
type Task struct {
	ID     string            // unique on this machine, made of [a-z0-9-], at most 76 characters
	Labels map[string]string // handed back by List, for the owner's own use

	Image string // full reference, pinned by digest if known
	// MaxUnpacked is how large the image may be once it is unpacked, in bytes; 0 for no limit.
	MaxUnpacked int64
	Login       *Login            // for the image's registry, nil for none; never stored
	Command     []string          // replaces the image's entrypoint and command if not empty
	Args        []string          // replaces the image's command if not empty
	Env         map[string]string // added to the image's environment
	WorkingDir  string            // the image's own if empty
	User        string            // name or uid[:gid]; the image's own if empty
	Hostname    string

	ReadOnlyRoot bool
	Security     Security
	// Sandbox is the kernel that the task runs on, if it is not that of the machine: "gvisor".
	Sandbox string
	Network Network
	// NetworkNamespace is the path of the namespace for NetworkNode. Its owner creates it
	// before the start and removes it after the removal.
	NetworkNamespace string
	// Files of this machine, by the path at which the task sees them, read-only.
	Files map[string]string
	// Folders of this machine, by the path at which the task sees them, read-only. Their owner may change what is in them
	// while the task runs.
	Folders map[string]string
	// Devices are device files of this machine that the task may read and write, at the
	// same paths.
	Devices   []string
	Resources Resources

	LogDir string
	Logs   LogLimits

	// Lease is a file with the time by CLOCK_BOOTTIME, in nanoseconds, until which the task may run. Its owner may
	// renew it. The driver kills the task afterwards, even if the owner is dead. Empty means that it may run forever.
	Lease string

	// SecretEnv is a file of this machine with variables for every process of the task, which replace those of Env: a JSON
	// object. The file is on a file system in memory and belongs to the owner of the task, who keeps it while the task
	// exists. The driver writes its content to no disk, log or error. Empty means none.
	SecretEnv string
	// Owner is called once the user of the task's first process is known, before it starts. If it fails, Start does. It
	// may be nil.
	Owner func(User) error `json:"-"`
}

// User is the user of a task's first process, as the task sees it.
type User struct {
	UID, GID int
	// Shift is added to ids of the task to get those of the machine; 0 without a user namespace.
	Shift int
}

// Security is what a task may do on its machine. The zero value is the default profile.
type Security struct {
	Profile Profile
	// AddCapabilities and DropCapabilities change those of the profile. They have no prefix; ALL stands for all of them.
	AddCapabilities, DropCapabilities []string
	// Seccomp is "default", "unconfined" or a filter of system calls as JSON, in the format of OCI runtimes. If it is
	// empty, the profile decides.
	Seccomp string
	// AppArmor is "default", "unconfined" or a profile that is loaded on the machine. If it is empty, the profile decides.
	// Machines without AppArmor ignore it.
	AppArmor string
	// NewPrivileges is whether processes may get more rights than the first one has. If it is nil, the profile decides.
	NewPrivileges *bool
	// UserNamespace is whether users of the task are nobody on the machine. If it is nil, the driver decides.
	UserNamespace *bool
}

// Profile is what a task may do at most, unless more is added.
type Profile string

// The profiles.
const (
	Restricted Profile = "restricted" // no root, no capabilities, a read-only root folder
	Default    Profile = ""           // a few capabilities
	Privileged Profile = "privileged" // everything, including all devices
)

// Login is the credentials for a registry. It does not reveal them when it is printed,
// logged or encoded.
type Login struct{ Username, Password string }

const hidden = "[login]"

// String hides the login.
func (Login) String() string { return hidden }

// GoString hides the login.
func (Login) GoString() string { return hidden }

// MarshalText hides the login, from encoders and loggers.
func (Login) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Network says which network the task sees.
type Network string

// The networks a task can have.
const (
	NetworkNode Network = "node" // the namespace at NetworkNamespace
	NetworkHost Network = "host" // the machine's own
	NetworkNone Network = "none" // a namespace of its own with loopback only
)

// Resources are the task's guarantees and limits. Zero means no guarantee, or no limit.
type Resources struct {
	CPURequest  int64 // thousandths of a CPU; becomes the weight under contention
	CPULimit    int64 // thousandths of a CPU
	MemoryLimit int64 // bytes; without one, the limit of all tasks together counts, if there is one
	PIDLimit    int64
	OOMScore    int // 0 to 1000: the higher, the sooner the kernel kills the task when the machine runs out of memory
}

// LogLimits bounds what a task's log may take on disk.
type LogLimits struct {
	MaxFileBytes int64
	MaxFiles     int
	MaxAge       time.Duration
}

// State is where a task stands.
type State string

// A task moves forward through these states and never back.
const (
	StateCreated State = "created" // exists but does not run, because of a crash
	StateRunning State = "running"
	StateExited  State = "exited"
)

// Status is one task as the driver sees it.
type Status struct {
	ID        string
	Labels    map[string]string
	State     State
	PID       int // of the task's first process, 0 when there is none
	StartedAt time.Time
	Exit      *Exit // set once State is exited and the status is known
}

// Exit is how a task ended.
type Exit struct {
	Code      int // 128+n when killed by signal n
	OOMKilled bool
	// ChildOOMKilled is set when the task failed after another of its processes was
	// OOM-killed.
	ChildOOMKilled bool
	At             time.Time
	// Reason is set when the code alone would mislead, for example when the
	// task's supervisor was killed.
	Reason string
}

// Exec describes a further process inside a task.
type Exec struct {
	Command    []string
	Env        map[string]string
	WorkingDir string
	User       string
	Terminal   bool
	Width      uint16 // of the terminal, 0 for the default
	Height     uint16

	Stdin  io.Reader // nil for none; read until its end, even after the process has ended
	Stdout io.Writer // nil discards
	Stderr io.Writer // unused with a terminal
}

// Process is a process started by Exec.
type Process interface {
	// Wait returns the exit code once the process has ended and its output has
	// been written. Cancelling ctx kills the process with its children.
	Wait(ctx context.Context) (int, error)
	Resize(ctx context.Context, width, height uint16) error
	// Signal sends a signal by name, for example "SIGTERM".
	Signal(ctx context.Context, signal string) error
}

// Stats is what a task has used since its start, and uses now.
type Stats struct {
	At               time.Time
	CPUNanos         uint64 // total
	ThrottledNanos   uint64 // total
	ThrottledPeriods uint64
	MemoryBytes      uint64 // working set
	MemoryLimit      uint64 // 0 when there is none
	OOMKills         uint64
	PIDs             uint64
	BlockReadBytes   uint64
	BlockWriteBytes  uint64
}
