package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/internal/cli/bucket"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/cli/login"
	"github.com/cloudless/cloudless/internal/cli/network"
	"github.com/cloudless/cloudless/internal/cli/role"
	"github.com/cloudless/cloudless/internal/cli/secret"
	"github.com/cloudless/cloudless/internal/cli/stream"
	"github.com/cloudless/cloudless/internal/cli/usage"
)

// Options are what main passes to the command line.
type Options struct {
	// Args are the arguments without the program's name.
	Args    []string
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Version string // of the program
	Roles   local.Roles
}

// Main runs one command line until it ends or ctx is done, and returns the exit code.
func Main(ctx context.Context, o Options) int {
	c := newCLI(o)
	root := c.rootCommand()
	return c.Execute(ctx, root, ownCommands(root, o.Args))
}

// cli builds the commands.
type cli struct {
	*command.Env
	machine *local.Commands
}

func newCLI(o Options) *cli {
	return newWith(&command.Env{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Version: o.Version}, o.Roles)
}

func newWith(e *command.Env, roles local.Roles) *cli {
	again := func(e *command.Env) *cobra.Command { return newWith(e, roles).rootCommand() }
	return &cli{Env: e, machine: local.New(e, roles, again)}
}

func (c *cli) secretCommand() *cobra.Command {
	return c.nounCommand("secret", "Keep passwords and keys, and give them to workloads",
		"  cloudless secret set db-password\n  cloudless secret ls\n  cloudless secret get db-password\n  cloudless secret rotate session-key",
		secret.Set(c.Env), secret.Get(c.Env), secret.Rotate(c.Env), secret.Remove(c.Env), secret.Deliveries(c.Env), c.secretRekeyCommand())
}

func (c *cli) bucketCommand() *cobra.Command {
	return c.nounCommand("bucket", "Keep objects in buckets, for S3 clients and for workloads",
		"  cloudless bucket create photos --replicas 3 --quota 100Gi\n  cloudless bucket ls\n  cloudless bucket key photos\n  cloudless bucket rm photos",
		bucket.Create(c.Env), bucket.Apply(c.Env), bucket.Update(c.Env), bucket.Get(c.Env), bucket.Remove(c.Env), bucket.Key(c.Env))
}

func (c *cli) rootCommand() *cobra.Command {
	root := c.NewRoot()
	command.Add(root, command.GroupWorkloads, c.runCommand(), c.planCommand(), c.applyCommand(), c.psCommand(), c.getCommand(), c.editCommand(), c.rmCommand(), c.describeCommand(), c.explainCommand(), c.workloadCommand(), c.rolloutCommand(), stream.Logs(c.Env), stream.Exec(c.Env),
		stream.Copy(c.Env), stream.Forward(c.Env), usage.Stats(c.Env), usage.Top(c.Env))
	command.Add(root, command.GroupCluster, c.clusterCommand(), c.leaderCommand(), c.nodeCommand(), c.namespaceCommand(), c.policyCommand(), c.serviceCommand(), c.endpointCommand(), c.routeCommand(), c.certificateCommand(), c.secretCommand(), c.bucketCommand(), network.Network(c.Env), c.tokenCommand(), c.caCommand(), c.roleCommand(), c.roleBindingCommand(), role.CanI(c.Env), role.WhoAmI(c.Env), c.imageCommand(), c.eventsCommand(), login.Login(c.Env), login.Logout(c.Env), login.Context(c.Env),
		c.completionCommand(), c.versionCommand())
	command.Add(root, command.GroupMachine, c.machine.Up(), c.machine.Server(c.serverCommands()...), c.machine.Agent(),
		c.machine.Join(), c.machine.Down(), c.machine.Install(), c.machine.Uninstall(), c.machine.Doctor())
	c.completeNames(root)
	return root
}
