package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/identity"
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

func (c *cli) loginCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "login ADDRESS --token-file FILE",
		Short: "Use a cluster with an API token",
		Long: "Login stores a context for the cluster at ADDRESS and makes it the current one. The token proves the server\n" +
			"before it is sent there: it carries the fingerprint of the cluster's certificate authority. The context is called\n" +
			"like the token, unless --context names it, and knows all servers of the cluster.\n\n" +
			"A token for single commands needs no login: --token-file counts before $" + command.TokenEnv + ", and both count before\n" +
			"the context. cloudless context rm forgets the token; an admin revokes it with cloudless token rm.",
		Example: "  cloudless login 192.0.2.1:7700 --token-file token\n  cloudless login 192.0.2.1:7700 --token-file token --context work",
		Args:    command.ExactArgs("ADDRESS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			made, who, err := c.enter(cmd, args[0], c.Context)
			if err != nil {
				return err
			}
			err = c.storeContext(made, true)
			if err != nil || !c.ForPeople() {
				return err
			}
			return c.Printf("logged in at %s as %s; context %s is now the current one\n", args[0], who, made.Name)
		},
	}
}

func (c *cli) contextAddCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "add NAME ADDRESS --token-file FILE",
		Short: "Add a context for a cluster, with an API token",
		Long: "Add stores a context as cloudless login does, and leaves the current context as it is. The first context\n" +
			"becomes the current one.",
		Example: "  cloudless context add work 192.0.2.1:7700 --token-file token",
		Args:    command.ExactArgs("NAME", "ADDRESS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			made, who, err := c.enter(cmd, args[1], args[0])
			if err != nil {
				return err
			}
			err = c.storeContext(made, false)
			if err != nil || !c.ForPeople() {
				return err
			}
			return c.Printf("context %s added: %s, at %s; use it with: cloudless context use %s\n", made.Name, who, args[1], made.Name)
		},
	}
}

// bearer is whose token it is.
type bearer struct{ name, role string }

func (b bearer) String() string { return b.name + ", role " + b.role }

// enter makes a context of the given token and the server at an address, once that server has accepted the token.
// Without a name the context is called like the token.
func (c *cli) enter(cmd *cobra.Command, address, name string) (client.Context, bearer, error) {
	refuse := func(err error) (client.Context, bearer, error) { return client.Context{}, bearer{}, err }
	if err := command.CheckAddress(cmd, "ADDRESS", address); err != nil {
		return refuse(err)
	}
	given, err := c.GivenToken()
	if err != nil {
		return refuse(err)
	}
	if given == nil {
		return refuse(command.Usagef(cmd, "the token is missing: ask an admin for one made with cloudless token create --role operator, and hand it over with --token-file or $%s", command.TokenEnv))
	}
	made, err := client.Locate(cmd.Context(), address, given.Reveal())
	if err != nil {
		return refuse(err)
	}
	who, addresses, err := c.whoIs(cmd.Context(), made)
	if err != nil {
		return refuse(err)
	}
	made.Addresses = addresses
	if made.Name, err = c.nameFor(cmd.Context(), made, name, who); err != nil {
		return refuse(err)
	}
	return made, who, nil
}

// whoIs asks the cluster whose token a context has, and where all of the servers are.
func (c *cli) whoIs(ctx context.Context, where client.Context) (bearer, []string, error) {
	cl, err := c.DialContext(ctx, where)
	if err != nil {
		return bearer{}, nil, err
	}
	answer, err := cl.Cluster().WhoAmI(ctx, &cloudlessv1.WhoAmIRequest{})
	addresses := cl.Addresses()
	if err := errors.Join(err, cl.Close()); err != nil {
		return bearer{}, nil, err
	}
	id, err := identity.ParseID(answer.GetId())
	if err != nil {
		return bearer{}, nil, err
	}
	return bearer{name: id.Name(), role: answer.GetRole()}, addresses, nil
}

// nameFor is the name to store a context under: the wished one, or else a free one after the token. A context whose
// token still works for somebody else is not replaced: that token may be nowhere else.
func (c *cli) nameFor(ctx context.Context, made client.Context, wish string, who bearer) (string, error) {
	path, err := c.ConfigPath()
	if err != nil {
		return "", err
	}
	config, err := client.LoadConfig(path)
	if err != nil {
		return "", err
	}
	if wish == "" {
		wish = config.FreeName(made.Cluster, who.name)
	}
	i := slices.IndexFunc(config.Contexts, func(have client.Context) bool { return have.Name == wish })
	if i < 0 {
		return wish, nil
	}
	have := config.Contexts[i]
	const wayOut = "choose another name, or remove it first with: cloudless context rm "
	if have.CA != made.CA {
		return "", fmt.Errorf("context %s is of another cluster: %s%s", wish, wayOut, wish)
	}
	have.Addresses = made.Addresses
	holder, _, err := c.whoIs(ctx, have)
	switch {
	case status.Code(err) == codes.Unauthenticated, err == nil && holder == who:
		return wish, nil
	case err != nil:
		return "", fmt.Errorf("find out whether the token of context %s still works: %w", wish, err)
	}
	return "", fmt.Errorf("context %s holds a token that still works, of %s: %s%s", wish, holder, wayOut, wish)
}

// storeContext writes a context to the client configuration.
func (c *cli) storeContext(made client.Context, use bool) error {
	path, err := c.ConfigPath()
	if err != nil {
		return err
	}
	return client.UpdateConfig(path, func(config *client.Config) error {
		config.Set(made)
		if use {
			config.Current = made.Name
		}
		return nil
	})
}
