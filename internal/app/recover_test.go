package app

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/maintenance"
	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/server/membership"
)

// endsRemoved waits until a server has ended because it learned that it was removed.
func (s *testCluster) endsRemoved(name string) {
	s.t.Helper()
	o := s.running[name]
	delete(s.running, name)
	select {
	case err := <-o.ended:
		if !errors.Is(err, membership.ErrRemoved) {
			s.t.Errorf("server %s ended with %v", name, err)
		}
	case <-s.ctx.Done():
		s.t.Errorf("server %s goes on: %v", name, o.stop())
	}
}

// TestLostServersUndoNothing: two of three servers count as lost, and the third is recovered and writes. Then the two
// return while it is away. They are a majority of the old cluster, but not members of the recovered one: its acknowledged
// writes stay, and the two exit.
func TestLostServersUndoNothing(t *testing.T) {
	t.Parallel()
	s := found(t)
	lost := []*testServer{s.running["s1"], s.join("s2")}
	left := s.join("s3")
	must.Succeed(t, s.write(s.client, "before"))
	passport := s.passport(lost[1])
	s.stop("s1")
	s.stop("s2")
	s.stop("s3")
	s.recover(left.path)

	left = s.start("s3", left.path, left.address, "")
	must.Succeed(t, s.write(s.at(left), "alone"))
	s.stop("s3")
	for _, o := range lost {
		s.start(o.name, o.path, o.address, "")
	}
	must.Succeed(t, s.write(s.at(s.running["s2"]), "elsewhere")) // they have a quorum

	left = s.start("s3", left.path, left.address, "")
	// They know the keys, so the recovered cluster has replaced them.
	s.untilAuthorityAt(left, settled)
	_, err := gossipKeyOf(s.ctx, s.call(passport, left))
	if err == nil || !strings.Contains(err.Error(), "has replaced its certificate authority") {
		t.Errorf("a lost server is answered with %v", err)
	}
	s.endsRemoved("s1")
	s.endsRemoved("s2")
	if all := tokenNames(t, s.at(left), s.ctx); !slices.Contains(all, "before") || !slices.Contains(all, "alone") || slices.Contains(all, "elsewhere") {
		t.Errorf("there is %v", all)
	}
	cluster, err := s.at(left).Cluster().GetCluster(s.ctx, &v1.GetClusterRequest{})
	must.Succeed(t, err)
	if all := cluster.GetStatus().GetServers(); len(all) != 1 || all[0].GetName() != "s3" || !all[0].GetLeader() {
		t.Errorf("the servers are %v", all)
	}
	s.join("s4")
}

// TestRecoveryIsMarked before anything changes, and until the others are removed.
func TestRecoveryIsMarked(t *testing.T) {
	t.Parallel()
	s := found(t)
	s.join("s2")
	left := s.running["s1"]
	s.stop("s2")
	s.stop("s1")
	marked := func() bool {
		id, err := datadir.ReadRecord(left.path)
		must.Succeed(t, err)
		return id.Recovered
	}
	f, err := datadir.OpenExisting(left.path)
	must.Succeed(t, err)
	must.Succeed(t, f.Update(func(id *datadir.Record) { id.Recovered = true })) // recover was interrupted here
	f.Release()
	s.start("s1", left.path, left.address, "")
	s.stop("s1")
	if marked() {
		t.Error("a server that was not recovered does not believe the others")
	}

	for range 2 { // twice does no harm
		s.recover(left.path)
		if !marked() {
			t.Error("the folder does not say that its server was recovered")
		}
	}
	s.start("s1", left.path, left.address, "")
	if marked() {
		t.Error("the mark stays")
	}
	if all := s.servers(); !slices.Equal(all, []string{"s1"}) {
		t.Errorf("the servers are %v", all)
	}
}

