package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

func (c *cli) contextCommand() *cobra.Command {
	cmd := command.Group("context", "Choose among the clusters that you know", "  cloudless context ls\n  cloudless context use home\n  cloudless context rm old",
		c.contextListCommand(), c.contextAddCommand(), c.contextUseCommand(), c.contextRemoveCommand())
	cmd.Aliases = []string{"contexts"}
	return cmd
}

// shownContext is a context without its secrets.
type shownContext struct {
	Name      string   `json:"name" yaml:"name"`
	Current   bool     `json:"current" yaml:"current"`
	Cluster   string   `json:"cluster" yaml:"cluster"`
	Addresses []string `json:"addresses" yaml:"addresses"`
}

func (c *cli) contextListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the contexts of the client configuration",
		Example: "  cloudless context ls",
		Args:    command.ExactArgs(),
		RunE: func(*cobra.Command, []string) error {
			path, err := c.ConfigPath()
			if err != nil {
				return err
			}
			config, err := client.LoadConfig(path)
			if err != nil {
				return err
			}
			shown := []shownContext{}
			t := terminal.NewTable(c.Stdout, "CURRENT", "NAME", "ADDRESS", "CLUSTER")
			for _, context := range config.Contexts {
				current := context.Name == config.Current
				shown = append(shown, shownContext{context.Name, current, context.Cluster, context.Addresses})
				mark := ""
				if current {
					mark = "*"
				}
				t.Row(mark, context.Name, strings.Join(context.Addresses, ", "), context.Cluster)
			}
			if !c.ForPeople() {
				return c.PrintValue(map[string]any{"items": shown})
			}
			return t.Flush()
		},
	}
}

func (c *cli) contextUseCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "use NAME",
		Short:   "Make a context the current one",
		Example: "  cloudless context use home",
		Args:    command.ExactArgs("NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			err := c.changeContext(args[0], func(config *client.Config) { config.Current = args[0] })
			if err != nil || !c.ForPeople() {
				return err
			}
			return c.Printf("context %s is now the current one\n", args[0])
		},
	}
}

func (c *cli) contextRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:        "rm NAME...",
		Aliases:    []string{"remove", "delete"},
		SuggestFor: []string{"logout"},
		Short:      "Forget contexts; the clusters themselves are left as they are",
		Example:    "  cloudless context rm old",
		Args:       command.AtLeastOne("NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			return c.ForEach(args, func(name string) error {
				err := c.changeContext(name, func(config *client.Config) { config.Remove(name) })
				if err != nil || !c.ForPeople() {
					return err
				}
				return c.Printf("context %s removed\n", name)
			})
		},
	}
}

// changeContext changes the configuration if it has a context of that name.
func (c *cli) changeContext(name string, change func(*client.Config)) error {
	path, err := c.ConfigPath()
	if err != nil {
		return err
	}
	var missing error
	err = client.UpdateConfig(path, func(config *client.Config) error {
		if _, missing = config.Context(name); missing == nil {
			change(config)
		}
		return missing
	})
	if missing != nil {
		return missing // without the words about the file, which is not to blame
	}
	return err
}
