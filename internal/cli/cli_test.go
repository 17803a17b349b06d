package cli

import (
	"bytes"
	"context"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/identity"
)

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.Short == "" || !strings.Contains(cmd.Example, cmd.CommandPath()) {
			t.Errorf("%s has no help or no example of its own", cmd.CommandPath())
		}
		path := append(strings.Fields(cmd.CommandPath())[1:], "--help")
		if got := runCLI(t.Context(), Options{}, path...); got.code != 0 || got.stderr != "" || !strings.Contains(got.stdout, "Examples:") {
			t.Errorf("%v: %+v", path, got)
		}
		for _, child := range cmd.Commands() {
			visit(child)
		}
	}
	visit(newCLI(Options{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard}).rootCommand())
}

func TestUsageErrors(t *testing.T) {
	t.Setenv(client.ConfigEnv, filepath.Join(t.TempDir(), "none"))
	for _, test := range []struct{ line, want string }{
		{"lgos web", `there is no command "lgos" under cloudless: did you mean logs?`},
		{"aplly -f x", `there is no command "aplly" under cloudless: did you mean apply?`},
		{"workload lst --wide", `there is no command "lst" under cloudless workload: did you mean ls?`},
		{"stop web", `there is no command "stop" under cloudless: did you mean cloudless down or cloudless workload rm or cloudless workload scale?`},
		{"start web", `there is no command "start" under cloudless: did you mean cloudless run or cloudless up?`},
		{"workload lst", `there is no command "lst" under cloudless workload: did you mean ls?`},
		{"ps --foo", "there is no flag --foo"},
		{"ps a b", `"b" is too much`},
		{"ps --all --watch", "exclude each other"},
		{"ps -o xml", `output format "xml" is not known: use table, json or yaml`},
		{"logs", "NAME is missing: cloudless logs NAME"},
		{"logs web --since yesterday", `--since: "yesterday" is not a time`},
		{"logs web --tail=-1", "--tail must not be negative"},
		{"run", "the program or image is missing"},
		{"run nginx extra", `"extra" is too much: write -- before the arguments`},
		{"run nginx -p 99999", "write numbers from 1 to 65535"},
		{"run nginx -e =x", "has no key"},
		{"run @ --replicas 1", "give one with --name"},
		{"exec web", "COMMAND is missing"},
		{"exec -- ls", "NAME is missing"},
		{"exec a b -- ls", `"b" is too much`},
		{"workload scale web many", `"many" is not a number of replicas`},
		{"workload scale web", "REPLICAS is missing"},
		{"workload rm", "NAME is missing"},
		{"token create", "--role is missing"},
		{"token create --role node --uses 0", "--uses 0 is of no use"},
		{"apply", "the file is missing"},
	} {
		got := runCLI(t.Context(), Options{}, strings.Fields(test.line)...)
		if got.code != 2 || got.stdout != "" || !strings.HasPrefix(got.stderr, "cloudless: ") || !strings.Contains(got.stderr, test.want) ||
			!strings.Contains(got.stderr, "\nSee: cloudless") || strings.Count(got.stderr, "\n") != 2 {
			t.Errorf("%s: %+v, want a usage error about %q", test.line, got, test.want)
		}
	}
}

// A noun in the plural asks for the list.
func TestPluralLists(t *testing.T) {
	c := newCluster(t)
	c.run(t.Context(), "", "run", "nginx", "-d")
	for plural, singular := range map[string]string{
		"images": "image", "nodes": "node", "workloads": "workload", "tokens": "token", "contexts": "context", "namespaces": "namespace", "ns": "namespace",
	} {
		want := c.run(t.Context(), "", singular, "ls")
		if got := c.run(t.Context(), "", plural); got.code != 0 || got.stdout == "" || strings.Contains(got.stdout, "Usage:") || got != want {
			t.Errorf("%s: %+v, want %+v", plural, got, want)
		}
		if got := c.run(t.Context(), "", plural, "--help"); !strings.Contains(got.stdout, "Available Commands") {
			t.Errorf("%s --help: %+v", plural, got)
		}
	}
	if got := c.run(t.Context(), "", "workloads", "-A"); got.code != 0 || !strings.HasPrefix(got.stdout, "NAMESPACE") {
		t.Errorf("with a flag of the list: %+v", got)
	}
	if got := c.run(t.Context(), "", "workloads", "get", "nginx"); got.code != 0 || !strings.Contains(got.stdout, "nginx") {
		t.Errorf("with a command: %+v", got)
	}
	if got := c.run(t.Context(), "", "nodes", "lst"); got.code != 2 || !strings.Contains(got.stderr, "did you mean ls?") {
		t.Errorf("with a mistake: %+v", got)
	}
}

