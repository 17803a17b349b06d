package cli

import (
	"context"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/identity"
)

// adminSecret is the token in the context that newCluster writes.
const adminSecret = "clapi_secret"

// WhoAmI knows the bearer of the admin token, and takes any other token for a viewer's called ci.
func (c *cluster) WhoAmI(ctx context.Context, _ *cloudlessv1.WhoAmIRequest) (*cloudlessv1.WhoAmIResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	switch secret := strings.TrimPrefix(strings.Join(md.Get("authorization"), ""), "Bearer "); secret {
	case adminSecret:
		return &cloudlessv1.WhoAmIResponse{Id: "spiffe://test/user/root", Role: "admin"}, nil
	case c.revoked:
		return nil, status.Error(codes.Unauthenticated, "the API token is not valid")
	}
	if err := grpc.SetHeader(ctx, metadata.Pairs("x-cloudless-servers", c.address+",192.0.2.2:7700")); err != nil {
		return nil, err
	}
	return &cloudlessv1.WhoAmIResponse{Id: "spiffe://test/user/ci", Role: "viewer"}, nil
}

// token makes an API token of the cluster, and a file that holds it.
func (c *cluster) token(t *testing.T) (secret, file string) {
	t.Helper()
	secret = identity.NewAPIToken(c.ca.Fingerprint()).Reveal()
	return secret, tokenFile(t, secret+"\n")
}

func tokenFile(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// usedToken returns the token of the newest call.
func (c *cluster) usedToken() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.TrimPrefix(c.lastAuth, "Bearer ")
}

func TestLoginStoresAContextAndUsesIt(t *testing.T) {
	c := newCluster(t)
	secret, file := c.token(t)
	c.run(t.Context(), "", "login", c.address, "--token-file", file).expect(t, 0,
		"logged in at "+c.address+" as ci, role viewer; context ci is now the current one\n", "")

	config, err := client.LoadConfig(c.config) // refuses a file that others may read
	if err != nil {
		t.Fatal(err)
	}
	made, err := config.Context("")
	if err != nil {
		t.Fatal(err)
	}
	// The context also gets the other servers, for the time when this one is gone.
	if made.Name != "ci" || made.Token != secret || strings.Join(made.Addresses, " ") != c.address+" 192.0.2.2:7700" ||
		made.Cluster != "test" || made.CA != string(c.ca.PEM()) {
		t.Errorf("the context is %v with addresses %v", made, made.Addresses)
	}
	if before, err := config.Context("test"); err != nil || before.Token != adminSecret {
		t.Errorf("the admin's context has become %v, %v", before, err)
	}
	if got := c.run(t.Context(), "", "ps"); got.code != 0 || c.usedToken() != secret {
		t.Errorf("ps called with another token than the one that logged in: %+v", got)
	}
	c.run(t.Context(), "", "context", "use", "test").expect(t, 0, "context test is now the current one\n", "")
	c.run(t.Context(), "", "context", "rm", "ci").expect(t, 0, "context ci removed\n", "")
}

func TestContextAddLeavesTheCurrentContext(t *testing.T) {
	c := newCluster(t)
	_, file := c.token(t)
	c.run(t.Context(), "", "context", "add", "work", c.address, "--token-file", file).expect(t, 0,
		"context work added: ci, role viewer, at "+c.address+"; use it with: cloudless context use work\n", "")
	if got := c.run(t.Context(), "", "ps"); got.code != 0 || c.usedToken() != adminSecret {
		t.Errorf("the current context is another one: %+v", got)
	}
	if got := c.run(t.Context(), "", "ps", "--context", "work"); got.code != 0 || c.usedToken() == adminSecret {
		t.Errorf("the new context uses the admin's token: %+v", got)
	}
}

// A login with a lesser token does not replace the admin token.
func TestLoginReplacesOnlyInvalidTokens(t *testing.T) {
	c := newCluster(t)
	_, file := c.token(t)
	c.run(t.Context(), "", "login", c.address, "--token-file", file, "--context", "test").expect(t, 1, "",
		"cloudless: context test holds a token that still works, of root, role admin: choose another name, or remove it first with: cloudless context rm test\n")

	c.run(t.Context(), "", "login", c.address, "--token-file", file, "--context", "mine")
	config, err := client.LoadConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	mine, err := config.Context("mine")
	if err != nil {
		t.Fatal(err)
	}
	c.revoked = mine.Token
	fresh, file := c.token(t)
	if got := c.run(t.Context(), "", "login", c.address, "--token-file", file, "--context", "mine"); got.code != 0 {
		t.Errorf("a revoked token could not be replaced: %+v", got)
	}
	if got := c.run(t.Context(), "", "ps"); got.code != 0 || c.usedToken() != fresh {
		t.Errorf("the new token is not used: %+v", got)
	}

	other := newCluster(t)
	_, file = other.token(t)
	got := runCLI(t.Context(), Options{}, "login", other.address, "--token-file", file, "--context", "test", "--config", c.config)
	if got.code != 1 || !strings.Contains(got.stderr, "context test is of another cluster") {
		t.Errorf("a context of another cluster: %+v", got)
	}
}

