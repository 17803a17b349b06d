package containerd

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"regexp"
)

// Options says where a driver keeps its data and which daemon it uses.
type Options struct {
	// ID distinguishes the clouds on one machine: it names the containerd namespace and the
	// parent of all cgroups. Made of [a-z0-9-].
	ID string

	// DataDir holds what must last: images, root filesystems and the shim.
	DataDir string

	// RunDir holds what may be lost in a reboot: sockets and the state of running tasks. It
	// must be on a tmpfs such as /run and be short, because it becomes part of socket
	// names.
	RunDir string

	// Address is the socket of an outside containerd. If it is empty, the driver runs
	// containerd inside this process.
	Address string

	// MemoryLimit is what all tasks together may use, in bytes, so that the rest of the machine can go on. Zero means no
	// limit.
	MemoryLimit int64

	// Registries are the clients for registries with their own certificates or their own
	// way of dialling. The key is the host of the image's reference. All of them use HTTPS.
	Registries map[string]*http.Client

	Log *slog.Logger
}

// maxSocketDir is containerd's limit for the folder of the shims' sockets.
const maxSocketDir = 42

var validID = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

func (o Options) validate() error {
	switch {
	case !validID.MatchString(o.ID):
		return fmt.Errorf("id %q: want 1 to 40 lower-case letters, digits and inner dashes", o.ID)
	case !filepath.IsAbs(o.DataDir):
		return fmt.Errorf("data folder %q: want an absolute path", o.DataDir)
	case !filepath.IsAbs(o.RunDir):
		return fmt.Errorf("run folder %q: want an absolute path", o.RunDir)
	case len(o.socketDir()) > maxSocketDir:
		return fmt.Errorf("run folder %q: longer than %d characters, which leaves no room for the names of sockets; choose a shorter one",
			o.RunDir, maxSocketDir-len("/s"))
	case o.Log == nil:
		return errors.New("no logger given")
	}
	return nil
}

func (o Options) embedded() bool { return o.Address == "" }

// namespace is the driver's own in containerd, so that clouds can share an outside daemon
// without seeing each other.
func (o Options) namespace() string { return "cloudless-" + o.ID }

// cgroupParent holds the cgroups of all tasks.
func (o Options) cgroupParent() string { return "/cloudless-" + o.ID }

func (o Options) rootDir() string   { return filepath.Join(o.DataDir, "containerd") }
func (o Options) shimDir() string   { return filepath.Join(o.DataDir, "shim") }
func (o Options) stateDir() string  { return filepath.Join(o.RunDir, "containerd") }
func (o Options) socketDir() string { return filepath.Join(o.RunDir, "s") }
func (o Options) runcDir() string   { return filepath.Join(o.RunDir, "runc") }
func (o Options) recordDir() string { return filepath.Join(o.RunDir, "tasks") }
func (o Options) fifoDir() string   { return filepath.Join(o.RunDir, "fifo") }

// runcOf is the program in place of runc for a task in a user namespace. The run folder may forbid to run programs.
func (o Options) runcOf(task string) string { return filepath.Join(o.shimDir(), "runc-"+task) }

// sysDir shows the network of a task in a user namespace.
func (o Options) sysDir(task string) string { return filepath.Join(o.sysDirs(), task) }
func (o Options) sysDirs() string           { return filepath.Join(o.RunDir, "sys") }

// pipeDir holds the pipes of the processes that Exec has started in a task.
func (o Options) pipeDir(task string) string { return filepath.Join(o.fifoDir(), task) }

func (o Options) address() string {
	if !o.embedded() {
		return o.Address
	}
	return filepath.Join(o.stateDir(), "grpc.sock")
}

func (o Options) ttrpcAddress() string { return filepath.Join(o.stateDir(), "ttrpc.sock") }
