package agent

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/spec"
)

// withSecrets makes a workload use a password in its environment and a certificate in a file.
func withSecrets(onChange string) func(*v1.WorkloadSpec) {
	return func(w *v1.WorkloadSpec) {
		w.Secrets = []*v1.SecretRef{
			{Name: "db-password", Env: "DB_PASSWORD"},
			{Name: "tls", Path: "/run/secrets/tls", Mode: "0440", OnChange: onChange},
		}
	}
}

// version is what a server sends of a secret.
func version(name string, number uint64, value string, replicas ...string) *v1.NodeSecret {
	return &v1.NodeSecret{Uid: "uid-" + name, Name: name, Version: number, Value: []byte(value), Replicas: replicas}
}

func (s *session) sendSecrets(t *testing.T, down *v1.SecretsDown) {
	t.Helper()
	if err := s.stream.Send(&v1.SessionDown{Message: &v1.SessionDown_Secrets{Secrets: down}}); err != nil {
		t.Fatal(err)
	}
}

// awaitApplied waits for acknowledgements, each as "secret version replica".
func (s *session) awaitApplied(t *testing.T, want ...string) {
	t.Helper()
	for len(want) > 0 {
		for _, a := range s.applied {
			got := fmt.Sprint(a.GetSecretUid(), " ", a.GetVersion(), " ", a.GetReplicaUid())
			want = slices.DeleteFunc(want, func(w string) bool { return w == got })
		}
		s.applied = nil
		if len(want) == 0 {
			return
		}
		select {
		case up := <-s.ups:
			s.keep(up.GetReport().GetReplicas())
			s.events = append(s.events, up.GetReport().GetEvents()...)
			s.applied = append(s.applied, up.GetSecrets().GetApplied()...)
		case <-s.stream.Context().Done():
			t.Fatalf("the session has ended before %q was acknowledged", want)
		}
	}
}

// file is the content of a file of a task, by the path that its program sees.
func (n *node) file(id, path string) string {
	n.t.Helper()
	n.tasks.mu.Lock()
	folders := n.tasks.byID[id].Folders
	n.tasks.mu.Unlock()
	data, err := os.ReadFile(filepath.Join(folders[filepath.Dir(path)], filepath.Base(path)))
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// variables is the file with the secret variables of a task.
func (n *node) variables(id string) string {
	n.t.Helper()
	n.tasks.mu.Lock()
	path := n.tasks.byID[id].SecretEnv
	n.tasks.mu.Unlock()
	data, err := os.ReadFile(path)
	if err != nil {
		n.t.Error(err)
	}
	return string(data)
}

func (n *node) signals() []string {
	n.tasks.mu.Lock()
	defer n.tasks.mu.Unlock()
	return slices.Clone(n.tasks.signals)
}

// secretNode is a node that can keep secrets, with a session.
func secretNode(t *testing.T) (*node, *session) {
	n := newNode(t)
	n.secrets = t.TempDir()
	n.start()
	return n, n.join()
}

func TestReplicaStartsWhenItsSecretsArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := secretNode(t)
		s.send(t, full(assignment("a", withSecrets(""))))
		waits := s.awaitStatus(t, "a", "waiting", func(status *v1.ReplicaStatus) bool { return status.GetReason() != "" })
		if waits.GetPhase() != spec.PhasePreparing || !strings.Contains(waits.GetReason(), "waits for secrets db-password, tls from a server") {
			t.Errorf("it is %s: %s", waits.GetPhase(), waits.GetReason())
		}
		s.sendSecrets(t, &v1.SecretsDown{Full: true, Secrets: []*v1.NodeSecret{version("db-password", 3, "hunter2", "a"), version("tls", 1, "one", "other")}})
		s.awaitStatus(t, "a", "waiting for one", func(status *v1.ReplicaStatus) bool {
			return strings.HasSuffix(status.GetReason(), "waits for secret tls from a server")
		})
		if len(n.tasks.started()) > 0 {
			t.Fatal("it was started without a secret")
		}
		before := time.Now()
		s.sendSecrets(t, &v1.SecretsDown{Secrets: []*v1.NodeSecret{version("tls", 1, "", "a", "other")}})
		if running := s.await(t, "a", spec.PhaseRunning); running.GetReason() != "" {
			t.Errorf("it runs, and the reason is %q", running.GetReason())
		}
		if took := time.Since(before); took > 0 {
			t.Errorf("it started %s later", took)
		}
		s.awaitApplied(t, "uid-db-password 3 a", "uid-tls 1 a")
		if got := n.variables("a-1"); got != `{"DB_PASSWORD":"hunter2"}` {
			t.Errorf("variables %s", got)
		}
		if got := n.file("a-1", "/run/secrets/tls"); got != "one" {
			t.Errorf("file %q", got)
		}
		if env := n.tasks.environment("a-1"); env["DB_PASSWORD"] != "" {
			t.Error("the secret is in what the driver stores")
		}
	})
}

