package local

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// DefaultAPIAddr is the address on which a new server listens.
const DefaultAPIAddr = "127.0.0.1:" + DefaultPort

// DefaultPort is the port on which servers listen.
const DefaultPort = "7700"

// processFlags are the flags of every role.
type processFlags struct {
	dataDir, logLevel, logFormat, otlp string
	detach                             bool
	election                           time.Duration
}

func (f *processFlags) register(cmd *cobra.Command) {
	f.registerDataDir(cmd)
	cmd.Flags().StringVar(&f.logLevel, "log-level", "info", "lowest `level` to log: debug, info, warn or error")
	cmd.Flags().StringVar(&f.logFormat, "log-format", "text", "`format` of log lines: text or json")
	cmd.Flags().StringVar(&f.otlp, "otlp-endpoint", os.Getenv(telemetry.OTLPEndpointEnv), "`address` of an OpenTelemetry collector (OTLP, gRPC) for traces, such as http://127.0.0.1:4317 (default: $"+telemetry.OTLPEndpointEnv+")")
	cmd.Flags().BoolVarP(&f.detach, "detach", "d", false, "run in the background and return when ready; logs to cloudless.log in the data folder")
}

// registerElection adds the flags of roles that may run a server.
func (f *processFlags) registerElection(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.election, "election-timeout", 0, "silence of the leader before an election, 500ms to 2.5s; choose more for machines that stall (default: as before, else 500ms)")
}

func (f *processFlags) registerDataDir(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dataDir, "data-dir", defaultDataDir(), "`folder` for persistent data; $"+DataDirEnv+" sets another default")
}

// DataDirEnv names the environment variable that holds the data folder.
const DataDirEnv = "CLOUDLESS_DATA_DIR"

func defaultDataDir() string {
	if dir := os.Getenv(DataDirEnv); dir != "" {
		return dir
	}
	if os.Geteuid() == 0 {
		return "/var/lib/cloudless"
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "" // absoluteDataDir refuses it
	}
	return filepath.Join(home, ".local", "share", "cloudless")
}

func (f *processFlags) absoluteDataDir(cmd *cobra.Command) (string, error) {
	if f.dataDir == "" {
		return "", command.Usagef(cmd, "--data-dir is missing")
	}
	return filepath.Abs(f.dataDir)
}

// process checks the flags. Progress and Ready are set when the role runs.
func (f *processFlags) process(e *command.Env, cmd *cobra.Command) (Process, error) {
	dir, err := f.absoluteDataDir(cmd)
	if err != nil {
		return Process{}, err
	}
	level, err := parseLevel(f.logLevel)
	if err != nil {
		return Process{}, command.Usagef(cmd, "%w", err)
	}
	process := Process{DataDir: dir, Version: e.Version, Log: e.Stderr, LogLevel: level, OTLPEndpoint: f.otlp, ElectionTimeout: f.election}
	if f.logFormat != "" { // a command without the flag logs text
		if process.LogFormat, err = telemetry.ParseLogFormat(f.logFormat); err != nil {
			return Process{}, command.Usagef(cmd, "--log-format: %w", err)
		}
	}
	if f.election != 0 && (f.election < MinElectionTimeout || f.election > MaxElectionTimeout) {
		return Process{}, command.Usagef(cmd, "--election-timeout %s cannot be: use %s to %s", f.election, MinElectionTimeout, MaxElectionTimeout)
	}
	if f.otlp != "" {
		if err := telemetry.CheckEndpoint(f.otlp); err != nil {
			return Process{}, command.Usagef(cmd, "--otlp-endpoint: %w", err)
		}
	}
	return process, nil
}

func parseLevel(s string) (slog.Level, error) {
	switch s {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("log level %q is not known: use debug, info, warn or error", s)
}

// machineFlags are the flags of roles that make this machine a node.
type machineFlags struct {
	name, containerd string
	labels           []string
}

func (f *machineFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.name, "name", "", "`name` of the node (default: the host name)")
	cmd.Flags().StringArrayVarP(&f.labels, "label", "l", nil, "label `KEY=VALUE` of the node; may be repeated")
	f.registerContainerd(cmd)
}

func (f *machineFlags) registerContainerd(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.containerd, "containerd-address", "", "`socket` of an external containerd (default: the one used before, else the built-in one)")
}

func (f *machineFlags) machine(cmd *cobra.Command) (Machine, error) {
	labels, err := command.ParsePairs("label", f.labels, nil)
	if err != nil {
		return Machine{}, command.Usagef(cmd, "%w", err)
	}
	return Machine{Name: f.name, Labels: labels, ContainerdAddress: f.containerd}, nil
}

// reachFlags are the flags of roles that make this machine a server.
type reachFlags struct {
	Reach
	zone string
}

// register adds the flags. About says, for the help, where the server listens by default.
func (f *reachFlags) register(cmd *cobra.Command, about string) {
	cmd.Flags().StringVar(&f.APIAddr, "api-addr", "", "`address` where the API of a server listens"+about)
	cmd.Flags().StringVar(&f.Advertise, "advertise", "", "`address` at which others reach this server (default: that of --api-addr)")
	cmd.Flags().StringVar(&f.zone, "zone", "", "`zone` of this server, \"\" for none; voters are spread over zones (default: as before)")
	registerAnnounce(cmd, &f.Announce)
}

func (f *reachFlags) registerPeer(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.Peer, "peer", "", "`address` of another running server, if all of them have moved since this one ran")
}

func registerAnnounce(cmd *cobra.Command, announce *bool) {
	cmd.Flags().BoolVar(announce, "announce", true, "answer cloudless join --discover by mDNS; never on 127.0.0.1")
}

// reach checks the flags.
func (f *reachFlags) reach(cmd *cobra.Command) (Reach, error) {
	said := f.Reach
	if cmd.Flags().Changed("zone") {
		said.Zone = &f.zone
	}
	if cmd.Flags().Changed("api-addr") {
		if err := command.CheckAddress(cmd, "--api-addr", f.APIAddr); err != nil {
			return said, err
		}
	}
	for _, one := range []struct{ flag, address string }{{"--advertise", f.Advertise}, {"--peer", f.Peer}} {
		if one.address == "" {
			continue
		}
		if err := command.CheckAddress(cmd, one.flag, one.address); err != nil {
			return said, err
		}
	}
	return said, nil
}

// listenedBefore is the help about the default address.
const listenedBefore = " (default: where it did before, else " + DefaultAPIAddr + ")"
