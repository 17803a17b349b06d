package local

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// TestMain lets the test program be the child of --detach. It ignores the clusters that the environment of the
// developer names.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(childMain())
	}
	for _, name := range []string{command.ContextEnv, client.ConfigEnv, DataDirEnv, command.TokenEnv, telemetry.OTLPEndpointEnv} {
		if err := os.Unsetenv(name); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// localResult is the outcome of a command line.
type result struct {
	code           int
	stdout, stderr string
}

func (r result) expect(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if want := (result{code, stdout, stderr}); r != want {
		t.Errorf("got %+v\nwant %+v", r, want)
	}
}

// localRoot is a command line that has only the commands for this machine.
func localRoot(env *command.Env, roles Roles) *cobra.Command {
	again := func(env *command.Env) *cobra.Command { return localRoot(env, roles) }
	c, root := New(env, roles, again), env.NewRoot()
	command.Add(root, command.GroupMachine, c.Up(), c.Server(), c.Agent(), c.Join(), c.Down(),
		c.Install(), c.Uninstall(), c.Doctor())
	return root
}

func runLocal(ctx context.Context, roles Roles, args ...string) result {
	return runLocalWith(ctx, strings.NewReader(""), roles, args...)
}

func runLocalWith(ctx context.Context, stdin io.Reader, roles Roles, args ...string) result {
	var stdout, stderr bytes.Buffer
	env := &command.Env{Stdin: stdin, Stdout: &stdout, Stderr: &stderr, Version: "v1.2.3"}
	code := env.Execute(ctx, localRoot(env, roles), args)
	return result{code, stdout.String(), stderr.String()}
}