func TestWithoutACluster(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	t.Setenv(client.ConfigEnv, path)
	runCLI(t.Context(), Options{}, "ps").expect(t, 1, "", "cloudless: no cluster is known yet: start one with: cloudless up, or log in to one with: cloudless login\n")
	runCLI(t.Context(), Options{}, "version").expect(t, 0,
		"Client:  v1.2.3\nServer:  not known: no cluster is known yet: start one with: cloudless up, or log in to one with: cloudless login\n", "")

	ca, err := identity.NewCA("gone", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	err = client.UpdateConfig(path, func(c *client.Config) error {
		c.Set(client.Context{Name: "gone", Addresses: []string{address}, Cluster: "gone", CA: string(ca.Trust().PEM()), Token: "t"})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	runCLI(t.Context(), Options{}, "ps").expect(t, 1, "",
		"cloudless: cannot reach the cluster at "+address+": is it running? start it with: cloudless up\n")
}

func TestVersionAsksTheServers(t *testing.T) {
	c := newCluster(t)
	c.run(t.Context(), "", "version").expect(t, 0, "Client:  v1.2.3\nServer:  v1.2.4 at box:7700\n", "")
	c.run(t.Context(), "", "version", "-o", "json").expect(t, 0,
		"{\n  \"client\": \"v1.2.3\",\n  \"servers\": [\n    {\n      \"address\": \"box:7700\",\n      \"version\": \"v1.2.4\"\n    }\n  ]\n}\n", "")
}

func TestContexts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	run := func(args ...string) result { return runCLI(t.Context(), Options{}, append(args, "--config", path)...) }
	run("context", "ls", "-o", "json").expect(t, 0, "{\n  \"items\": []\n}\n", "")
	err := client.UpdateConfig(path, func(c *client.Config) error {
		c.Set(client.Context{Name: "home", Addresses: []string{"h:1"}, Cluster: "c1", Token: "secret"})
		c.Set(client.Context{Name: "work", Addresses: []string{"w:1", "w:2"}, Cluster: "c2", Token: "secret"})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	run("context", "use", "work").expect(t, 0, "context work is now the current one\n", "")
	run("context", "ls").expect(t, 0,
		"CURRENT  NAME  ADDRESS   CLUSTER\n-        home  h:1       c1\n*        work  w:1, w:2  c2\n", "")
	run("context", "use", "wrok").expect(t, 1, "", "cloudless: context \"wrok\" does not exist; did you mean work?\n")
	if got := run("context", "ls", "-o", "yaml"); got.code != 0 || strings.Contains(got.stdout, "secret") || !strings.Contains(got.stdout, "current: true") {
		t.Errorf("%+v", got)
	}
	run("ps", "--context", "lost").expect(t, 1, "", "cloudless: context \"lost\" does not exist: there is home, work\n")
}

// After all servers have moved, --server names one of them once, and the context keeps it.
func TestServerFlagReplacesStaleAddresses(t *testing.T) {
	c := newCluster(t)
	config, err := client.LoadConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	where, err := config.Context("")
	if err != nil {
		t.Fatal(err)
	}
	now := where.Addresses[0]
	where.Addresses = []string{"127.0.0.1:1", "127.0.0.1:2"}
	if err := client.UpdateConfig(c.config, func(config *client.Config) error { config.Set(where); return nil }); err != nil {
		t.Fatal(err)
	}
	if got := c.run(t.Context(), "", "version"); !strings.Contains(got.stdout, "name one of them with --server ADDRESS") {
		t.Errorf("%+v", got)
	}
	if got := c.run(t.Context(), "", "ps", "--server", "nowhere"); got.code != 2 || !strings.Contains(got.stderr, `--server "nowhere" is not of the form host:port`) {
		t.Errorf("%+v", got)
	}
	for _, args := range [][]string{{"ps", "--server", now}, {"ps"}} {
		if got := c.run(t.Context(), "", args...); got.code != 0 {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

func TestInterruptHasItsOwnExitCode(t *testing.T) {
	c := newCluster(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := c.run(ctx, "", "ps"); got.code != 130 || got.stderr != "cloudless: interrupted\n" {
		t.Errorf("%+v", got)
	}
}

func TestStaleOutputIsMarked(t *testing.T) {
	c := newCluster(t)
	fresh, stale := c.run(t.Context(), "", "ps", "-o", "json"), c.run(t.Context(), "", "ps", "--stale", "-o", "json")
	if want := "This is what the server at " + c.address + " knows, and may be out of date.\n"; stale.stderr != want || stale.stdout != fresh.stdout || fresh.stderr == want {
		t.Errorf("%+v, want the note %q", stale, want)
	}
}

// result is the exit code and the output of a command line.
type result struct {
	code           int
	stdout, stderr string
}

func runCLI(ctx context.Context, o Options, args ...string) result {
	var stdout, stderr bytes.Buffer
	o.Args, o.Version = args, "v1.2.3"
	o.Stdout, o.Stderr = &stdout, &stderr
	if o.Stdin == nil {
		o.Stdin = strings.NewReader("")
	}
	code := Main(ctx, o)
	return result{code, stdout.String(), stderr.String()}
}

// expect compares a result with the expected one.
func (r result) expect(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if r.code != code || r.stdout != stdout || r.stderr != stderr {
		t.Errorf("exit code %d, want %d\nstdout:\n%s\nwant:\n%s\nstderr:\n%s\nwant:\n%s", r.code, code, r.stdout, stdout, r.stderr, stderr)
	}
}