func TestNewVersionReplacesTheFileAndTellsTheProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := secretNode(t)
		s.send(t, full(assignment("quiet", withSecrets("")), assignment("signal", withSecrets("signal")), assignment("restart", withSecrets("restart")),
			assignment("once", withSecrets("restart"), restart("never", "", ""))))
		all := []string{"quiet", "signal", "restart", "once"}
		s.sendSecrets(t, &v1.SecretsDown{Full: true, Secrets: []*v1.NodeSecret{version("db-password", 1, "hunter2", all...), version("tls", 1, "one", all...)}})
		for _, uid := range all {
			s.await(t, uid, spec.PhaseRunning)
		}
		s.sendSecrets(t, &v1.SecretsDown{Secrets: []*v1.NodeSecret{version("tls", 2, "two", all...)}})
		s.awaitApplied(t, "uid-tls 2 quiet", "uid-tls 2 signal", "uid-tls 2 restart", "uid-tls 2 once")
		synctest.Wait()
		for _, id := range []string{"quiet-1", "signal-1", "restart-2", "once-1"} {
			if got := n.file(id, "/run/secrets/tls"); got != "two" {
				t.Errorf("%s has %q", id, got)
			}
			if got := n.variables(id); !strings.Contains(got, "hunter2") {
				t.Errorf("%s has the variables %s", id, got)
			}
		}
		if got := n.signals(); len(got) != 1 || got[0] != "signal-1 SIGHUP" {
			t.Errorf("signals %q", got)
		}
		if got := n.tasks.stopped(); len(got) != 1 || got[0] != "restart-1 SIGTERM 10s" {
			t.Errorf("stops %q", got)
		}
		again := s.awaitStatus(t, "restart", "running again", func(status *v1.ReplicaStatus) bool {
			return status.GetPhase() == spec.PhaseRunning && status.GetLastExit() != nil
		})
		if again.GetRestarts() != 0 || !strings.Contains(again.GetLastExit().GetReason(), "secret tls has a new version") {
			t.Errorf("it counts as a failure: %v", again)
		}
		if _, err := os.Stat(filepath.Join(n.secrets, ".values", "uid-tls.1")); err == nil {
			t.Error("the old version is kept, although no replica gets it")
		}
	})
}

