package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/identity"
)

// Token is an API token from the command line or the environment. It takes precedence over the context's token.
type Token struct {
	identity.APIToken
	source string // where it is from, for people
}

// GivenToken reads --token-file, or else the environment. It is nil if neither is set. A given token that cannot be used
// is an error: a command must not fall back to another token.
func (e *Env) GivenToken() (*Token, error) {
	var secret, source string
	fromEnv, inEnv := os.LookupEnv(TokenEnv)
	switch {
	case e.tokenFile.Changed:
		file := e.tokenFile.Value.String()
		if file == "" {
			return nil, fmt.Errorf("--token-file needs a value: the file that holds the token, - for standard input")
		}
		data, err := ReadTokenFile(file, e.Stdin)
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
	e.tokenSource = source
	return &Token{APIToken: token, source: source}, nil
}

// TokenFromStdin reports whether to read the token from standard input.
func (e *Env) TokenFromStdin() bool { return e.tokenFile.Value.String() == "-" }

// where is the cluster to call, with the given token or else the context's.
func (e *Env) where(ctx context.Context) (client.Context, error) {
	path, err := e.ConfigPath()
	if err != nil {
		return client.Context{}, err
	}
	config, err := client.LoadConfig(path)
	if err != nil {
		return client.Context{}, err
	}
	given, err := e.GivenToken()
	if err != nil {
		return client.Context{}, err
	}
	if given == nil {
		where, err := config.Context(e.Context)
		e.tokenSource, e.tokenFrom = "context "+where.Name, where.From
		if err == nil && where.Due(time.Now()) {
			return e.renewed(ctx, path, where), nil
		}
		return where, err
	}
	return e.whereWith(ctx, config, given)
}

// renewed is the context with a renewed token. Without one, the command goes on with the old token, which may still be valid,
// and otherwise is told so by the server.
func (e *Env) renewed(ctx context.Context, path string, where client.Context) client.Context {
	now, err := client.Renew(ctx, path, where.Name, client.WithDialOptions(e.tracing.DialOptions()...))
	if err == nil {
		return now
	}
	if code := status.Code(err); code != codes.Unauthenticated && code != codes.Unavailable {
		e.Note("%s; it ends at %s", client.Message(err), where.Until.Local().Format(time.DateTime))
	}
	return where
}

// whereWith is the cluster of a given token: that of the context, or else that of --server.
func (e *Env) whereWith(ctx context.Context, config *client.Config, given *Token) (client.Context, error) {
	known, err := config.Context(e.Context)
	switch {
	case err == nil && known.Fits(given.APIToken):
		known.Token, known.Renews, known.From = given.Reveal(), false, ""
		return known, nil
	case err != nil && e.Context != "":
		return client.Context{}, err
	case e.Context == "" && e.server != "":
		return client.Locate(ctx, e.server, given.Reveal())
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
func (e *Env) tokenUsed(err error) string {
	code := status.Code(err)
	switch {
	case e.tokenSource == "", code != codes.Unauthenticated && code != codes.PermissionDenied:
		return ""
	case code == codes.Unauthenticated && e.tokenFrom == client.FromUp:
		return " (the token is from " + e.tokenSource + ": restart cloudless up on the machine that wrote the context, with kill and cloudless up --detach, or systemctl restart cloudless: it writes a new one, and replicas keep running)"
	case code == codes.Unauthenticated && e.tokenFrom == client.FromOidc:
		return " (the token is from " + e.tokenSource + ": log in again with: cloudless login " + strings.Join(e.began.Addresses[:min(len(e.began.Addresses), 1)], "") + " --oidc)"
	}
	return " (the token is from " + e.tokenSource + ")"
}

// TokenEnv names the environment variable that holds the token: an API token, or a join token for cloudless join.
const TokenEnv = "CLOUDLESS_TOKEN"

func ReadTokenFile(file string, stdin io.Reader) ([]byte, error) {
	const most = 4 << 10
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		stdin = f
	}
	data, err := io.ReadAll(io.LimitReader(stdin, most+1))
	if err == nil && len(data) > most {
		err = errors.New("the file is too large to be a token")
	}
	return data, err
}
