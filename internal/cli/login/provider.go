package login

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/oidc"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/identity"
)

// provider are the flags of a login at the OpenID provider of a cluster.
type provider struct {
	oidc, device bool
	fingerprint  string
}

// enter makes a context with the token that the cluster gives for an ID token of its provider.
func (o provider) enter(c *commands) func(cmd *cobra.Command, address, name string) (client.Context, tokenOwner, error) {
	return func(cmd *cobra.Command, address, name string) (client.Context, tokenOwner, error) {
		ctx := cmd.Context()
		refuse := func(err error) (client.Context, tokenOwner, error) { return client.Context{}, tokenOwner{}, err }
		if err := command.CheckAddress(cmd, "ADDRESS", address); err != nil {
			return refuse(err)
		}
		if given, err := c.GivenToken(); err != nil || given != nil {
			return refuse(errors.Join(err, command.Usagef(cmd, "--oidc gets a token by itself: leave --token-file and $%s out", command.TokenEnv)))
		}
		made, err := o.locate(ctx, c, address)
		if err != nil {
			return refuse(err)
		}
		token, err := o.exchange(ctx, c, made)
		if err != nil {
			return refuse(err)
		}
		made.TakeToken(token, time.Now())
		made.From = client.FromOidc
		owner, err := c.identified(ctx, &made)
		if err != nil {
			return refuse(err)
		}
		made.Name, err = c.nameFor(ctx, made, name, owner)
		return made, owner, err
	}
}

// locate finds out which cluster a server at an address is of, and whether the user means that one: before anything is sent
// there.
func (o provider) locate(ctx context.Context, c *commands, address string) (client.Context, error) {
	if o.fingerprint != "" {
		ca, err := identity.ParseFingerprint(o.fingerprint)
		if err != nil {
			return client.Context{}, fmt.Errorf("--fingerprint: %w", err)
		}
		return client.LocateBy(ctx, address, ca)
	}
	path, err := c.ConfigPath()
	if err != nil {
		return client.Context{}, err
	}
	config, err := client.LoadConfig(path)
	if err != nil {
		return client.Context{}, err
	}
	i := slices.IndexFunc(config.Contexts, func(known client.Context) bool { return slices.Contains(known.Addresses, address) })
	if i >= 0 {
		known := config.Contexts[i]
		return client.Context{Name: address, Addresses: []string{address}, Cluster: known.Cluster, CA: known.CA}, nil
	}
	found, ca, err := client.LocateUnknown(ctx, address)
	if err != nil {
		return client.Context{}, err
	}
	const compare = "compare it with what cloudless cluster status shows to somebody who uses the cluster"
	if !terminal.IsTerminal(c.Stdin) {
		return client.Context{}, fmt.Errorf("the cluster at %s is not known here: its authority has the fingerprint %s; %s, and give it by --fingerprint", address, ca, compare)
	}
	c.Note("The cluster at %s is not known here. Its authority has the fingerprint", address)
	c.Note("  %s", ca)
	fmt.Fprintf(c.Stderr, "%s.\nIs it the same? Type yes to go on: ", strings.ToUpper(compare[:1])+compare[1:])
	answer, err := bufio.NewReader(c.Stdin).ReadString('\n')
	if err != nil || strings.TrimSpace(answer) != "yes" {
		return client.Context{}, errors.New("the fingerprint was not confirmed, so nothing was sent")
	}
	return found, nil
}

// exchange lets the user log in at the provider, and gives the ID token to the cluster.
func (o provider) exchange(ctx context.Context, c *commands, where client.Context) (_ *cloudlessv1.CreateTokenResponse, err error) {
	methods, err := greet(ctx, where, func(logins cloudlessv1.LoginServiceClient) (*cloudlessv1.GetLoginMethodsResponse, error) {
		return logins.GetLoginMethods(ctx, &cloudlessv1.GetLoginMethodsRequest{})
	})
	if err != nil {
		return nil, err
	}
	if methods.GetOidcIssuer() == "" {
		return nil, fmt.Errorf("the cluster at %s has no OpenID provider: log in with a token, by --token-file, or have an admin name a provider with: cloudless cluster config set oidc.issuer=https://… oidc.clientId=…", where.Addresses[0])
	}
	asked := oidc.Options{
		Issuer: methods.GetOidcIssuer(), ClientID: methods.GetOidcClientId(), Scopes: methods.GetOidcScopes(), CA: methods.GetOidcCa(),
		Open: openBrowser, Say: func(line string) { c.Note("%s", line) },
	}
	if o.device || !hasBrowser() {
		asked.Open = nil
	}
	token, err := oidc.LogIn(ctx, asked)
	if err != nil {
		return nil, err
	}
	return greet(ctx, where, func(logins cloudlessv1.LoginServiceClient) (*cloudlessv1.CreateTokenResponse, error) {
		return logins.LoginOidc(ctx, &cloudlessv1.LoginOidcRequest{IdToken: token.ID, Nonce: token.Nonce})
	})
}

// greet makes a call without an identity, on a connection of its own: the server closes such a connection after a while.
func greet[T any](ctx context.Context, where client.Context, call func(cloudlessv1.LoginServiceClient) (T, error)) (answer T, err error) {
	cl, err := client.Greet(ctx, where)
	if err != nil {
		return answer, err
	}
	defer func() { err = errors.Join(err, cl.Close()) }()
	return call(cl.Logins())
}

// browserEnv names the environment variable with the program that shows a page.
const browserEnv = "BROWSER"

// hasBrowser reports whether this machine can probably show a page.
func hasBrowser() bool {
	if os.Getenv(browserEnv) != "" || runtime.GOOS == "darwin" || runtime.GOOS == "windows" {
		return true
	}
	_, err := exec.LookPath("xdg-open")
	return err == nil && (os.Getenv("DISPLAY") != "" || os.Getenv("WAYLAND_DISPLAY") != "")
}

// openBrowser shows a page.
func openBrowser(ctx context.Context, address string) error {
	command := []string{"xdg-open"}
	switch {
	case os.Getenv(browserEnv) != "":
		command = []string{os.Getenv(browserEnv)}
	case runtime.GOOS == "darwin":
		command = []string{"open"}
	case runtime.GOOS == "windows":
		command = []string{"rundll32", "url.dll,FileProtocolHandler"}
	}
	browser := exec.CommandContext(context.WithoutCancel(ctx), command[0], append(command[1:], address)...)
	if err := browser.Start(); err != nil {
		return err
	}
	go func() { _ = browser.Wait() }() // it may outlive the command
	return nil
}
