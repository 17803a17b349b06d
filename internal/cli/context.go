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
		Short:      "Forget contexts; the clusters themselves do not change",
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

// changeContext changes the client configuration if it has a context of that name.
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
		return missing // without the file's name, which UpdateConfig adds
	}
	return err
}

func (c *cli) loginCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "login ADDRESS --token-file FILE",
		Short: "Use a cluster with an API token",
		Long: "Login stores a context for the cluster at ADDRESS and makes it the current one. The token contains the\n" +
			"fingerprint of the cluster's certificate authority: login verifies the server with it before it sends the token.\n" +
			"The context gets the name of the token, unless --context names it, and knows all servers of the cluster.\n\n" +
			"Single commands can use a token without a login: --token-file takes precedence over $" + command.TokenEnv + ", and\n" +
			"both over the context. cloudless context rm forgets the token; an admin revokes it with cloudless token rm.",
		Example: "  cloudless login 192.0.2.1:7700 --token-file token\n  cloudless login 192.0.2.1:7700 --token-file token --context work",
		Args:    command.ExactArgs("ADDRESS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			made, owner, err := c.enter(cmd, args[0], c.Context)
			if err != nil {
				return err
			}
			err = c.storeContext(made, true)
			if err != nil || !c.ForPeople() {
				return err
			}
			return c.Printf("logged in at %s as %s; context %s is now the current one\n", args[0], owner, made.Name)
		},
	}
}

func (c *cli) contextAddCommand() *cobra.Command {
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

// tokenOwner is the identity that a token belongs to.
type tokenOwner struct{ name, role string }

func (o tokenOwner) String() string { return o.name + ", role " + o.role }

// enter makes a context from the given token and the server at an address, after that server has accepted the token.
// Without a name the context gets the name of the token.
func (c *cli) enter(cmd *cobra.Command, address, name string) (client.Context, tokenOwner, error) {
	refuse := func(err error) (client.Context, tokenOwner, error) { return client.Context{}, tokenOwner{}, err }
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
	owner, addresses, err := c.ownerOf(cmd.Context(), made)
	if err != nil {
		return refuse(err)
	}
	made.Addresses = addresses
	if made.Name, err = c.nameFor(cmd.Context(), made, name, owner); err != nil {
		return refuse(err)
	}
	return made, owner, nil
}

// ownerOf asks the cluster for the owner of a context's token, and for the addresses of all servers.
func (c *cli) ownerOf(ctx context.Context, where client.Context) (tokenOwner, []string, error) {
	cl, err := c.DialContext(ctx, where)
	if err != nil {
		return tokenOwner{}, nil, err
	}
	answer, err := cl.Cluster().WhoAmI(ctx, &cloudlessv1.WhoAmIRequest{})
	addresses := cl.Addresses()
	if err := errors.Join(err, cl.Close()); err != nil {
		return tokenOwner{}, nil, err
	}
	id, err := identity.ParseID(answer.GetId())
	if err != nil {
		return tokenOwner{}, nil, err
	}
	return tokenOwner{name: id.Name(), role: answer.GetRole()}, addresses, nil
}

// nameFor is the name to store a context under: the given one, or a free one after the token. It refuses to replace a
// context with a valid token of another owner: the context may be the only copy of that token.
func (c *cli) nameFor(ctx context.Context, made client.Context, name string, owner tokenOwner) (string, error) {
	path, err := c.ConfigPath()
	if err != nil {
		return "", err
	}
	config, err := client.LoadConfig(path)
	if err != nil {
		return "", err
	}
	if name == "" {
		name = config.FreeName(made.Cluster, owner.name)
	}
	i := slices.IndexFunc(config.Contexts, func(have client.Context) bool { return have.Name == name })
	if i < 0 {
		return name, nil
	}
	have := config.Contexts[i]
	const wayOut = "choose another name, or remove it first with: cloudless context rm "
	if !sameAuthority(have, made) {
		return "", fmt.Errorf("context %s is of another cluster: %s%s", name, wayOut, name)
	}
	have.Addresses, have.CA = made.Addresses, made.CA
	current, _, err := c.ownerOf(ctx, have)
	switch {
	case status.Code(err) == codes.Unauthenticated, err == nil && current == owner:
		return name, nil
	case err != nil:
		return "", fmt.Errorf("find out whether the token of context %s still works: %w", name, err)
	}
	return "", fmt.Errorf("context %s holds a token that still works, of %s: %s%s", name, current, wayOut, name)
}

// sameAuthority reports whether contexts are of the same cluster, which may be replacing its authority.
func sameAuthority(a, b client.Context) bool {
	one, err := identity.ParseTrustPEM([]byte(a.CA))
	other, failed := identity.ParseTrustPEM([]byte(b.CA))
	return err == nil && failed == nil && a.Cluster == b.Cluster && one.Shares(other)
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
