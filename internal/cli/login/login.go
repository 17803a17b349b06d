package login

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/identity"
)

// Login is the command cloudless login.
func Login(e *command.Env) *cobra.Command {
	c := &commands{e}
	var o provider
	cmd := &cobra.Command{
		Use:   "login ADDRESS (--token-file FILE | --oidc)",
		Short: "Use a cluster with an API token, or log in at its OpenID provider",
		Long: "Login stores a context for the cluster at ADDRESS and makes it the current one. A token contains the fingerprint\n" +
			"of the cluster's certificate authority: login verifies the server with it before it sends the token.\n" +
			"The context gets the name of the token, unless --context names it, and knows all servers of the cluster.\n\n" +
			"With --oidc you log in at the cluster's OpenID provider: in a browser, or, with --device or where there is none,\n" +
			"by a code that you enter in any browser. The context gets your name. A cluster that no context knows yet is\n" +
			"recognized by the fingerprint of its authority: give it by --fingerprint, or compare it when you are asked.\n\n" +
			"Single commands can use a token without a login: --token-file takes precedence over $" + command.TokenEnv + ", and\n" +
			"both over the context. cloudless logout revokes your token and forgets the context.",
		Example: "  cloudless login 192.0.2.1:7700 --token-file token\n  cloudless login 192.0.2.1:7700 --token-file token --context work\n" +
			"  cloudless login https://cloud.example --oidc\n  cloudless login https://cloud.example --oidc --device",
		Args: command.ExactArgs("ADDRESS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			address := addressOf(args[0])
			enter := c.enter
			switch {
			case o.oidc:
				enter = o.enter(c)
			case o.device || o.fingerprint != "":
				return command.Usagef(cmd, "--device and --fingerprint are for a login with --oidc")
			}
			made, owner, err := enter(cmd, address, c.Context)
			if err != nil {
				return err
			}
			err = c.storeContext(made, true)
			if err != nil || !c.ForPeople() {
				return err
			}
			return c.Printf("logged in at %s as %s; context %s is now the current one\n", address, owner, made.Name)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.oidc, "oidc", false, "log in at the OpenID provider of the cluster")
	flags.BoolVar(&o.device, "device", false, "show a code for the browser of another device")
	flags.StringVar(&o.fingerprint, "fingerprint", "", "`fingerprint` of the cluster's authority, as cluster status shows it")
	return cmd
}

// Logout is the command cloudless logout.
func Logout(e *command.Env) *cobra.Command {
	c := &commands{e}
	return &cobra.Command{
		Use:   "logout",
		Short: "Revoke the token of the context, and forget the context",
		Long: "Logout revokes the token of the current context, or of the one that --context names, and forgets the context.\n" +
			"With --token-file it revokes that token and keeps the context. A cluster that cannot be reached cannot revoke\n" +
			"anything: cloudless context rm forgets a context without that.",
		Example: "  cloudless logout\n  cloudless logout --context work",
		Args:    command.ExactArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			given, err := c.GivenToken()
			if err != nil {
				return err
			}
			var name string
			err = c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				_, err := cl.Logins().Logout(ctx, &cloudlessv1.LogoutRequest{})
				return err
			})(cmd, args)
			if err != nil && (given != nil || status.Code(err) != codes.Unauthenticated) {
				return err
			}
			if given != nil {
				return c.Printf("the token is revoked\n")
			}
			if name, err = c.currentContext(); err != nil {
				return err
			}
			if err := c.changeContext(name, func(config *client.Config) { config.Remove(name) }); err != nil || !c.ForPeople() {
				return err
			}
			return c.Printf("logged out; context %s is forgotten\n", name)
		},
	}
}

// currentContext is the name of the context that commands use.
func (c *commands) currentContext() (string, error) {
	path, err := c.ConfigPath()
	if err != nil {
		return "", err
	}
	config, err := client.LoadConfig(path)
	if err != nil {
		return "", err
	}
	where, err := config.Context(c.Context)
	return where.Name, err
}

// defaultPort is where servers listen if nobody says otherwise.
const defaultPort = "7700"

// addressOf reads an address such as 192.0.2.1:7700, or https://cloud.example, which has the usual port of servers.
func addressOf(text string) string {
	host, isURL := strings.CutPrefix(text, "https://")
	if !isURL {
		return text
	}
	host = strings.TrimRight(host, "/")
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), defaultPort)
}

// tokenOwner is the identity that a token belongs to.
type tokenOwner struct{ name, role string }

func (o tokenOwner) String() string {
	if o.role == "" {
		return o.name
	}
	return o.name + ", role " + o.role
}

// enter makes a context from the given token and the server at an address, after that server has accepted the token.
// Without a name the context gets the name of the token.
func (c *commands) enter(cmd *cobra.Command, address, name string) (client.Context, tokenOwner, error) {
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
	owner, err := c.identified(cmd.Context(), &made)
	if err != nil {
		return refuse(err)
	}
	if made.Name, err = c.nameFor(cmd.Context(), made, name, owner); err != nil {
		return refuse(err)
	}
	return made, owner, nil
}

// identified asks the cluster for the owner of a context's token, and puts the addresses of all servers and the lifetime of
// the token into the context.
func (c *commands) identified(ctx context.Context, where *client.Context) (tokenOwner, error) {
	cl, err := c.DialContext(ctx, *where)
	if err != nil {
		return tokenOwner{}, err
	}
	answer, err := cl.Cluster().WhoAmI(ctx, &cloudlessv1.WhoAmIRequest{})
	where.Addresses = cl.Addresses()
	if err := errors.Join(err, cl.Close()); err != nil {
		return tokenOwner{}, err
	}
	if answer.GetRenewable() && where.Until.IsZero() {
		// A token that was given belongs to this context from now on.
		where.Renews, where.Since = true, time.Now().UTC().Truncate(time.Second)
		where.Until = answer.GetExpireTime().AsTime().Truncate(time.Second)
	}
	id, err := identity.ParseID(answer.GetId())
	if err != nil {
		return tokenOwner{}, err
	}
	return tokenOwner{name: cmp.Or(answer.GetUser(), id.Name()), role: answer.GetRole()}, nil
}

// nameFor is the name to store a context under: the given one, or a free one after the token. It refuses to replace a
// context with a valid token of another owner: the context may be the only copy of that token.
func (c *commands) nameFor(ctx context.Context, made client.Context, name string, owner tokenOwner) (string, error) {
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
	current, err := c.identified(ctx, &have)
	switch {
	case status.Code(err) == codes.Unauthenticated, err == nil && current == owner:
		return name, nil
	case err != nil:
		return "", fmt.Errorf("find out whether the token of context %s still works: %w", name, err)
	}
	return "", fmt.Errorf("context %s holds a token that still works, of %s: %s%s", name, current, wayOut, name)
}

// storeContext writes a context to the client configuration.
func (c *commands) storeContext(made client.Context, use bool) error {
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

// sameAuthority reports whether contexts are of the same cluster, which may be replacing its authority.
func sameAuthority(a, b client.Context) bool {
	one, err := identity.ParseTrustPEM([]byte(a.CA))
	other, failed := identity.ParseTrustPEM([]byte(b.CA))
	return err == nil && failed == nil && a.Cluster == b.Cluster && one.Shares(other)
}
