package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// DefaultAPIAddr is where a server listens that was never told where.
const DefaultAPIAddr = "127.0.0.1:" + DefaultPort

// DefaultPort is where servers listen unless told otherwise.
const DefaultPort = "7700"

// processFlags are those of every role.
type processFlags struct {
	dataDir, logLevel, logFormat, otlp string
	detach                             bool
	election                           time.Duration
}

func (f *processFlags) register(cmd *cobra.Command) {
	f.registerDataDir(cmd)
	cmd.Flags().StringVar(&f.logLevel, "log-level", "info", "least `level` that is logged: debug, info, warn or error")
	cmd.Flags().StringVar(&f.logFormat, "log-format", "text", "`form` of log lines: text or json")
	cmd.Flags().StringVar(&f.otlp, "otlp-endpoint", os.Getenv(telemetry.OTLPEndpointEnv), "`address` of an OpenTelemetry collector (OTLP, gRPC) that receives traces, such as http://127.0.0.1:4317 (default: $"+telemetry.OTLPEndpointEnv+")")
	cmd.Flags().BoolVarP(&f.detach, "detach", "d", false, "return when it is ready, and let it run on; its log is cloudless.log in the data folder")
}

// registerElection is for those that may run a server.
func (f *processFlags) registerElection(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.election, "election-timeout", 0, "how long a server hears nothing from the one that leads before another is elected, 500ms to 2.5s: longer on machines that stand still now and then (default: as before, else 500ms)")
}

func (f *processFlags) registerDataDir(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dataDir, "data-dir", defaultDataDir(), "`folder` of everything that must last; $"+DataDirEnv+" sets another default")
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
		return "" // asked for when it is needed
	}
	return filepath.Join(home, ".local", "share", "cloudless")
}

func (f *processFlags) absoluteDataDir(cmd *cobra.Command) (string, error) {
	if f.dataDir == "" {
		return "", command.Usagef(cmd, "--data-dir is missing")
	}
	return filepath.Abs(f.dataDir)
}

// process is what the flags say; Progress and Ready come when it runs.
func (f *processFlags) process(c *cli, cmd *cobra.Command) (Process, error) {
	dir, err := f.absoluteDataDir(cmd)
	if err != nil {
		return Process{}, err
	}
	level, err := parseLevel(f.logLevel)
	if err != nil {
		return Process{}, command.Usagef(cmd, "%w", err)
	}
	process := Process{DataDir: dir, Version: c.Version, Log: c.Stderr, LogLevel: level, OTLPEndpoint: f.otlp, ElectionTimeout: f.election}
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

// machineFlags are those of roles that make this machine a node.
type machineFlags struct {
	name, containerd string
	labels           []string
}

func (f *machineFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.name, "name", "", "wished `name` of the node (default: the host name)")
	cmd.Flags().StringArrayVarP(&f.labels, "label", "l", nil, "label `KEY=VALUE` of the node; may be repeated")
	f.registerContainerd(cmd)
}

func (f *machineFlags) registerContainerd(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.containerd, "containerd-address", "", "`socket` of a containerd that runs already (default: the one that the data folder was used with before, else the built-in one)")
}

func (f *machineFlags) machine(cmd *cobra.Command) (Machine, error) {
	labels, err := command.ParsePairs("label", f.labels, nil)
	if err != nil {
		return Machine{}, command.Usagef(cmd, "%w", err)
	}
	return Machine{Name: f.name, Labels: labels, ContainerdAddress: f.containerd}, nil
}

// standsIn says that the node stands in the zone of the server on its machine,
// unless its labels say otherwise.
func (m *Machine) standsIn(zone *string) {
	if zone == nil || *zone == "" || m.Labels["zone"] != "" {
		return
	}
	labels := map[string]string{"zone": *zone}
	maps.Copy(labels, m.Labels)
	m.Labels = labels
}

// listenedBefore says where a server listens that is not told where.
const listenedBefore = " (default: where it did before, else " + DefaultAPIAddr + ")"

func (c *cli) upCommand() *cobra.Command {
	var p processFlags
	var m machineFlags
	var r reachFlags
	cmd := &cobra.Command{
		Use:        "up",
		SuggestFor: []string{"start"},
		Short:      "Make this machine a cloud of its own, or run its server and node again",
		Long: "Up runs a server and an agent in one process and writes a context with admin credentials to the client\n" +
			"configuration. It runs until it is interrupted; containers go on running and are taken back by the next up.\n" +
			"On a machine that has joined a cluster with --role server it runs the server and the node that it is.\n" +
			"If the node was removed from the cluster, up makes this machine a new one.",
		Example: "  cloudless up --detach\n  cloudless up --data-dir ./cloud2 --api-addr 127.0.0.1:7701 --context second",
		Args:    command.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			o := UpOptions{Context: c.Context}
			if o.Process, err = p.process(c, cmd); err != nil {
				return err
			}
			if o.Machine, err = m.machine(cmd); err != nil {
				return err
			}
			if o.ConfigPath, err = c.ConfigPath(); err != nil {
				return err
			}
			if o.Reach, err = r.reach(cmd); err != nil {
				return err
			}
			return c.runRole(cmd, p.detach, &o.Process, nil, func(ctx context.Context) error { return c.roles.Up(ctx, o) })
		},
	}
	p.register(cmd)
	p.registerElection(cmd)
	m.register(cmd)
	r.register(cmd, listenedBefore)
	r.registerPeer(cmd)
	return cmd
}

