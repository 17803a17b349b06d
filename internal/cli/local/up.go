package local

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/internal/cli/command"
)

func (c *Commands) Up() *cobra.Command {
	var p processFlags
	var m machineFlags
	var r reachFlags
	cmd := &cobra.Command{
		Use:        "up",
		SuggestFor: []string{"start"},
		Short:      "Run a server and a node on this machine",
		Long: "Up runs a server and an agent in one process, and writes a context with admin credentials to the client\n" +
			"configuration. The first up founds a cluster. On a machine that has joined with --role server, up runs its server\n" +
			"and its node. Up runs until it is interrupted; containers keep running, and the next up adopts them.\n" +
			"If the node was removed from the cluster, up makes this machine a new node.",
		Example: "  cloudless up --detach\n  cloudless up --data-dir ./cloud2 --api-addr 127.0.0.1:7701 --context second",
		Args:    command.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			o := UpOptions{Context: c.Context}
			if o.Process, err = p.process(c.Env, cmd); err != nil {
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

// Server is the command cloudless server. Its subcommands are about the servers of the cluster.
func (c *Commands) Server(below ...*cobra.Command) *cobra.Command {
	var p processFlags
	var r reachFlags
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a server alone; list and remove servers",
		Long: "Server runs a server without a node: one that has joined before, or else the first one of a new cluster. Its\n" +
			"subcommands list and remove the servers of the cluster.",
		Example: "  cloudless server --data-dir /var/lib/cloudless --api-addr 192.0.2.1:7700\n  cloudless server ls",
		Args:    command.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			o := ServerOptions{Context: c.Context}
			if o.Process, err = p.process(c.Env, cmd); err != nil {
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
	cmd.Flags().StringVar(&r.Name, "name", "", "`name` of the server (default: the host name)")
	r.registerPeer(cmd)
	cmd.Aliases = []string{"servers"}
	cmd.AddCommand(below...)
	return cmd
}

func (c *Commands) Agent() *cobra.Command {
	var p processFlags
	var m machineFlags
	cmd := &cobra.Command{
		Use:     "agent",
		Short:   "Run the agent of a machine that has joined before",
		Example: "  cloudless agent --data-dir /var/lib/cloudless",
		Args:    command.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			var o AgentOptions
			if o.Process, err = p.process(c.Env, cmd); err != nil {
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
