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
		Short: "Let one server go on alone when most of the others are lost for good",
		Long: "Recover is for the case that more than half of the voting servers are lost for good, so that nothing can be\n" +
			"agreed on any more. Choose the server that is furthest: cloudless cluster status shows how far each of those is\n" +
			"that still answer, by term and entry of its log, of which the term counts more. Stop it, run this on its\n" +
			"machine, and start it again with cloudless server: it is then the only server of the cluster, with what it has\n" +
			"on its disk. What only the lost ones had is lost. All other servers are removed from the cluster when it starts:\n" +
			"one that comes back after all is turned away, and can join anew in an empty data folder.",
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
	cmd.Flags().BoolVar(&lost, "others-are-lost", false, "the other servers are gone for good and will not be started again")
	return cmd
}