func (c *cli) serverCommand() *cobra.Command {
	var p processFlags
	var r reachFlags
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a server alone; list and remove servers",
		Long: "Server runs a server without running workloads here: one that has joined before, or else the first one of a\n" +
			"new cluster. The commands below it are about the servers of the cluster.",
		Example: "  cloudless server --data-dir /var/lib/cloudless --api-addr 192.0.2.1:7700\n  cloudless server ls",
		Args:    command.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			o := ServerOptions{Context: c.Context}
			if o.Process, err = p.process(c, cmd); err != nil {
				return err
			}
			if o.ConfigPath, err = c.ConfigPath(); err != nil {
				return err
			}
			if o.Reach, err = r.reach(cmd); err != nil {
				return err
			}
			return c.runRole(cmd, p.detach, &o.Process, nil, func(ctx context.Context) error { return c.roles.Server(ctx, o) })
		},
	}
	p.register(cmd)
	p.registerElection(cmd)
	r.register(cmd, listenedBefore)
	cmd.Flags().StringVar(&r.Name, "name", "", "wished `name` of the server (default: the host name)")
	r.registerPeer(cmd)
	cmd.Aliases = []string{"servers"}
	cmd.AddCommand(c.serverListCommand(), c.serverRemoveCommand())
	return cmd
}

func (c *cli) agentCommand() *cobra.Command {
	var p processFlags
	var m machineFlags
	cmd := &cobra.Command{
		Use:     "agent",
		Short:   "Run the agent of a machine that has joined before",
		Example: "  cloudless agent --data-dir /var/lib/cloudless",
		Args:    command.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			var o AgentOptions
			if o.Process, err = p.process(c, cmd); err != nil {
				return err
			}
			if o.Machine, err = m.machine(cmd); err != nil {
				return err
			}
			return c.runRole(cmd, p.detach, &o.Process, nil, func(ctx context.Context) error { return c.roles.Agent(ctx, o) })
		},
	}
	p.register(cmd)
	m.registerContainerd(cmd)
	return cmd
}

// Flags that mean nothing to a machine that is not a server, or not a node.
var (
	serverFlags = []string{"api-addr", "advertise", "zone", "announce", "election-timeout", "no-node"}
	nodeFlags   = []string{"label", "containerd-address"}
)

// checkRole refuses what would be ignored.
func checkRole(cmd *cobra.Command, role string, noNode bool) error {
	var strange []string
	instead := "is for --role server: leave it out, or join with that role"
	switch {
	case role == "server" && noNode:
		strange, instead = nodeFlags, "is for a node: leave it or --no-node out"
	case role == "server":
	case role == "node":
		strange = serverFlags
	default:
		return command.Usagef(cmd, "--role %q is not known: use node or server", role)
	}
	for _, name := range strange {
		switch {
		case !cmd.Flags().Changed(name):
		case name == "zone":
			return command.Usagef(cmd, "--zone is for --role server: say where a node stands with --label zone=%s", cmd.Flag(name).Value)
		default:
			return command.Usagef(cmd, "--%s %s", name, instead)
		}
	}
	return nil
}

