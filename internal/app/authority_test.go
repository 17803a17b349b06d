package app

import (
	"context"
	"fmt"
	"io"
	"os"
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

// authority asks for the state of the cluster's keys.
func (s *testCluster) authority() *v1.AuthorityReport {
	s.t.Helper()
	for {
		report, err := client.Service(s.client, v1.NewAuthorityServiceClient).GetAuthority(s.ctx, &v1.GetAuthorityRequest{})
		if err == nil {
			return report
		}
		if !client.NoLeader(err) && s.ctx.Err() != nil {
			s.t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// untilAuthority waits until the keys satisfy a condition.
func (s *testCluster) untilAuthority(reached func(*v1.AuthorityReport) bool) *v1.AuthorityReport {
	s.t.Helper()
	for {
		report := s.authority()
		if reached(report) {
			return report
		}
		select {
		case <-s.ctx.Done():
			s.t.Fatalf("the keys never reached the state: %v", report)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// untilAuthorityAt is untilAuthority for one server, in place of all.
func (s *testCluster) untilAuthorityAt(o *testServer, reached func(*v1.AuthorityReport) bool) {
	s.t.Helper()
	all := s.client
	s.client = s.at(o)
	defer func() { s.client = all }()
	s.untilAuthority(reached)
}

func settled(r *v1.AuthorityReport) bool {
	return r.GetStep() == "" && r.GetKekStep() == "" && len(r.GetCertificates()) == 1
}

func (s *testCluster) rotate(request *v1.RotateAuthorityRequest) {
	s.t.Helper()
	_, err := client.Service(s.client, v1.NewAuthorityServiceClient).RotateAuthority(s.ctx, request)
	must.Succeed(s.t, err)
}

// TestKeysAreReplacedWithoutDowntime replaces both keys of three servers while a client writes: it never has to log in
// again, no write is refused for long, and what the old keys made is useless afterwards.
func TestKeysAreReplacedWithoutDowntime(t *testing.T) {
	t.Parallel()
	s := found(t)
	s.join("s2")
	s.join("s3")
	before := s.authority()
	stolen := s.passport(s.running["s2"]) // as of one who copied the folder of a server
	late := s.login(s.running["s1"], s.token("viewer"))
	lateJoin := s.token("server")
	must.Succeed(t, s.write(s.client, "before"))

	ctx, cancel := context.WithCancel(s.ctx)
	failed := make(chan []string)
	go func() {
		var all []string
		for n := 0; ctx.Err() == nil; n++ {
			if err := s.write(s.client, fmt.Sprintf("w-%d", n)); err != nil && ctx.Err() == nil {
				all = append(all, err.Error())
			}
		}
		failed <- all
	}()
	s.rotate(&v1.RotateAuthorityRequest{Ca: true, Kek: true})
	during := s.token("server") // it names the authority that stays
	after := s.untilAuthority(func(r *v1.AuthorityReport) bool {
		return settled(r) && r.GetCertificates()[0].GetFingerprint() != before.GetCertificates()[0].GetFingerprint() && r.GetKek() != before.GetKek()
	})
	cancel()
	if errs := <-failed; len(errs) > 0 {
		t.Errorf("%d writes failed, first: %s", len(errs), errs[0])
	}
	if after.GetSealed() != after.GetSealedTotal() || after.GetSealedTotal() == 0 {
		t.Errorf("%d of %d values are sealed by the new key", after.GetSealed(), after.GetSealedTotal())
	}
	for name, o := range s.running {
		if _, err := gossipKeyOf(s.ctx, s.call(stolen, o)); err == nil {
			t.Errorf("server %s accepts a certificate of the old authority", name)
		}
		kek, err := os.ReadFile(filepath.Join(o.path, "server", "kek.json"))
		must.Succeed(t, err)
		if strings.Count(string(kek), "\"keyId\"") != 1 {
			t.Errorf("server %s still has the old key-encryption key", name)
		}
	}
	// A client that has not called meanwhile follows, and knows the new authority then.
	c, err := client.Dial(s.ctx, late)
	must.Succeed(t, err)
	defer c.Close()
	if strings.TrimSpace(c.CA()) != strings.TrimSpace(after.GetCertificates()[0].GetCertificate()) {
		t.Error("the client does not know the new authority after a call")
	}
	// A token of before the rotation names an authority that is gone.
	err = join(s.ctx, local.JoinOptions{
		Process: local.Process{DataDir: t.TempDir(), Version: "test", Log: io.Discard, Progress: quiet, Ready: func(string) {}},
		Address: s.anyAddress(), Token: lateJoin, Role: "server", NoNode: true, Reach: local.Reach{APIAddr: freeAddress(t), Name: "late"},
	})
	if err == nil || !strings.Contains(err.Error(), "create a new token") {
		t.Errorf("a join token of before the rotation: %v", err)
	}
	s.start("s4", t.TempDir(), freeAddress(t), during)
	// A server restarts with what it has on disk.
	s2 := s.running["s2"]
	s.stop("s2")
	s.start("s2", s2.path, s2.address, "")
	s.until(func(all map[string]*v1.ServerStatus) bool { return all["s2"].GetHealthy() && all["s4"].GetHealthy() })
	if all := tokenNames(t, s.client, s.ctx); !slices.Contains(all, "before") {
		t.Error("what was written before is lost")
	}
}

// TestRemovedServersKeysAreReplaced: a server that is removed keeps copies of the keys, and they are worth nothing soon.
func TestRemovedServersKeysAreReplaced(t *testing.T) {
	t.Parallel()
	s := found(t)
	s.join("s2")
	removed := s.join("s3")
	if s.leader() == "s3" {
		_, err := s.client.Servers().TransferLeader(s.ctx, &v1.TransferLeaderRequest{To: "s1"})
		must.Succeed(t, err)
	}
	before := s.authority()
	stolen := s.passport(removed)
	_, err := s.client.Servers().DeleteServer(s.ctx, &v1.DeleteServerRequest{Name: "s3"})
	must.Succeed(t, err)
	after := s.untilAuthority(func(r *v1.AuthorityReport) bool {
		return settled(r) && r.GetCertificates()[0].GetFingerprint() != before.GetCertificates()[0].GetFingerprint() && r.GetKek() != before.GetKek()
	})
	if !strings.Contains(after.GetReason(), "s3") || !strings.Contains(after.GetKekReason(), "s3") {
		t.Errorf("the reasons do not name the server: %q, %q", after.GetReason(), after.GetKekReason())
	}
	s.removed("s3")
	if _, err := gossipKeyOf(s.ctx, s.call(stolen, s.running["s1"])); err == nil {
		t.Error("the stolen key is still good")
	}
	fresh := s.start("s4", t.TempDir(), freeAddress(t), s.token("server"))
	s.until(func(all map[string]*v1.ServerStatus) bool { return all[fresh.name].GetHealthy() })
}

// TestServerNeedsItsKeyEncryptionKey: without it, or with that of another cluster, a server does not start, and says
// what to do.
func TestServerNeedsItsKeyEncryptionKey(t *testing.T) {
	t.Parallel()
	s, other := found(t), found(t)
	o := s.running["s1"]
	foreign := filepath.Join(other.running["s1"].path, "server", "kek.json")
	s.stop("s1")
	path := filepath.Join(o.path, "server", "kek.json")
	own, err := os.ReadFile(path)
	must.Succeed(t, err)
	starts := func() error {
		return runServer(s.ctx, local.ServerOptions{
			Process: local.Process{DataDir: o.path, Version: "test", Log: io.Discard, Progress: quiet, Ready: func(string) { t.Error("it is ready") }},
			Reach:   local.Reach{APIAddr: o.address, Name: "s1"},
		})
	}
	must.Succeed(t, os.Remove(path))
	if err := starts(); err == nil || !strings.Contains(err.Error(), "is missing") || !strings.Contains(err.Error(), "from a backup") {
		t.Errorf("without the key: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("another key was made")
	}
	data, err := os.ReadFile(foreign)
	must.Succeed(t, err)
	must.Succeed(t, os.WriteFile(path, data, 0o600))
	if err := starts(); err == nil || !strings.Contains(err.Error(), "of another cluster") || !strings.Contains(err.Error(), "from a backup") {
		t.Errorf("with the key of another cluster: %v", err)
	}
	must.Succeed(t, os.WriteFile(path, own, 0o600))
	s.start("s1", o.path, o.address, "")
}
