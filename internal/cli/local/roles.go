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

// Roles are what package app implements. Up, Server, Agent and Join run until ctx ends and then stop in order, which is
// no error. The others return when they are done.
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
	// Down stops the process and the containers of a data folder; ErrNoCloud if there are none.
	Down func(ctx context.Context, o DownOptions) error
	// Install installs a systemd service and returns what to tell the user: what was done, or the unit for a dry run.
	Install func(ctx context.Context, o InstallOptions) (said string, err error)
	// Uninstall removes the service; fs.ErrNotExist if there is none.
	Uninstall func(ctx context.Context, o UninstallOptions) (said string, err error)
	// Doctor checks this machine.
	Doctor func(ctx context.Context, o DoctorOptions) ([]doctor.Finding, error)
}

// ErrNoCloud says that the data folder does not exist or was purged.
var ErrNoCloud = errors.New("there is no cloud in the folder")

// The limits of the election timeout, the same as in package consensus, which explains them.
const (
	MinElectionTimeout = 500 * time.Millisecond
	MaxElectionTimeout = 2500 * time.Millisecond
)

// Process is what all roles have in common.
type Process struct {
	// DataDir is an absolute path. If another process holds it, the role returns a [*datadir.AlreadyRunningError].
	DataDir string
	// Version of the program.
	Version string
	// Log receives the program's log, from LogLevel on.
	Log      io.Writer
	LogLevel slog.Level
	// LogFormat is the format of log lines, text if empty.
	LogFormat telemetry.LogFormat
	// OTLPEndpoint receives traces; if it is empty, nothing is traced.
	OTLPEndpoint string
	// Clock is the clock of a server; nil for the machine's.
	Clock func() time.Time
	// ElectionTimeout is how long a server waits for a sign of the leader, from MinElectionTimeout to
	// MaxElectionTimeout; 0 for the previous value, or else the shortest.
	ElectionTimeout time.Duration
	// MaxLogGrowth is how many bytes a server's log may grow before it is truncated; 0 for the default.
	MaxLogGrowth int64
	// CertificateTTL is the lifetime of certificates that a server issues; 0 for the default.
	CertificateTTL time.Duration
	// Attended says that a parent process waits until the role is ready. A role that cannot get ready by itself then
	// ends with the reason instead of retrying.
	Attended bool
	// Progress is called with what is being done, in a few words. It is never nil.
	Progress func(doing string)
	// Ready is called once the role can be used, with a message for the user: one or more lines, without a line break
	// at the end. It is never nil.
	Ready func(message string)
}

// Machine is what makes a machine a node.
type Machine struct {
	// Name wanted for the node; the host name if empty.
	Name   string
	Labels map[string]string
	// ContainerdAddress is the socket of an external containerd; if empty, the embedded one is used.
	ContainerdAddress string
}

// UpOptions are the options of a server and an agent in one process.
type UpOptions struct {
	Process
	Machine
	// Reach is that of the server, which has the same name as the node.
	Reach Reach
	// ConfigPath is the client configuration that receives a context with admin credentials.
	ConfigPath string
	// Context is the name wanted for that context; if empty, the role chooses one.
	Context string
}

// ServerOptions are the options of a server alone.
type ServerOptions struct {
	Process
	Reach
	ConfigPath string
	Context    string
}

// Reach is where a server listens and how others reach it.
type Reach struct {
	// APIAddr is where it listens, host:port. If it is empty, a server that joins listens on DefaultPort of the local
	// address that leads to the joined server. Others listen where they did before, or else at DefaultAPIAddr.
	APIAddr string
	// Advertise is where others reach it; if empty, it follows from APIAddr.
	Advertise string
	// Name of the server; the host name if empty.
	Name string
	// Peer is the present address of another server, for a server that knows only old addresses.
	Peer string
	// Zone of the server. Empty means no zone; nil keeps the current zone.
	Zone *string
	// Announce lets machines of the same network find it.
	Announce bool
}

// AgentOptions are the options of an agent alone.
type AgentOptions struct {
	Process
	Machine
}

// JoinOptions are the options of a machine that joins a cluster.
type JoinOptions struct {
	Process
	Machine
	// Address of a server, host:port; empty to discover one of the token's cluster on this network.
	Address string
	// Token is the join token. It must not be logged.
	Token string
	// Role is node or server.
	Role string
	// Reach is for a server.
	Reach Reach
	// NoNode says that a server is to run no replicas.
	NoNode bool
}

// RecoverOptions say which server is to continue alone.
type RecoverOptions struct {
	// DataDir is an absolute path.
	DataDir string
	// Log receives the log.
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
	// Purge also removes all data, and the context in ConfigPath.
	Purge      bool
	ConfigPath string
	// LogLevel is the lowest level that is written to the log in the data folder.
	LogLevel slog.Level
	// Progress is called with what is being done, in a few words. It is never nil.
	Progress func(doing string)
}