// A node without servers restarts replicas with the secrets that it has. After a reboot it has none, and says so.
func TestSecretsSurviveARestartOfTheAgentAndNoReboot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := secretNode(t)
		s.send(t, full(assignment("a", withSecrets("signal"))))
		s.sendSecrets(t, &v1.SecretsDown{Full: true, Secrets: []*v1.NodeSecret{version("db-password", 1, "hunter2", "a"), version("tls", 1, "one", "a")}})
		s.await(t, "a", spec.PhaseRunning)
		s.awaitApplied(t, "uid-db-password 1 a", "uid-tls 1 a")
		n.server.setAway(true)
		n.crash()
		n.start()
		n.tasks.exit("a-1", driver.Exit{Code: 1})
		n.tasks.awaitStart("a-2")
		if got := n.variables("a-2") + n.file("a-2", "/run/secrets/tls"); got != `{"DB_PASSWORD":"hunter2"}one` {
			t.Errorf("after a restart: %q", got)
		}
		synctest.Wait()
		n.server.setAway(false)
		s = n.join()
		s.awaitApplied(t, "uid-db-password 1 a", "uid-tls 1 a") // each session hears it
		n.server.setAway(true)
		n.stop()
		n.tasks.reboot()
		n.machine.boot, n.secrets = "boot-2", t.TempDir()
		n.start()
		time.Sleep(time.Minute)
		if r := n.agent.replica("a").report(); r.GetStatus().GetPhase() != spec.PhasePreparing || !strings.Contains(r.GetStatus().GetReason(), "waits for secrets db-password, tls from a server") {
			t.Errorf("after a reboot: %v", r)
		}
		n.server.setAway(false)
		s = n.join()
		s.sendSecrets(t, &v1.SecretsDown{Full: true, Secrets: []*v1.NodeSecret{version("db-password", 1, "hunter2", "a"), version("tls", 1, "one", "a")}})
		s.await(t, "a", spec.PhaseRunning)
	})
}

// The agent was away while a version came and the signal was due.
func TestInterruptedSignalIsSentAfterTheRestartOfTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := secretNode(t)
		s.send(t, full(assignment("a", withSecrets("signal"))))
		s.sendSecrets(t, &v1.SecretsDown{Full: true, Secrets: []*v1.NodeSecret{version("db-password", 1, "hunter2", "a"), version("tls", 1, "one", "a")}})
		s.await(t, "a", spec.PhaseRunning)
		synctest.Wait()
		n.driver.cut() // the signal fails
		s.sendSecrets(t, &v1.SecretsDown{Secrets: []*v1.NodeSecret{version("tls", 2, "two", "a")}})
		s.awaitApplied(t, "uid-tls 2 a")
		n.crash()
		if got := n.signals(); len(got) > 0 {
			t.Fatalf("signals %q", got)
		}
		n.start()
		n.join()
		n.until("signalled", func() bool { return slices.Equal(n.signals(), []string{"a-1 SIGHUP"}) })
	})
}

func TestExpiredVersionIsRemovedAndTheProgramGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := secretNode(t)
		s.send(t, full(assignment("a", withSecrets("restart"))))
		password, tls := version("db-password", 1, "hunter2", "a"), version("tls", 1, "one", "a")
		password.ExpireTime = timestamppb.New(time.Now().Add(time.Hour))
		tls.ExpireTime = password.ExpireTime
		s.sendSecrets(t, &v1.SecretsDown{Full: true, Secrets: []*v1.NodeSecret{password, tls}})
		s.await(t, "a", spec.PhaseRunning)
		synctest.Wait()
		for len(s.events) < 3 {
			up := <-s.ups
			s.events = append(s.events, up.GetReport().GetEvents()...)
		}
		reasons := map[string]int{}
		for _, e := range s.events {
			reasons[e.GetReason()]++
		}
		if reasons["SecretExpired"] != 2 || reasons["SecretLost"] != 1 {
			t.Errorf("events %v", s.events)
		}
		if got := n.file("a-1", "/run/secrets/tls"); !strings.Contains(got, "no such file") {
			t.Errorf("the file has %q", got)
		}
		if got := n.variables("a-1"); got != "{}" {
			t.Errorf("further processes get %s", got)
		}
		n.holds("hunter2", false)
		if got := n.tasks.stopped(); len(got) > 0 {
			t.Errorf("the program was stopped: %q", got)
		}
		n.tasks.exit("a-1", driver.Exit{Code: 1})
		s.awaitStatus(t, "a", "waiting", func(status *v1.ReplicaStatus) bool {
			return strings.Contains(status.GetReason(), "waits for another version of secret db-password, because version 1 has expired")
		})
	})
}

