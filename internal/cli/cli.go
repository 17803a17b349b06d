package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/systemd"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Options are what the command line is given by main.
type Options struct {
	// Args are the arguments without the name of the program.
	Args   []string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Version of the program.
	Version string
	Roles   Roles
}

// The exit codes, beside those of commands that exec runs.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitForGood     = systemd.ForGood // such as the server's that was removed
	exitInterrupted = 130             // as shells report SIGINT
)

// Main runs one command line and returns the exit code. It ends early when ctx does.
func Main(ctx context.Context, o Options) int {
	c := &cli{Options: o}
	root := c.rootCommand()
	root.SetArgs(listPlural(root, ownCommands(root, o.Args)))
	ctx, traced := c.trace(ctx, root)
	cmd, err := root.ExecuteContextC(ctx)
	traced(err)
	code := exitCode(err)
	if _, own := cmd.Annotations[ownUsageCode]; own && isUsage(err) {
		code = exitError
	}
	if code != exitOK {
		c.complain(err)
	}
	return code
}

// cli is one run of the command line.
type cli struct {
	Options
	// The global flags.
	config, context, namespace, output string
	// server is where one is now; empty if the context knows it.
	server string
	// began is the context when the command dialled.
	began client.Context
	// stale lets one server answer alone.
	stale bool
	// tokenFile is the flag for an API token. Some commands have a flag of the same name for a join token.
	tokenFile *pflag.Flag
	// tokenSource is where the token is from that the command calls with, for people.
	tokenSource string
	// tracing is nil unless the environment says where traces go.
	tracing *telemetry.Tracing
}

// contextEnv is the environment variable that names the context to use.
const contextEnv = "CLOUDLESS_CONTEXT"

func (c *cli) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "cloudless",
		Short: "Turn your machines into one cloud",
		Long: "Cloudless turns machines into one cloud that you own.\n\n" +
			"Start with cloudless up, run something with cloudless run, and see it with cloudless ps.",
		Example:       "  cloudless up --detach\n  cloudless run ./hello --name web\n  cloudless logs -f web",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE:          groupRun,
		// Ours has examples and speaks only for shells that people use with it.
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := parseFormat(c.output); err != nil {
				return err
			}
			if c.server == "" {
				return nil
			}
			return checkAddress(cmd, "--server", c.server)
		},
	}
	root.SetIn(c.Stdin)
	root.SetOut(c.Stdout)
	root.SetErr(c.Stderr)
	root.SetFlagErrorFunc(flagError)
	flags := root.PersistentFlags()
	flags.StringVar(&c.config, "config", "", "client configuration `file` (default: $"+client.ConfigEnv+", else in the user's configuration folder)")
	flags.StringVar(&c.context, "context", os.Getenv(contextEnv), "`name` of the cluster's context (default: $"+contextEnv+", else the current one)")
	flags.StringVar(&c.server, "server", "", "`address` of a server, where none is any more that the context names; it is remembered")
	flags.String("token-file", "", "`file` with the API token, - for standard input (default: $"+TokenEnv+", else the context's)")
	c.tokenFile = flags.Lookup("token-file")
	flags.StringVarP(&c.namespace, "namespace", "n", spec.DefaultNamespace, "`namespace` of workloads")
	flags.StringVarP(&c.output, "output", "o", "table", "`format` of the output: table, json or yaml")
	flags.BoolVar(&c.stale, "stale", false, "allow stale reads from any server, also while none leads; they are marked")

	root.AddGroup(
		&cobra.Group{ID: groupApps, Title: "Workloads:"},
		&cobra.Group{ID: groupCluster, Title: "Cluster:"},
		&cobra.Group{ID: groupMachine, Title: "This machine:"},
	)
	add(root, groupApps, c.runCommand(), c.planCommand(), c.applyCommand(), c.psCommand(), c.getCommand(), c.editCommand(), c.rmCommand(), c.describeCommand(), c.explainCommand(), c.workloadCommand(), c.logsCommand(), c.execCommand(),
		c.copyCommand(), c.statsCommand(), c.topCommand())
	add(root, groupCluster, c.clusterCommand(), c.leaderCommand(), c.nodeCommand(), c.namespaceCommand(), c.tokenCommand(), c.imageCommand(), c.eventsCommand(), c.loginCommand(), c.contextCommand(),
		c.completionCommand(), c.versionCommand())
	add(root, groupMachine, c.upCommand(), c.serverCommand(), c.agentCommand(), c.joinCommand(), c.downCommand(),
		c.installCommand(), c.uninstallCommand(), c.doctorCommand())
	root.SetHelpCommand(helpCommand())
	root.SetHelpCommandGroupID(groupMachine)
	c.completeNames(root)
	return root
}

const (
	groupApps    = "apps"
	groupCluster = "cluster"
	groupMachine = "machine"
)

func add(root *cobra.Command, group string, commands ...*cobra.Command) {
	for _, command := range commands {
		command.GroupID = group
		root.AddCommand(command)
	}
}

// group is a command that only holds others.
func group(use, short, example string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Example: example, Args: cobra.ArbitraryArgs, RunE: groupRun}
	cmd.AddCommand(commands...)
	return cmd
}

// groupRun shows the help of a command that needs another one behind it, or says that there is no such other one.
func groupRun(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	return unknownCommand(cmd, args[0])
}

func unknownCommand(cmd *cobra.Command, word string) error {
	return usage(cmd, "there is no command %q under %s%s", word, cmd.CommandPath(), meantCommand(cmd, word))
}

// dial connects to the cluster that the global flags choose.
func (c *cli) dial(ctx context.Context) (*client.Client, error) {
	where, err := c.where(ctx)
	if err != nil {
		return nil, err
	}
	c.began = where
	if c.server != "" {
		where.Addresses = []string{c.server}
	}
	return client.Dial(ctx, where, client.WithDialOptions(c.tracing.DialOptions()...))
}

func (c *cli) configPath() (string, error) {
	if c.config != "" {
		return c.config, nil
	}
	return client.ConfigPath()
}

// withClient is the body of commands that call the cluster.
func (c *cli) withClient(do func(ctx context.Context, cl *client.Client, cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		cl, err := c.dial(ctx)
		if err != nil {
			return err
		}
		if c.stale {
			ctx = client.WithStale(ctx)
			c.markStale(cl)
		}
		err = do(ctx, cl, cmd, args)
		c.keepAddresses(cl)
		return errors.Join(err, cl.Close())
	}
}

// markStale says that what follows is the word of one server.
func (c *cli) markStale(cl *client.Client) {
	c.note("This is what the server at %s knows, and may be out of date.", cl.Addresses()[0])
}

func (c *cli) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(c.Stdout, format, args...)
	return err
}

// note says something beside the result.
func (c *cli) note(format string, args ...any) {
	fmt.Fprintf(c.Stderr, format+"\n", args...)
}