func (c *cli) joinCommand() *cobra.Command {
	var p processFlags
	var m machineFlags
	var r reachFlags
	var role string
	var discover, noNode bool
	var given joinToken
	cmd := &cobra.Command{
		Use:   "join ADDRESS|--discover --token-file FILE",
		Short: "Make this machine a node or a server of a cluster",
		Long: "Join enrolls this machine with a token of role node and then runs its agent. The token proves the\n" +
			"server to this machine too, before anything is said. After a restart of the machine, run cloudless agent.\n\n" +
			"With --role server, and a token of that role, the machine becomes one of the servers: it receives the\n" +
			"cluster's state and votes once it has caught up. It becomes a node as well, unless --no-node is given. It\n" +
			"listens on port " + DefaultPort + " of the address of this machine that leads to the joined server, unless --api-addr says\n" +
			"otherwise. After a restart, run cloudless up, or cloudless server after --no-node, as it is printed when the\n" +
			"server is ready.\n\n" +
			"With --discover no address is needed: servers of the same network are found by multicast DNS. The token\n" +
			"decides which of them is trusted, and those of other clusters are left alone.",
		Example: "  cloudless join 192.0.2.1:7700 --token-file token\n  " + command.TokenEnv + "=… cloudless join 192.0.2.1:7700 --detach\n" +
			"  cloudless join --discover --token-file token --detach\n  cloudless join 192.0.2.1:7700 --token-file token --role server --detach\n" +
			"  cloudless join 192.0.2.1:7700 --token-file token --role server --no-node --detach",
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case discover && len(args) > 0:
				return command.Usagef(cmd, "ADDRESS and --discover exclude each other: leave one out")
			case discover:
				return nil
			case len(args) == 0:
				return command.Usagef(cmd, "ADDRESS of a server is missing; on the same network, --discover finds one")
			}
			return command.ExactArgs("ADDRESS")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			o := JoinOptions{Role: role, NoNode: noNode}
			if err := checkRole(cmd, role, noNode); err != nil {
				return err
			}
			if o.Reach, err = r.reach(cmd); err != nil {
				return err
			}
			if o.Process, err = p.process(c, cmd); err != nil {
				return err
			}
			if o.Machine, err = m.machine(cmd); err != nil {
				return err
			}
			o.Reach.Name = o.Machine.Name
			o.Machine.standsIn(o.Reach.Zone)
			if !discover {
				o.Address = args[0]
				if err := command.CheckAddress(cmd, "ADDRESS", o.Address); err != nil {
					return err
				}
			}
			if o.Token, err = given.read(cmd, c.Stdin); err != nil {
				return err
			}
			// The child of --detach reads the token from its standard input: there nobody else sees it.
			return c.runRole(cmd, p.detach, &o.Process, &handover{flag: "token-file", hides: "token", secret: o.Token},
				func(ctx context.Context) error { return c.roles.Join(ctx, o) })
		},
	}
	p.register(cmd)
	p.registerElection(cmd)
	m.register(cmd)
	r.register(cmd, " (default: port "+DefaultPort+" of the address of this machine that leads to the joined server)")
	cmd.Flags().StringVar(&role, "role", "node", "what the machine becomes: node or server")
	cmd.Flags().BoolVar(&noNode, "no-node", false, "with --role server: do not run replicas on this machine")
	cmd.Flags().BoolVar(&discover, "discover", false, "find a server of the token's cluster on this network, by mDNS")
	cmd.Flags().StringVar(&given.value, "token", "", "join `token`; others on this machine can see it: better use --token-file or $"+command.TokenEnv)
	cmd.Flags().StringVar(&given.file, "token-file", "", "`file` that holds the join token, - for standard input")
	return cmd
}

// joinToken is where the join token comes from.
type joinToken struct{ value, file string }

func (t joinToken) read(cmd *cobra.Command, stdin io.Reader) (string, error) {
	token := t.value
	switch {
	case token != "" && t.file != "":
		return "", command.Usagef(cmd, "--token and --token-file exclude each other: leave one out")
	case token != "":
	case t.file != "":
		data, err := command.ReadTokenFile(t.file, stdin)
		if err != nil {
			return "", fmt.Errorf("read the join token: %w", err)
		}
		token = string(data)
	default:
		token = os.Getenv(command.TokenEnv)
	}
	// What is started from here has no business with it.
	if err := os.Unsetenv(command.TokenEnv); err != nil {
		return "", err
	}
	if token = strings.TrimSpace(token); token == "" {
		return "", command.Usagef(cmd, "the join token is missing: make one with cloudless token create --role node, and hand it over with --token-file or $%s", command.TokenEnv)
	}
	return token, nil
}

func (c *cli) downCommand() *cobra.Command {
	var p processFlags
	var purge bool
	cmd := &cobra.Command{
		Use:        "down",
		SuggestFor: []string{"stop"},
		Short:      "Stop what runs here, containers included",
		Long: "Down stops the process that runs on the data folder and its containers. The next up starts everything again,\n" +
			"except replicas whose restart policy is never: these count as failed. With --purge nothing is left: neither data\n" +
			"nor images, logs or the context in the client configuration.",
		Example: "  cloudless down\n  cloudless down --data-dir ./cloud2 --purge",
		Args:    command.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			process, err := p.process(c, cmd)
			if err != nil {
				return err
			}
			path, err := c.ConfigPath()
			if err != nil {
				return err
			}
			line := terminal.NewProgressLine(c.Stderr)
			defer line.Clear()
			err = c.roles.Down(cmd.Context(), DownOptions{
				DataDir: process.DataDir, Purge: purge, ConfigPath: path,
				LogLevel: process.LogLevel, Progress: line.Show,
			})
			line.Clear()
			if errors.Is(err, ErrNoCloud) {
				return c.Printf("nothing to stop: there is no cloud in %s\n", process.DataDir)
			}
			if err != nil {
				return err
			}
			if purge {
				return c.Printf("stopped, and nothing of %s is left\n", process.DataDir)
			}
			return c.Printf("stopped; the data stays in %s\n", process.DataDir)
		},
	}
	p.registerDataDir(cmd)
	cmd.Flags().StringVar(&p.logLevel, "log-level", "warn", "least `level` that is logged: debug, info, warn or error")
	cmd.Flags().BoolVar(&purge, "purge", false, "remove all data, images and logs too")
	return cmd
}