// holds checks whether anything in the node's folders has a value: its data, or its secrets.
func (n *node) holds(value string, want bool) {
	n.t.Helper()
	found := false
	for _, dir := range []string{n.dir, n.secrets} {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(path)
			if bytes.Contains(data, []byte(value)) {
				found = true
				if dir == n.dir {
					n.t.Errorf("%s has the secret, and may be on a disk", path)
				}
			}
			return err
		})
		if err != nil {
			n.t.Error(err)
		}
	}
	if found != want {
		n.t.Errorf("the node has %q: %t", value, found)
	}
}

func TestSecretsGoWithTheirReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := secretNode(t)
		s.send(t, full(assignment("a", withSecrets("")), assignment("b", withSecrets(""))))
		s.sendSecrets(t, &v1.SecretsDown{Full: true, Secrets: []*v1.NodeSecret{version("db-password", 1, "hunter2", "a", "b"), version("tls", 1, "one", "a", "b")}})
		s.await(t, "a", spec.PhaseRunning)
		s.await(t, "b", spec.PhaseRunning)
		n.holds("hunter2", true)
		s.send(t, delta(stopped(assignment("a", withSecrets("")))))
		s.await(t, "a", spec.PhaseStopped)
		synctest.Wait()
		if _, err := os.Stat(filepath.Join(n.secrets, "a")); err == nil {
			t.Error("the files of a stopped replica are left")
		}
		s.sendSecrets(t, &v1.SecretsDown{Removed: []string{"uid-tls"}})
		synctest.Wait()
		if got := n.file("b-1", "/run/secrets/tls"); !strings.Contains(got, "no such file") {
			t.Errorf("the removed secret is still in a file: %q", got)
		}
		s.sendSecrets(t, &v1.SecretsDown{Full: true})
		synctest.Wait()
		n.holds("hunter2", false)
		if got := n.tasks.ids(); !slices.Equal(got, []string{"b-1"}) {
			t.Errorf("tasks %q: a running program goes on without its secrets", got)
		}
	})
}

func TestServerThatWasLeftBehindTakesNoSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := secretNode(t)
		newer := full(assignment("a", withSecrets("")))
		newer.Epoch = 2
		s.send(t, newer)
		s.sendSecrets(t, &v1.SecretsDown{Full: true, Secrets: []*v1.NodeSecret{version("db-password", 1, "hunter2", "a"), version("tls", 1, "one", "a")}})
		s.await(t, "a", spec.PhaseRunning)
		s.send(t, full())
		s.sendSecrets(t, &v1.SecretsDown{Full: true})
		synctest.Wait()
		n.holds("hunter2", true)
	})
}

func TestUnusableSecretsSayWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := secretNode(t)
		s.send(t, full(assignment("binary", withSecrets(""), restart("never", "", "")), assignment("path", func(w *v1.WorkloadSpec) {
			w.Secrets, w.Restart = []*v1.SecretRef{{Name: "tls", Path: "/tls"}}, &v1.Restart{Policy: "never"}
		})))
		s.sendSecrets(t, &v1.SecretsDown{Full: true, Secrets: []*v1.NodeSecret{version("db-password", 1, "a\x00b", "binary"), version("tls", 1, "one", "binary", "path")}})
		if got := s.await(t, "binary", spec.PhaseFailed).GetReason(); !strings.Contains(got, "is not text, so it cannot be the variable DB_PASSWORD: use a path instead") {
			t.Errorf("reason %q", got)
		}
		if got := s.await(t, "path", spec.PhaseFailed).GetReason(); !strings.Contains(got, `"/tls"`) {
			t.Errorf("reason %q", got)
		}
		_ = n
	})
}

func TestNodeThatCannotKeepSecretsSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a", withSecrets("")), assignment("b")))
		s.sendSecrets(t, &v1.SecretsDown{Full: true})
		s.await(t, "b", spec.PhaseRunning)
		s.awaitStatus(t, "a", "held up", func(status *v1.ReplicaStatus) bool {
			return strings.Contains(status.GetReason(), "this node cannot keep secrets")
		})
	})
}