func TestLoginVerifiesTheServerByTheToken(t *testing.T) {
	c, other := newCluster(t), newCluster(t)
	_, file := other.token(t)
	c.run(t.Context(), "", "login", c.address, "--token-file", file).expect(t, 1, "",
		"cloudless: cannot trust what answers at "+c.address+": the server does not belong to the cluster that the token is for: "+
			"check the address, or create a token in the cluster that is meant; a token of before the replacement of the certificate authority has ended, too: create a new token\n")
	if got := c.usedToken(); got != "" {
		t.Errorf("the token was sent to a server that had not proved itself: %s", got)
	}
}

func TestGivenTokenTakesPrecedenceOverContext(t *testing.T) {
	c := newCluster(t)
	byFlag, file := c.token(t)
	byEnv, _ := c.token(t)
	ps := func(args ...string) {
		t.Helper()
		if got := c.run(t.Context(), "", append([]string{"ps"}, args...)...); got.code != 0 {
			t.Errorf("%+v", got)
		}
	}
	if ps(); c.usedToken() != adminSecret {
		t.Error("without a token the context's counts")
	}
	t.Setenv(command.TokenEnv, byEnv)
	if ps(); c.usedToken() != byEnv {
		t.Error("the environment counts before the context")
	}
	if ps("--token-file", file); c.usedToken() != byFlag {
		t.Error("the flag counts before the environment")
	}
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	c.registry = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+byEnv {
			t.Errorf("%s %s came with another token", r.Method, r.URL)
		}
		images.ServeHTTP(w, r)
	})
	c.run(t.Context(), "", "image", "push", "hello:1", buildProgram(t, "arm64"))
	if used := c.usedToken(); used != byEnv {
		t.Errorf("a push used %s", used)
	}
	config, err := client.LoadConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	if where, err := config.Context(""); err != nil || where.Token != adminSecret {
		t.Errorf("a token for one command was written to the context: %v", err)
	}
}

// A script whose token is missing or damaged must not act as admin.
func TestGivenTokenNeverFallsBackToContext(t *testing.T) {
	c := newCluster(t)
	stranger, _ := newCluster(t).token(t)
	join := identity.NewJoinToken(c.ca.Fingerprint()).Reveal()
	for name, test := range map[string]struct {
		env  string
		args []string
		want string
	}{
		"an empty variable":          {env: " ", want: "$" + command.TokenEnv + " is set and holds no token: put one into it, or unset it"},
		"a damaged token":            {env: "clapi_x", want: "$" + command.TokenEnv + ": the API token is mistyped or cut off"},
		"a join token":               {env: join, want: "$" + command.TokenEnv + ": this is a join token"},
		"another cluster's token":    {env: stranger, want: "the token in $" + command.TokenEnv + " is not for the cluster of context test: choose its context with --context, or name one of its servers with --server ADDRESS"},
		"an empty flag":              {args: []string{"--token-file", ""}, want: "--token-file needs a value"},
		"a file that does not exist": {args: []string{"--token-file", "nowhere"}, want: "read the token: open nowhere"},
		"an empty file":              {args: []string{"--token-file", tokenFile(t, "\n")}, want: "holds no token"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.env != "" {
				t.Setenv(command.TokenEnv, test.env)
			}
			got := c.run(t.Context(), "", append([]string{"workload", "ls"}, test.args...)...)
			if got.code == 0 || got.stdout != "" || !strings.Contains(got.stderr, test.want) {
				t.Errorf("%+v, want %q", got, test.want)
			}
			if used := c.usedToken(); used != "" {
				t.Errorf("it called with %s", used)
			}
		})
	}
}

// A machine without a context, such as a build machine, needs only the address and the token.
func TestTokenAndServerNeedNoContext(t *testing.T) {
	c := newCluster(t)
	secret, _ := c.token(t)
	t.Setenv(command.TokenEnv, secret)
	nothing := filepath.Join(t.TempDir(), "config.yaml")
	run := func(args ...string) result {
		return runCLI(t.Context(), Options{}, append(args, "--config", nothing)...)
	}
	run("ps").expect(t, 1, "", "cloudless: the token in $"+command.TokenEnv+" is for a cluster that is not known here: "+
		"name one of its servers with --server ADDRESS, or keep them with: cloudless login ADDRESS --token-file FILE\n")
	if got := run("ps", "--server", c.address); got.code != 0 || c.usedToken() != secret {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(nothing); !os.IsNotExist(err) {
		t.Errorf("a single command has written a configuration: %v", err)
	}
}

func TestRefusalNamesTheUsedToken(t *testing.T) {
	c := newCluster(t)
	c.revoked = identity.NewAPIToken(c.ca.Fingerprint()).Reveal()
	file := tokenFile(t, c.revoked)
	got := c.run(t.Context(), "", "login", c.address, "--token-file", file)
	if want := "cloudless: the API token is not valid (the token is from --token-file " + file + ")\n"; got.code != 1 || got.stderr != want {
		t.Errorf("%+v, want %q", got, want)
	}
}

func TestLoginNeedsAToken(t *testing.T) {
	c := newCluster(t)
	if got := c.run(t.Context(), "", "login", c.address); got.code != 2 || !strings.Contains(got.stderr, "the token is missing") {
		t.Errorf("%+v", got)
	}
}
