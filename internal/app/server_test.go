package app

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/enroll"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/nodenet"
)

// running is a server in this process.
type running struct {
	client *client.Client
	// stop ends it and returns the error of its end.
	stop func() error
}

func startServer(t *testing.T, path, config string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- runServer(ctx, local.ServerOptions{
			Process: local.Process{
				DataDir: path, Version: "test", Log: io.Discard, Progress: quiet, Ready: func(message string) { ready <- message },
			},
			Reach: local.Reach{APIAddr: "127.0.0.1:0"}, ConfigPath: config,
		})
	}()
	var said string
	select {
	case said = <-ready:
	case err := <-ended:
		cancel()
		t.Fatalf("the server ended before it was ready: %v", err)
	}
	contexts, err := client.LoadConfig(config)
	must.Succeed(t, err)
	_, after, _ := strings.Cut(said, "\ncontext ")
	name, _, _ := strings.Cut(after, " is in ")
	where, err := contexts.Context(name)
	must.Succeed(t, err)
	c, err := client.Dial(t.Context(), where)
	must.Succeed(t, err)
	stop := sync.OnceValue(func() error {
		_ = c.Close()
		cancel()
		return <-ended
	})
	t.Cleanup(func() { _ = stop() }) // before its folder is removed
	return &running{client: c, stop: stop}
}

func TestServerIsTheSameClusterAfterARestart(t *testing.T) {
	t.Parallel()
	path, config := t.TempDir(), filepath.Join(t.TempDir(), "config.yaml")
	first := startServer(t, path, config)
	before, err := first.client.Cluster().GetCluster(t.Context(), &v1.GetClusterRequest{})
	must.Succeed(t, err)
	if held := datadir.ReadHolder(path); held.PID != os.Getpid() || held.Address != before.GetStatus().GetServers()[0].GetAddress() {
		t.Errorf("the folder says that it is held by %+v", held)
	}
	err = runServer(t.Context(), local.ServerOptions{Process: local.Process{DataDir: path, Log: io.Discard, Progress: quiet}, Reach: local.Reach{APIAddr: "127.0.0.1:0"}})
	if _, ok := errors.AsType[*datadir.AlreadyRunningError](err); !ok {
		t.Errorf("a second server on the folder: %v", err)
	}
	// A request for another address is refused although a server runs here.
	err = runServer(t.Context(), local.ServerOptions{Process: local.Process{DataDir: path, Log: io.Discard, Progress: quiet}, Reach: local.Reach{APIAddr: "127.0.0.1:1"}})
	if err == nil || !strings.Contains(err.Error(), "to have it at 127.0.0.1:1, stop it first with: cloudless down") {
		t.Errorf("the same server at another address: %v", err)
	}
	must.Succeed(t, first.stop())

	again := startServer(t, path, config)
	after, err := again.client.Cluster().GetCluster(t.Context(), &v1.GetClusterRequest{})
	must.Succeed(t, err)
	if after.GetMetadata().GetUid() != before.GetMetadata().GetUid() || after.GetStatus().GetCaFingerprint() != before.GetStatus().GetCaFingerprint() {
		t.Errorf("after the restart it is %v, want %v", after, before)
	}
	// The working token in the configuration is used again, not joined by another one.
	tokens, err := again.client.Tokens().ListTokens(t.Context(), &v1.ListTokensRequest{})
	must.Succeed(t, err)
	if len(tokens.GetItems()) != 1 {
		t.Errorf("there are %d tokens", len(tokens.GetItems()))
	}
	must.Succeed(t, again.stop())
}

// A context with a viewer's token does not change when the server restarts.
func TestServerKeepsContextsOfOtherRoles(t *testing.T) {
	t.Parallel()
	path, config := t.TempDir(), filepath.Join(t.TempDir(), "config.yaml")
	first := startServer(t, path, config)
	made, err := first.client.Tokens().CreateToken(t.Context(), &v1.CreateTokenRequest{Role: "viewer", Name: "ci"})
	must.Succeed(t, err)
	viewer, err := client.Locate(t.Context(), first.client.Addresses()[0], made.GetSecret())
	must.Succeed(t, err)
	must.Succeed(t, first.stop())
	viewer.Name = "ci"
	must.Succeed(t, client.UpdateConfig(config, func(c *client.Config) error {
		*c = client.Config{Current: viewer.Name, Contexts: []client.Context{viewer}}
		return nil
	}))

	again := startServer(t, path, config)
	contexts, err := client.LoadConfig(config)
	must.Succeed(t, err)
	if kept, err := contexts.Context("ci"); err != nil || kept.Token != viewer.Token {
		t.Errorf("the viewer's context has become another one: %v", err)
	}
	if contexts.Current != "ci" {
		t.Errorf("the current context is %s", contexts.Current)
	}
	if me, err := again.client.Cluster().WhoAmI(t.Context(), &v1.WhoAmIRequest{}); err != nil || me.GetRole() != "admin" {
		t.Errorf("the server's own context is that of %v, %v", me, err)
	}
	must.Succeed(t, again.stop())
}

