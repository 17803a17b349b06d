package local

import (
	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/internal/cli/command"
)

func (c *Commands) Recover() *cobra.Command {
	var p processFlags
	var lost bool
	cmd := &cobra.Command{
		Use:   "recover --data-dir DIR --others-are-lost",
		Short: "Continue with one server after the quorum is lost for good",
		Long: "Recover is for clusters that have lost more than half of their voting servers for good, and with them the quorum.\n" +
			"Choose the surviving server with the newest log: cloudless cluster status shows the last term and entry of each;\n" +
			"compare the terms first. Stop that server, run recover on its machine, and start it again with cloudless server.\n" +
			"It is then the only server of the cluster, with the state on its disk. Changes that only the lost servers had are\n" +
			"lost. When it starts, it removes all other servers from the cluster: one that comes back after all is refused, and\n" +
			"can join again with an empty data folder.",
		Example: "  cloudless cluster recover --data-dir /var/lib/cloudless --others-are-lost\n  cloudless server --data-dir /var/lib/cloudless --api-addr 192.0.2.1:7700",
		Args:    command.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := p.absoluteDataDir(cmd)
			if err != nil {
				return err
			}
			if !lost {
				return command.Usagef(cmd, "this may lose changes, and is dangerous if another server still runs: say --others-are-lost when you are sure that they are gone for good")
			}
			end, err := c.roles.Recover(cmd.Context(), RecoverOptions{DataDir: dir, Log: c.Stderr})
			if err != nil {
				return err
			}
			return c.Printf("the server in %s, whose log ends with %s, is now the only one of its cluster: start it with: cloudless server --data-dir %s\n", dir, end, dir)
		},
	}
	p.registerDataDir(cmd)
	cmd.Flags().BoolVar(&lost, "others-are-lost", false, "confirm that the other servers will never be started again")
	return cmd
}
