package cli

import (
	"context"
	"fmt"
	"os"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/identity"
)

// givenToken is an API token that the command line or the environment hands over. It counts before the context's token.
type givenToken struct {
	identity.APIToken
	source string // where it is from, for people
}

// givenToken reads --token-file, or else the environment. It is nil if neither is there. A token that was given and
// cannot be used is an error: nobody who hands over a token expects to call with another one.
func (c *cli) givenToken() (*givenToken, error) {
	var secret, source string
	fromEnv, inEnv := os.LookupEnv(TokenEnv)
	switch {
	case c.tokenFile.Changed:
		file := c.tokenFile.Value.String()
		if file == "" {
			return nil, fmt.Errorf("--token-file needs a value: the file that holds the token, - for standard input")
		}
		data, err := readTokenFile(file, c.Stdin)
		if err != nil {
			return nil, fmt.Errorf("read the token: %w", err)
		}
		if secret, source = strings.TrimSpace(string(data)), "--token-file "+file; secret == "" {
			return nil, fmt.Errorf("%s holds no token: write one into it", file)
		}
	case inEnv:
		if secret, source = strings.TrimSpace(fromEnv), "$"+TokenEnv; secret == "" {
			return nil, fmt.Errorf("%s is set and holds no token: put one into it, or unset it", source)
		}
	default:
		return nil, nil
	}
	token, err := identity.ParseAPIToken(secret)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	return &givenToken{APIToken: token, source: source}, nil
}

// where is the cluster to call, and with which token: the given one, or else that of the context.
func (c *cli) where(ctx context.Context) (client.Context, error) {
	path, err := c.configPath()
	if err != nil {
		return client.Context{}, err
	}
	config, err := client.LoadConfig(path)
	if err != nil {
		return client.Context{}, err
	}
	given, err := c.givenToken()
	if err != nil {
		return client.Context{}, err
	}
	if given == nil {
		where, err := config.Context(c.context)
		c.tokenSource = "context " + where.Name
		return where, err
	}
	c.tokenSource = given.source
	return c.whereWith(ctx, config, given)
}

// whereWith is the cluster of a given token: that of the context, or else the one of --server.
func (c *cli) whereWith(ctx context.Context, config *client.Config, given *givenToken) (client.Context, error) {
	known, err := config.Context(c.context)
	switch {
	case err == nil && known.Fits(given.APIToken):
		known.Token = given.Reveal()
		return known, nil
	case err != nil && c.context != "":
		return client.Context{}, err
	case c.context == "" && c.server != "":
		return client.Locate(ctx, c.server, given.Reveal())
	case err != nil:
		return client.Context{}, fmt.Errorf("the token in %s is for a cluster that is not known here: name one of its servers with --server ADDRESS, "+
			"or keep them with: cloudless login ADDRESS --token-file FILE", given.source)
	}
	return client.Context{}, fmt.Errorf("the token in %s is not for the cluster of context %s: %s", given.source, known.Name, fitting(config, given.APIToken))
}

// fitting is the way out for a token that does not fit the context.
func fitting(config *client.Config, token identity.APIToken) string {
	for _, other := range config.Contexts {
		if other.Fits(token) {
			return "choose context " + other.Name + " with --context " + other.Name
		}
	}
	return "choose its context with --context, or name one of its servers with --server ADDRESS"
}

// tokenUsed says which token a cluster refused, if it refused one.
func (c *cli) tokenUsed(err error) string {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied:
		if c.tokenSource != "" {
			return " (the token is from " + c.tokenSource + ")"
		}
	}
	return ""
}
