package app

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/checkup"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/doctor"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/must"
)

// TestServersOfAnotherCluster: an attended node fails if servers of another cluster answer at its servers' addresses. It
// retries if no command waits for it, or if its servers do not answer at all.
func TestServersOfAnotherCluster(t *testing.T) {
	t.Parallel()
	s := found(t)
	f := datadir.At(t.TempDir())
	ca, err := identity.NewCA("elsewhere", time.Now())
	must.Succeed(t, err)
	id, err := identity.NewID("elsewhere", identity.KindNode, "n-1")
	must.Succeed(t, err)
	key, csr, err := identity.NewKeyAndCSR()
	must.Succeed(t, err)
	chain, err := ca.Issue(csr, id, identity.IssueOptions{TTL: time.Hour, Client: true}, time.Now())
	must.Succeed(t, err)
	creds, err := identity.NewCredentials(key, chain)
	must.Succeed(t, err)
	must.Succeed(t, os.MkdirAll(f.Path("agent"), 0o700))
	must.Succeed(t, creds.Save(f.CredentialsPath()))

	waited := local.Process{DataDir: f.Path(), Version: "test", Log: io.Discard, Progress: quiet, Attended: true}
	must.Succeed(t, f.WriteMembership(datadir.Membership{Servers: []string{freeAddress(t)}, Node: "far"}))
	must.Succeed(t, checkServers(s.ctx, f, waited))
	seen := checkup.Servers(s.ctx, local.DoctorOptions{DataDir: f.Path()})
	if len(seen) != 1 || seen[0].Level != doctor.Warn || !strings.Contains(seen[0].Text, "nothing listens there") {
		t.Errorf("of servers that are away the doctor says %+v", seen)
	}
	must.Succeed(t, f.WriteMembership(datadir.Membership{Servers: []string{freeAddress(t), s.running["s1"].address}, Node: "far"}))
	must.Succeed(t, checkServers(s.ctx, f, local.Process{}))
	if seen := checkup.Servers(s.ctx, local.DoctorOptions{DataDir: f.Path()}); len(seen) != 1 || seen[0].Level != doctor.Warn {
		t.Errorf("of another cluster in their place the doctor says %+v", seen)
	}
	if seen := checkup.Servers(s.ctx, local.DoctorOptions{DataDir: t.TempDir()}); seen != nil {
		t.Errorf("of a machine that is no node the doctor says %+v", seen)
	}
	err = runAgent(s.ctx, local.AgentOptions{Process: waited})
	if err == nil || !strings.Contains(err.Error(), "the server at "+s.running["s1"].address+" belongs to another cluster than this machine, which is node far of cluster elsewhere") {
		t.Errorf("the agent ended with %v", err)
	}
}