// TestRecoveryIsRefusedWhileAnotherServerLeads, because it would split the cluster. The folder does not change.
func TestRecoveryIsRefusedWhileAnotherServerLeads(t *testing.T) {
	t.Parallel()
	s := found(t)
	s.join("s2")
	left := s.join("s3")
	refused := func(words ...string) {
		t.Helper()
		_, err := maintenance.Recover(s.ctx, local.RecoverOptions{DataDir: left.path, Log: io.Discard})
		for _, word := range append(words, "is not lost") {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("recovering ends with %v, which does not say %q", err, word)
			}
		}
		if id, err := datadir.ReadRecord(left.path); err != nil || id.Recovered {
			t.Errorf("the folder is marked: %v, %v", id.Recovered, err)
		}
	}
	s.stop("s3")
	refused("leads the cluster", "cloudless server --data-dir "+left.path)
	s.start("s3", left.path, left.address, "")
	s.stop("s3")
	_, err := s.client.Servers().DeleteServer(s.ctx, &v1.DeleteServerRequest{Name: "s3"})
	must.Succeed(t, err)
	refused("was removed from the cluster", "cloudless down --purge --data-dir "+left.path)
	// The remaining servers have no quorum, so they count as lost.
	second := s.running["s2"]
	s.stop("s1")
	s.stop("s2")
	s.recover(second.path)
}

// TestRecoveryIsRefusedWhileANewerServerLeads: a server was away while others joined and moved. None of the servers that
// it knows leads, but each of them knows the leader and says so, at its new address.
func TestRecoveryIsRefusedWhileANewerServerLeads(t *testing.T) {
	t.Parallel()
	s := found(t)
	moved := s.join("s2")
	away := s.join("s3")
	s.stop("s2")
	elsewhere := freeAddress(t)
	s.start("s2", moved.path, elsewhere, "")
	s.until(func(all map[string]*v1.ServerStatus) bool {
		return all["s2"].GetAddress() == elsewhere && all["s2"].GetHealthy() && all["s3"].GetHealthy()
	})
	s.stop("s3")
	must.Succeed(t, os.RemoveAll(filepath.Join(away.path, "server", "raft", "snapshots"))) // a kill leaves none
	s.join("s4")
	_, err := s.client.Servers().TransferLeader(s.ctx, &v1.TransferLeaderRequest{To: "s4"})
	must.Succeed(t, err)
	refused := func(when string) {
		t.Helper()
		_, err := maintenance.Recover(s.ctx, local.RecoverOptions{DataDir: away.path, Log: io.Discard})
		if err == nil || !strings.Contains(err.Error(), "is not lost: it leads the cluster, or knows the leader") {
			t.Errorf("%s recovering ends with %v", when, err)
		}
	}
	refused("beside a leader that it has never heard of")
	s.stop("s1")
	refused("where the only one that it knows has moved")
}

// servers returns the names of the cluster's servers.
func (s *testCluster) servers() []string {
	s.t.Helper()
	var all []string
	answer, err := s.client.Servers().ListServers(s.ctx, &v1.ListServersRequest{})
	must.Succeed(s.t, err)
	for _, one := range answer.GetItems() {
		all = append(all, one.GetMetadata().GetName())
	}
	return all
}

// TestServerRemovedWhileAway: when it starts, the server says that it was removed and what to do.
func TestServerRemovedWhileAway(t *testing.T) {
	t.Parallel()
	s := found(t)
	s.join("s2")
	away := s.join("s3")
	s.stop("s3")
	_, err := s.client.Servers().DeleteServer(s.ctx, &v1.DeleteServerRequest{Name: "s3"})
	must.Succeed(t, err)
	err = runServer(s.ctx, local.ServerOptions{
		Process: local.Process{DataDir: away.path, Version: "test", Log: testLog(t), Progress: quiet, Ready: func(string) { t.Error("it is ready") }},
		Reach:   local.Reach{APIAddr: away.address},
	})
	if !errors.Is(err, membership.ErrRemoved) || !strings.Contains(err.Error(), "cloudless down --purge --data-dir "+away.path) {
		t.Errorf("it ends with %v", err)
	}
}

// recover makes the server of a folder the only one, and checks that it knows the end of its log.
func (s *testCluster) recover(path string) {
	s.t.Helper()
	end, err := maintenance.Recover(s.ctx, local.RecoverOptions{DataDir: path, Log: io.Discard})
	must.Succeed(s.t, err)
	if end.Term == 0 || end.Index == 0 {
		s.t.Errorf("the log of the server that is left ends with %s", end)
	}
}
