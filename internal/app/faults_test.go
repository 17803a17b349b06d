package app

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/must"
)

// untilProblem waits until the cluster reports a problem.
func (s *testCluster) untilProblem(want string) {
	s.t.Helper()
	for {
		cluster, err := s.client.Cluster().GetCluster(s.ctx, &v1.GetClusterRequest{})
		problems := strings.Join(cluster.GetStatus().GetProblems(), "\n")
		if err == nil && strings.Contains(problems, want) {
			return
		}
		select {
		case <-s.ctx.Done():
			s.t.Fatalf("never said: %q; last was %q, %v", want, problems, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// TestClockFiveMinutesOff: a wrong clock on any server breaks nothing, and the cluster reports it.
func TestClockFiveMinutesOff(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{5 * time.Minute, -5 * time.Minute} {
		t.Run(off.String(), func(t *testing.T) {
			s := found(t)
			s.off = map[string]time.Duration{"s2": off}
			s.join("s2")
			s.join("s3")
			must.Succeed(t, s.write(s.client, "before"))
			word := map[bool]string{true: "ahead of", false: "behind"}[off > 0]
			if s.leader() != "s2" {
				s.untilProblem("the clock of server s2 is 5m " + word + " that of server ")
			}

			// It leads, creates tokens, and lets others join with them and with certificates that it issues.
			_, err := s.client.Servers().TransferLeader(s.ctx, &v1.TransferLeaderRequest{To: "s2"})
			must.Succeed(t, err)
			s.untilProblem("differ from that of server s2, which leads, and is about 5m")
			must.Succeed(t, s.write(s.at(s.running["s3"]), "during"))
			token := s.token("server")
			s.start("s4", t.TempDir(), freeAddress(t), token)
			s.until(func(all map[string]*v1.ServerStatus) bool { return all["s4"].GetHealthy() })
			admin, err := s.client.Tokens().CreateToken(s.ctx, &v1.CreateTokenRequest{Role: "admin", Ttl: "1h"})
			must.Succeed(t, err)
			for _, o := range s.running { // a token of one clock is valid by the others
				c := s.as(o, admin.GetSecret())
				if all := tokenNames(t, c, s.ctx); !slices.Contains(all, "before") || !slices.Contains(all, "during") {
					t.Errorf("server %s knows %v", o.name, all)
				}
			}

			// The others lead again, and its writes are there.
			_, err = s.client.Servers().TransferLeader(s.ctx, &v1.TransferLeaderRequest{To: "s3"})
			must.Succeed(t, err)
			must.Succeed(t, s.write(s.client, "after"))
			s.untilProblem("the clock of server s2 is 5m " + word + " that of server s3, which leads")
		})
	}
}

// as returns a client of one server alone that calls with a token.
func (s *testCluster) as(o *testServer, token string) *client.Client {
	s.t.Helper()
	contexts, err := client.LoadConfig(s.config)
	must.Succeed(s.t, err)
	where, err := contexts.Context("")
	must.Succeed(s.t, err)
	where.Addresses, where.Token = []string{o.address}, token
	c, err := client.Dial(s.ctx, where)
	must.Succeed(s.t, err)
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestCopyOfAServer: a second process on a copy of a server's folder may not join. The process and the cluster say why.
// Once the original has stopped, the copy counts as that server, which has moved.
func TestCopyOfAServer(t *testing.T) {
	t.Parallel()
	s := found(t)
	s.join("s2")
	original := s.join("s3")
	s.stop("s3")
	copied := t.TempDir()
	if out, err := exec.Command("cp", "-a", original.path+"/.", copied).CombinedOutput(); err != nil {
		t.Fatalf("copy: %v\n%s", err, out)
	}
	s.start("s3", original.path, original.address, "")
	s.until(func(all map[string]*v1.ServerStatus) bool { return all["s3"].GetHealthy() && all["s3"].GetVoter() })

	elsewhere := freeAddress(t)
	second := func() error {
		return runServer(s.ctx, local.ServerOptions{
			Process: local.Process{DataDir: copied, Version: "test", Log: io.Discard, Progress: quiet, Ready: func(string) { t.Error("it is ready") }},
			Reach:   local.Reach{APIAddr: elsewhere},
		})
	}
	for _, leader := range []string{"s1", "s3"} { // also when the copied server leads
		_, err := s.client.Servers().TransferLeader(s.ctx, &v1.TransferLeaderRequest{To: leader})
		must.Succeed(t, err)
		err = second()
		if err == nil || !strings.Contains(err.Error(), "is a copy of that of a server which runs at "+original.address) || strings.Contains(err.Error(), "\n") {
			t.Errorf("the copy ended with %v", err)
		}
		s.untilProblem("a copy of the data folder of server s3 was started at " + elsewhere + " and turned away")
		must.Succeed(t, s.write(s.client, "while-"+leader+"-leads"))
	}

	s.stop("s3")
	s.start("s3", copied, elsewhere, "")
	s.until(func(all map[string]*v1.ServerStatus) bool {
		return all["s3"].GetAddress() == elsewhere && all["s3"].GetHealthy() && all["s3"].GetVoter()
	})
	if all := tokenNames(t, s.at(s.running["s3"]), s.ctx); !slices.Contains(all, "while-s3-leads") {
		t.Errorf("it knows %v", all)
	}
}

// TestCopyOfTheOnlyServer: the copy can ask only its original, at the address that the original had.
func TestCopyOfTheOnlyServer(t *testing.T) {
	t.Parallel()
	s := found(t)
	original := s.running["s1"]
	s.leader()
	s.stop("s1")
	copied := t.TempDir()
	if out, err := exec.Command("cp", "-a", original.path+"/.", copied).CombinedOutput(); err != nil {
		t.Fatalf("copy: %v\n%s", err, out)
	}
	s.start("s1", original.path, original.address, "")
	elsewhere := freeAddress(t)
	err := runServer(s.ctx, local.ServerOptions{
		Process: local.Process{DataDir: copied, Version: "test", Log: io.Discard, Progress: quiet, Ready: func(string) { t.Error("it is ready") }},
		Reach:   local.Reach{APIAddr: elsewhere},
	})
	if err == nil || !strings.Contains(err.Error(), "is a copy of that of a server which runs at "+original.address) ||
		!strings.Contains(err.Error(), "remove this copy with: cloudless down --purge --data-dir "+copied) {
		t.Errorf("the copy ended with %v", err)
	}
	s.untilProblem("a copy of the data folder of server s1 was started at " + elsewhere + " and turned away")
	must.Succeed(t, s.write(s.client, "kept"))

	// Once the original has stopped, the copy counts as that server, which has moved.
	s.stop("s1")
	s.start("s1", copied, elsewhere, "")
	must.Succeed(t, s.write(s.at(s.running["s1"]), "moved"))
}

// TestSecondBootstrap: a server does not found a second cluster in a folder that has one.
func TestSecondBootstrap(t *testing.T) {
	t.Parallel()
	s := found(t)
	founded := s.running["s1"]
	must.Succeed(t, s.write(s.client, "kept"))
	before, err := s.client.Cluster().GetCluster(s.ctx, &v1.GetClusterRequest{})
	must.Succeed(t, err)

	// While the server runs, a second process is refused; after it has stopped, a new process continues as that server.
	err = runServer(s.ctx, local.ServerOptions{
		Process: local.Process{DataDir: founded.path, Version: "test", Log: io.Discard, Progress: quiet, Ready: func(string) { t.Error("it is ready") }},
		Reach:   local.Reach{APIAddr: freeAddress(t)},
	})
	if err == nil || !strings.Contains(err.Error(), "runs on "+founded.path+" already") {
		t.Errorf("the second process ended with %v", err)
	}
	s.stop("s1")
	s.start("s1", founded.path, founded.address, "")
	after, err := s.client.Cluster().GetCluster(s.ctx, &v1.GetClusterRequest{})
	must.Succeed(t, err)
	if after.GetMetadata().GetUid() != before.GetMetadata().GetUid() || !slices.Contains(tokenNames(t, s.client, s.ctx), "kept") {
		t.Errorf("it was cluster %s and is %s", before.GetMetadata().GetUid(), after.GetMetadata().GetUid())
	}
}

// TestTakenAddress: a server that cannot listen leaves nothing behind that would disturb the next attempt.
func TestTakenAddress(t *testing.T) {
	t.Parallel()
	s := found(t)
	path := filepath.Join(t.TempDir(), "data")
	process := local.Process{DataDir: path, Version: "test", Log: io.Discard, Progress: quiet, Ready: func(string) { t.Error("it is ready") }}
	taken := s.running["s1"].address
	for what, err := range map[string]error{
		"server": runServer(s.ctx, local.ServerOptions{Process: process, Reach: local.Reach{APIAddr: taken}}),
		"up":     up(s.ctx, local.UpOptions{Process: process, Reach: local.Reach{APIAddr: taken}}),
	} {
		if err == nil || !strings.Contains(err.Error(), "is used by another process: stop that one, or listen on another with --api-addr") {
			t.Errorf("%s ended with %v", what, err)
		}
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("something is left: %v", err)
	}
}
