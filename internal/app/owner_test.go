package app

import (
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/datadir/datadirtest"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/must"
)

const (
	oneCluster     = "11111111-1111-7111-8111-111111111111"
	anotherCluster = "22222222-2222-7222-8222-222222222222"
)

// contents returns all files of a folder with their content, except the file that names the
// process on it.
func contents(t *testing.T, path string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must.Succeed(t, filepath.WalkDir(path, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || name == filepath.Join(path, "lock") {
			return err
		}
		data, err := os.ReadFile(name)
		all[name] = string(data)
		return err
	}))
	return all
}

func TestServerIsRefusedInTheFolderOfANode(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	f, err := datadir.Open(path)
	must.Succeed(t, err)
	must.Succeed(t, f.BindCluster(oneCluster))
	datadirtest.Enroll(t, f, oneCluster, time.Now())
	f.Release()
	before := contents(t, path)
	process := local.Process{DataDir: path, Log: io.Discard, Progress: quiet, Ready: quiet}
	for name, start := range map[string]func() error{
		"server": func() error {
			return runServer(t.Context(), local.ServerOptions{Process: process, Reach: local.Reach{APIAddr: "127.0.0.1:0"}})
		},
		"up": func() error {
			return up(t.Context(), local.UpOptions{Process: process, Reach: local.Reach{APIAddr: "127.0.0.1:0"}})
		},
	} {
		err := start()
		if err == nil || !strings.Contains(err.Error(), "is that of a node of cluster "+oneCluster) || !strings.Contains(err.Error(), "--data-dir") {
			t.Errorf("%s: %v", name, err)
		}
		if after := contents(t, path); !maps.Equal(before, after) {
			t.Errorf("%s has changed the folder: it has %d files, and had %d", name, len(after), len(before))
		}
	}
}

func TestNodeIsRefusedInTheFolderOfAServer(t *testing.T) {
	t.Parallel()
	path, config := t.TempDir(), filepath.Join(t.TempDir(), "config.yaml")
	s := startServer(t, path, config)
	must.Succeed(t, s.stop())
	f, err := datadir.Open(path)
	must.Succeed(t, err)
	defer f.Release()
	if err := f.CheckNode(); err == nil || !strings.Contains(err.Error(), "holds the server of a cluster ("+f.Cluster+")") {
		t.Errorf("joined: %v", err)
	}
	must.Succeed(t, f.CheckServer())
}

// Join accepts a process that runs on the folder only if it is a node of the token's cluster.
func TestJoinIsRefusedWhileSomethingElseRunsOnTheFolder(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	f, err := datadir.Open(path)
	must.Succeed(t, err)
	defer f.Release()
	datadirtest.Enroll(t, f, oneCluster, time.Now())
	creds, err := identity.LoadCredentials(f.CredentialsPath())
	must.Succeed(t, err)
	ca, err := identity.NewCA(anotherCluster, time.Now())
	must.Succeed(t, err)
	try := func(ca identity.Fingerprint) error {
		return join(t.Context(), local.JoinOptions{
			Process: local.Process{DataDir: path, Log: io.Discard, Progress: quiet, Ready: quiet},
			Address: "127.0.0.1:1", Token: identity.NewJoinToken(ca).Reveal(),
		})
	}
	if _, ok := errors.AsType[*datadir.AlreadyRunningError](try(creds.Trust().Fingerprint())); !ok {
		t.Error("a node of the cluster runs there, and that is not said")
	}
	if err := try(ca.Trust().Fingerprint()); err == nil || !strings.Contains(err.Error(), "belongs to a node of another cluster ("+oneCluster+")") {
		t.Errorf("a node of another cluster runs there: %v", err)
	}
	must.Succeed(t, os.Mkdir(f.Path("server"), 0o700))
	if err := try(creds.Trust().Fingerprint()); err == nil || !strings.Contains(err.Error(), "holds the server of a cluster") {
		t.Errorf("a server runs there: %v", err)
	}
}

