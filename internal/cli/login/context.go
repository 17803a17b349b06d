package login

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

// Context is the command cloudless context.
func Context(e *command.Env) *cobra.Command {
	c := &commands{e}
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

func (c *commands) contextListCommand() *cobra.Command {
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

func (c *commands) contextUseCommand() *cobra.Command {
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

func (c *commands) contextRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rm NAME...",
		Aliases: []string{"remove", "delete"},
		Short:   "Forget contexts; the clusters themselves do not change",
		Example: "  cloudless context rm old",
		Args:    command.AtLeastOne("NAME"),
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

// changeContext changes the client configuration if it has a context of that name.
func (c *commands) changeContext(name string, change func(*client.Config)) error {
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
		return missing // without the file's name, which UpdateConfig adds
	}
	return err
}

func (c *commands) contextAddCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "add NAME ADDRESS --token-file FILE",
		Short:   "Add a context for a cluster, with an API token",
		Long:    "Add stores a context as cloudless login does, but does not make it the current one, unless it is the first.",
		Example: "  cloudless context add work 192.0.2.1:7700 --token-file token",
		Args:    command.ExactArgs("NAME", "ADDRESS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			made, owner, err := c.enter(cmd, args[1], args[0])
			if err != nil {
				return err
			}
			err = c.storeContext(made, false)
			if err != nil || !c.ForPeople() {
				return err
			}
			return c.Printf("context %s added: %s, at %s; use it with: cloudless context use %s\n", made.Name, owner, args[1], made.Name)
		},
	}
}