func TestMachineEnrollsAtTheServerOfItsToken(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), filepath.Join(t.TempDir(), "config.yaml"))
	defer func() { must.Succeed(t, s.stop()) }()
	made, err := s.client.Tokens().CreateToken(t.Context(), &v1.CreateTokenRequest{Role: "node"})
	must.Succeed(t, err)
	cluster, err := s.client.Cluster().GetCluster(t.Context(), &v1.GetClusterRequest{})
	must.Succeed(t, err)
	address := cluster.GetStatus().GetServers()[0].GetAddress()
	f, err := datadir.Open(t.TempDir())
	must.Succeed(t, err)
	defer f.Release()
	t.Cleanup(func() {
		must.Succeed(t, nodenet.Clear(enroll.NetworkOptions(f, slog.New(slog.DiscardHandler))))
		must.Succeed(t, os.RemoveAll(f.RunDir()))
		_ = os.Remove("/run/cloudless") // if there is no other cloud
	})

	join := func(f *datadir.Folder, token string, request datadir.NodeRequest) error {
		enrolls, err := enroll.Node(t.Context(), f, enroll.NodeOptions{
			Address: address, Token: token, Request: request, Progress: quiet, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return err
		}
		return enrolls()
	}

	// With a token of another cluster, the machine refuses the server before it sends anything.
	ca, err := identity.NewCA("other", time.Now())
	must.Succeed(t, err)
	foreign := identity.NewJoinToken(ca.Trust().Fingerprint()).Reveal()
	if err := join(f, foreign, datadir.NodeRequest{Name: "n1"}); err == nil {
		t.Error("the machine joined a cluster that its token does not name")
	}
	if err := join(f, "garbage", datadir.NodeRequest{Name: "n1"}); err == nil {
		t.Error("the machine joined with garbage")
	}
	must.Succeed(t, join(f, made.GetSecret(), datadir.NodeRequest{Name: "Machine One", Labels: map[string]string{"disk": "ssd"}}))
	creds, err := identity.LoadCredentials(f.CredentialsPath())
	must.Succeed(t, err)
	about, err := f.ReadMembership()
	must.Succeed(t, err)
	if about.Node != "machine-one" || len(about.Servers) != 1 || about.Servers[0] != address || creds.Trust().Cluster() != cluster.GetMetadata().GetUid() {
		t.Errorf("the machine is %+v with %v", about, creds)
	}
	node, err := s.client.Nodes().GetNode(t.Context(), &v1.GetNodeRequest{Name: "machine-one"})
	must.Succeed(t, err)
	if node.GetMetadata().GetLabels()["disk"] != "ssd" || node.GetMetadata().GetUid() != creds.ID().Name() {
		t.Errorf("the cluster knows it as %v", node)
	}
	other, err := datadir.Open(t.TempDir())
	must.Succeed(t, err)
	defer other.Release()
	if err := join(other, made.GetSecret(), datadir.NodeRequest{Name: "n2"}); err == nil || !strings.Contains(err.Error(), "used up") {
		t.Errorf("a token for one machine used again: %v", err)
	}
	if got := must.List(t, other.Path("agent")); got != "" {
		t.Errorf("a refused machine keeps %s", got)
	}
}

func TestAgentOfAMachineThatHasNotJoinedSaysWhatToDo(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	process := local.Process{DataDir: dir, Log: io.Discard, Progress: quiet}
	err := runAgent(t.Context(), local.AgentOptions{Process: process})
	if err == nil || !strings.Contains(err.Error(), "cloudless join ADDRESS --token TOKEN") {
		t.Errorf("ended with %v", err)
	}
	if err := join(t.Context(), local.JoinOptions{Process: process, Address: "127.0.0.1:1", Token: "nonsense"}); err == nil {
		t.Error("joined with nonsense")
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the data folder was made for nothing: %v", err)
	}
}

// A server restarts with its folder alone: it keeps its address and its election timeout unless flags change them.
func TestFolderRemembersHowItsServerWasStarted(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	for _, step := range []struct {
		about    string
		zone     *string
		election time.Duration
		want     planeOptions
	}{
		{"told", new("z3"), 2 * time.Second, planeOptions{zone: "z3", election: 2 * time.Second}},
		{"told nothing", nil, 0, planeOptions{zone: "z3", election: 2 * time.Second}},
		{"told otherwise", new("z4"), time.Second, planeOptions{zone: "z4", election: time.Second}},
		{"told that it has no zone", new(""), 0, planeOptions{election: time.Second}},
		{"told nothing again", nil, 0, planeOptions{election: time.Second}},
	} {
		f, err := datadir.Open(path)
		must.Succeed(t, err)
		told := asBefore(f, planeOptions{address: "127.0.0.1:0", election: step.election}, step.zone)
		if told.zone != step.want.zone || told.election != step.want.election {
			t.Errorf("%s: zone %q and %s", step.about, told.zone, told.election)
		}
		must.Succeed(t, startedAs(f, told))
		if f.Listen != "" {
			t.Errorf("%s: a port that is another one every time is remembered", step.about)
		}
		f.Release()
	}
}

// A server founds no cluster that no client could call.
func TestServerIsNotFoundedWithABrokenConfiguration(t *testing.T) {
	path, config := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "config.yaml")
	must.Succeed(t, os.WriteFile(config, nil, 0o644))
	did := ""
	err := runServer(t.Context(), local.ServerOptions{
		Process:    local.Process{DataDir: path, Log: io.Discard, Progress: func(doing string) { did += doing + ";" }, Ready: quiet},
		ConfigPath: config, Reach: local.Reach{APIAddr: "127.0.0.1:0"},
	})
	if err == nil || !strings.Contains(err.Error(), "chmod 600") || did != "" {
		t.Errorf("refused with %v after %q", err, did)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %s", must.List(t, path))
	}
}
