package local

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

func (c *Commands) Down() *cobra.Command {
	var p processFlags
	var purge bool
	cmd := &cobra.Command{
		Use:        "down",
		SuggestFor: []string{"stop"},
		Short:      "Stop the server and agent on this machine, and their containers",
		Long: "Down stops the process that runs on the data folder, and its containers. The next up starts everything again,\n" +
			"except replicas with restart policy never: these count as failed. --purge also removes all data, images and logs,\n" +
			"and the context in the client configuration.",
		Example: "  cloudless down\n  cloudless down --data-dir ./cloud2 --purge",
		Args:    command.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			process, err := p.process(c.Env, cmd)
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
	cmd.Flags().StringVar(&p.logLevel, "log-level", "warn", "lowest `level` to log: debug, info, warn or error")
	cmd.Flags().BoolVar(&purge, "purge", false, "also remove all data, images and logs")
	return cmd
}