// The same holds for a server.
func TestServerIsRefusedWhileSomethingElseRunsOnTheFolder(t *testing.T) {
	t.Parallel()
	ca, err := identity.NewCA(anotherCluster, time.Now())
	must.Succeed(t, err)
	try := func(path string) error {
		return join(t.Context(), local.JoinOptions{
			Process: local.Process{DataDir: path, Log: io.Discard, Progress: quiet, Ready: quiet}, Role: "server", NoNode: true,
			Address: "127.0.0.1:1", Token: identity.NewJoinToken(ca.Trust().Fingerprint()).Reveal(),
		})
	}
	node, err := datadir.Open(t.TempDir())
	must.Succeed(t, err)
	defer node.Release()
	datadirtest.Enroll(t, node, anotherCluster, time.Now())
	if err := try(node.Path()); err == nil || !strings.Contains(err.Error(), "is that of a node of cluster "+anotherCluster) {
		t.Errorf("a node runs there: %v", err)
	}
	founded := t.TempDir()
	startServer(t, founded, filepath.Join(t.TempDir(), "config.yaml"))
	if err := try(founded); err == nil || !strings.Contains(err.Error(), "belongs to a server of another cluster") {
		t.Errorf("a server of another cluster runs there: %v", err)
	}
}

// A running process that lacks the server or the node is an error.
func TestUpIsRefusedWhileOnlyAServerOrANodeRuns(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		name         string
		server, node bool
		want         string
	}{
		{"only a server", true, false, "runs only the server of"},
		{"only a node", false, true, "runs only a node: data folder"},
		{"both", true, true, ""},
		{"older version", false, false, ""},
	} {
		f, err := datadir.Open(t.TempDir())
		must.Succeed(t, err)
		datadirtest.Enroll(t, f, oneCluster, time.Now())
		if one.name != "only a node" {
			must.Succeed(t, os.Mkdir(f.Path("server"), 0o700))
		}
		must.Succeed(t, f.UpdateHolder(func(h *datadir.Holder) { h.Server, h.Node = one.server, one.node }))
		err = up(t.Context(), local.UpOptions{Process: local.Process{DataDir: f.Path(), Log: io.Discard, Progress: quiet, Ready: quiet}})
		if _, running := errors.AsType[*datadir.AlreadyRunningError](err); running != (one.want == "") || !strings.Contains(err.Error(), one.want) {
			t.Errorf("%s: %v", one.name, err)
		}
		f.Release()
	}
}

// A process whose node was removed is not stopped for one that cannot start.
func TestRemovedNodeIsNotReplacedByAProcessThatCannotStart(t *testing.T) {
	t.Parallel()
	f, err := datadir.Open(t.TempDir())
	must.Succeed(t, err)
	defer f.Release()
	datadirtest.Enroll(t, f, oneCluster, time.Now())
	must.Succeed(t, os.Mkdir(f.Path("server"), 0o700))
	must.Succeed(t, f.WriteMembership(datadir.Membership{Servers: []string{"127.0.0.1:1"}, Node: "box", Removed: true, Requested: &datadir.NodeRequest{}}))
	must.Succeed(t, f.UpdateHolder(func(h *datadir.Holder) {
		*h = datadir.Holder{PID: os.Getpid(), Server: true, Node: true, NodeRemoved: true, Address: "127.0.0.1:1"}
	}))
	config := filepath.Join(t.TempDir(), "config.yaml")
	must.Succeed(t, os.WriteFile(config, nil, 0o644))
	for want, o := range map[string]local.UpOptions{
		"labels":                      {Machine: local.Machine{Labels: map[string]string{"a b": "c"}}},
		"--containerd-address cannot": {Machine: local.Machine{ContainerdAddress: "/no.sock"}},
		"to have it at 127.0.0.1:2":   {Reach: local.Reach{APIAddr: "127.0.0.1:2"}},
		"chmod 600":                   {Machine: local.Machine{Name: "other"}, ConfigPath: config},
	} {
		o.Process = local.Process{DataDir: f.Path(), Log: io.Discard, Progress: quiet, Ready: quiet}
		if err := up(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// The running process has lost its node, and does not make this machine a new one.
func TestJoinIsRefusedWhileTheFormerNodeRuns(t *testing.T) {
	t.Parallel()
	f, err := datadir.Open(t.TempDir())
	must.Succeed(t, err)
	defer f.Release()
	datadirtest.Enroll(t, f, oneCluster, time.Now().Add(-48*time.Hour)) // for a day
	creds, err := identity.LoadCredentials(f.CredentialsPath())
	must.Succeed(t, err)
	err = join(t.Context(), local.JoinOptions{
		Process: local.Process{DataDir: f.Path(), Log: io.Discard, Progress: quiet, Ready: quiet},
		Address: "127.0.0.1:1", Token: identity.NewJoinToken(creds.Trust().Fingerprint()).Reveal(),
	})
	if err == nil || !strings.Contains(err.Error(), "its certificate has ended: stop it first with: cloudless down --data-dir "+f.Path()) {
		t.Errorf("joined: %v", err)
	}
}
