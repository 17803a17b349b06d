package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/cloudless/cloudless/internal/doctor"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Roles are what a machine can be in a cluster. Each runs until ctx ends and then stops in order, which is no
// error; Down returns when it has done its work.
type Roles struct {
	// Up runs a server and an agent in one process.
	Up func(ctx context.Context, o UpOptions) error
	// Server runs a server alone.
	Server func(ctx context.Context, o ServerOptions) error
	// Agent runs the agent of a machine that has joined before.
	Agent func(ctx context.Context, o AgentOptions) error
	// Join enrolls the machine and then runs its agent, its server, or both.
	Join func(ctx context.Context, o JoinOptions) error
	// Recover makes a server the only one of its cluster.
	Recover func(ctx context.Context, o RecoverOptions) (LogEnd, error)
	// Down stops what runs on a data folder, its containers included; ErrNoCloud if it is not one.
	Down func(ctx context.Context, o DownOptions) error
	// Install makes a service of systemd and returns what to tell the person at the terminal: what was done, or the
	// unit if nothing was to be done.
	Install func(ctx context.Context, o InstallOptions) (said string, err error)
	// Uninstall takes the service away; fs.ErrNotExist if there is none.
	Uninstall func(ctx context.Context, o UninstallOptions) (said string, err error)
	// Doctor looks at this machine.
	Doctor func(ctx context.Context, o DoctorOptions) ([]doctor.Finding, error)
}

// ErrNoCloud is for a folder in which there never was a cloud, or is none any more.
var ErrNoCloud = errors.New("there is no cloud in the folder")

// What the election timeout may be: the same as for package consensus, which says why.
const (
	MinElectionTimeout = 500 * time.Millisecond
	MaxElectionTimeout = 2500 * time.Millisecond
)

// Process is what all roles have in common.
type Process struct {
	// DataDir is an absolute path. Who holds it already makes a role return an [*AlreadyRunningError].
	DataDir string
	// Version of the program.
	Version string
	// Log receives the program's log, from LogLevel on.
	Log      io.Writer
	LogLevel slog.Level
	// LogFormat is the form of its lines, text if empty.
	LogFormat telemetry.LogFormat
	// OTLPEndpoint is where traces go; nothing is traced if it is empty.
	OTLPEndpoint string
	// Clock is what a server takes for the time; nil stands for the machine's.
	Clock func() time.Time
	// ElectionTimeout is how long a server waits for the one that leads, from MinElectionTimeout to MaxElectionTimeout;
	// 0 stands for what it was before, or else the shortest.
	ElectionTimeout time.Duration
	// MaxLogGrowth is by how many bytes a server's log may grow before it is shortened; 0 stands for the usual size.
	MaxLogGrowth int64
	// CertificateTTL is how long the certificates that a server issues hold; 0 stands for the usual time.
	CertificateTTL time.Duration
	// Attended is whether somebody waits until the role is ready. What cannot get ready by itself then ends and says
	// why, rather than to go on trying.
	Attended bool
	// Progress may be told, in a few words, what is being done. It is never nil.
	Progress func(doing string)
	// Ready is to be called once the role can be used, with what the person at the terminal should now know: one or
	// more lines, without a line break at the end. It is never nil.
	Ready func(message string)
}

// Machine is what makes a machine a node.
type Machine struct {
	// Name that is wished for the node; the host name if empty.
	Name   string
	Labels map[string]string
	// ContainerdAddress is the socket of a containerd that runs already; the embedded one is used if empty.
	ContainerdAddress string
}

// UpOptions are those of a server and an agent in one process.
type UpOptions struct {
	Process
	Machine
	// Reach is of the server, which is called as the node is.
	Reach Reach
	// ConfigPath is the client configuration that receives a context with admin credentials.
	ConfigPath string
	// Context is the name wished for that context; the role chooses one if it is empty.
	Context string
}

// ServerOptions are those of a server alone.
type ServerOptions struct {
	Process
	Reach
	ConfigPath string
	Context    string
}

// Reach is where a server is and is reached.
type Reach struct {
	// APIAddr is where it listens, host:port. If it is empty, a server that joins listens on DefaultPort of the local
	// address that leads to the joined server, and any other where it did before, or else at DefaultAPIAddr.
	APIAddr string
	// Advertise is where others reach it; chosen by APIAddr if empty.
	Advertise string
	// Name of the server; the host name if empty.
	Name string
	// Peer is where another server is now, for one that would look for all of them where they are no more.
	Peer string
	// Zone of the server, empty for none; nil stands for the one that it had before.
	Zone *string
	// Announce is whether machines of the same network may find it.
	Announce bool
}

// AgentOptions are those of an agent alone.
type AgentOptions struct {
	Process
	Machine
}

// JoinOptions are those of a machine that is to become a node.
type JoinOptions struct {
	Process
	Machine
	// Address of a server, host:port; empty if one of the token's cluster is to be found on this network.
	Address string
	// Token is the join token. It must not be logged.
	Token string
	// Role is node or server.
	Role string
	// Reach is of a server.
	Reach Reach
	// NoNode is whether a server is to run no replicas.
	NoNode bool
}

// RecoverOptions say which server is to go on alone.
type RecoverOptions struct {
	// DataDir is an absolute path.
	DataDir string
	// Log receives what is worth knowing.
	Log io.Writer
}

// LogEnd is the newest entry of a server's log.
type LogEnd struct{ Term, Index uint64 }

func (e LogEnd) String() string {
	if e.Index == 0 {
		return "-"
	}
	return fmt.Sprintf("term %d, entry %d", e.Term, e.Index)
}

// DownOptions say what to stop.
type DownOptions struct {
	// DataDir is an absolute path.
	DataDir string
	// Purge removes everything that was kept too, the context in ConfigPath included.
	Purge      bool
	ConfigPath string
	// LogLevel is the least level that is written to the log in the data folder.
	LogLevel slog.Level
	// Progress may be told, in a few words, what is being done. It is never nil.
	Progress func(doing string)
}

// AlreadyRunningError says that a process holds the data folder.
type AlreadyRunningError struct {
	DataDir string `json:"dataDir"`
	PID     int    `json:"pid"`
	// Address of its API; empty if it has none or is not known.
	Address string `json:"address"`
	// Server and Node are whether it runs a server and a node; both are false if that is not known.
	Server bool `json:"server,omitempty"`
	Node   bool `json:"node,omitempty"`
	// Moving is whether it has not come up yet, or is about to end.
	Moving bool `json:"moving,omitempty"`
	// NodeRemoved is whether it is a server whose node was removed from the cluster.
	NodeRemoved bool `json:"nodeRemoved,omitempty"`
}

func (e *AlreadyRunningError) Error() string {
	return e.sentence() + ": stop it with: cloudless down --data-dir " + e.DataDir
}

func (e *AlreadyRunningError) sentence() string {
	at := ""
	if e.Address != "" {
		at = " at " + e.Address
	}
	return fmt.Sprintf("cloudless runs on %s already%s (process %d)", e.DataDir, at, e.PID)
}
