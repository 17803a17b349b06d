package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// status returns the status of the cluster that an admin sees.
func (c *cluster) status() *v1.ClusterStatus {
	c.t.Helper()
	cluster, err := c.as(core.RoleAdmin).GetCluster(c.ctx, &v1.GetClusterRequest{})
	must(c.t, err)
	return cluster.GetStatus()
}

// runPilot runs the leader's autopilot, which knows only the leader itself, and waits until it has judged the servers.
func (c *cluster) runPilot(agreed *consensus.Consensus) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- agreed.Pilot(ctx, consensus.PilotOptions{
			Voters: func() int { return 3 }, Members: func() []consensus.Member { return nil }, Progress: c.membership.Progress,
		})
	}()
	c.t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			c.t.Errorf("the pilot ended with %v", err)
		}
	})
	for agreed.Health() == nil {
		select {
		case <-c.ctx.Done():
			c.t.Fatal("the leader never looked")
		case <-time.After(time.Millisecond):
		}
	}
}

// A server that has just joined is no problem, and no message suggests removing it. A server that joined a while ago
// and was never heard of is one.
func TestNewServerIsShownAsJoining(t *testing.T) {
	var later atomic.Int64
	var agreed *consensus.Consensus
	c := newCluster(t, func(o *Options) {
		o.Clock = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
		agreed = o.Consensus
	})
	c.runPilot(agreed)
	c.change(func(_ *state.Snapshot, b *state.Batch) {
		b.Create(&v1.Server{Metadata: &v1.Metadata{Uid: "s-1", Name: "one"}, Spec: &v1.ServerSpec{Address: c.Address()}})
		b.Create(&v1.Server{Metadata: &v1.Metadata{Uid: "s-2", Name: "two"}, Spec: &v1.ServerSpec{Address: "127.0.0.1:1"}})
	})
	said := c.status()
	one, two := said.GetServers()[0], said.GetServers()[1]
	if !one.GetLeader() || !one.GetHealthy() || one.GetReason() != "" {
		t.Errorf("the leader is %v", one)
	}
	if !two.GetJoining() || two.GetHealthy() || two.GetReason() != "joining: it votes once it has caught up" {
		t.Errorf("the server that has just joined is %v", two)
	}
	c.change(func(snap *state.Snapshot, b *state.Batch) {
		cluster := proto.CloneOf(snap.Cluster())
		cluster.Spec.DesiredVoters = proto.Int32(1)
		b.Update(cluster, cluster.GetMetadata().GetVersion())
	})
	if two := c.status().GetServers()[1]; two.GetReason() != "joining: it stands by once it has caught up" {
		t.Errorf("the server that is one more than shall vote is %v", two)
	}
	if problems := strings.Join(said.GetProblems(), "\n"); strings.Contains(problems, "server rm") || strings.Contains(problems, "not healthy") || strings.Contains(problems, "loss") {
		t.Errorf("the problems are %q", problems)
	}

	later.Store(int64(joiningGrace))
	said = c.status()
	if two := said.GetServers()[1]; two.GetJoining() || two.GetReason() != "the leader cannot reach it" {
		t.Errorf("the server that joined a while ago is %v", two)
	}
	if problems := strings.Join(said.GetProblems(), "\n"); !strings.Contains(problems, "server two at 127.0.0.1:1 is not healthy: the leader cannot reach it; open the network to it, or start it again with --advertise if its address has changed, or remove it with: cloudless server rm two") {
		t.Errorf("the problems are %q", problems)
	}
}

// A server that the leader reaches only has to begin; the message does not say that it is elsewhere.
func TestReachableServerIsOnlyNotStarted(t *testing.T) {
	leader, follower := pair(t)
	one := &v1.Server{Metadata: &v1.Metadata{Uid: follower.UID}, Status: &v1.ServerStatus{Reason: reasonNotMember}}
	leader.markUnreachable(leader.ctx, []*v1.Server{one})
	if got := one.GetStatus().GetReason(); got != "it does not take part yet" {
		t.Errorf("the reason of the server that answers is %q", got)
	}
}

// A voter that was healthy a moment ago and does not answer now prevents the removal of another one.
func TestRemovalVerifiesTheOtherVoters(t *testing.T) {
	leader, follower := pair(t)
	voter := func(uid string) *v1.Server {
		return &v1.Server{Metadata: &v1.Metadata{Uid: uid, Name: uid}, Status: &v1.ServerStatus{Uid: uid, Voter: true, Healthy: true}}
	}
	removed := voter("removed")
	for _, c := range []struct {
		about string
		other *v1.Server
		code  codes.Code
	}{
		{"one that answers", voter(follower.UID), codes.OK},
		{"one that is lost", voter("lost"), codes.FailedPrecondition},
	} {
		all := []*v1.Server{voter(leader.UID), c.other, removed}
		leader.verifyHealth(leader.ctx, all)
		if err := checkQuorumWithout(removed, all); status.Code(core.StatusOf(err)) != c.code {
			t.Errorf("beside %s: %v", c.about, err)
		}
	}
}

// The message suggests waiting for a vote only if waiting helps.
func TestTransferExplainsWhyAServerCannotLead(t *testing.T) {
	server := func(name string, st *v1.ServerStatus) *v1.Server {
		st.Uid = name
		return &v1.Server{Metadata: &v1.Metadata{Uid: name, Name: name}, Status: st}
	}
	well := []*v1.Server{
		server("s1", &v1.ServerStatus{Voter: true, Healthy: true, Leader: true}), server("s2", &v1.ServerStatus{Voter: true, Healthy: true}),
		server("s3", &v1.ServerStatus{Voter: true, Healthy: true}),
	}
	for _, c := range []struct {
		about string
		to    string
		all   []*v1.Server
		want  string // empty if it can
	}{
		{"anybody", "", well, ""},
		{"a voter", "s2", well, ""},
		{"one that is behind", "s4", append(well[:2:2], server("s4", &v1.ServerStatus{Healthy: true})), "wait until it has caught up"},
		{"one that has just come", "s4", append(well[:3:3], server("s4", &v1.ServerStatus{Joining: true})), "wait until it has caught up"},
		{"one too many", "s4", append(well[:3:3], server("s4", &v1.ServerStatus{Healthy: true})), "because enough others vote (3 of the desired 3): remove one of them with: cloudless server rm NAME"},
		{"one that is away", "s4", append(well[:3:3], server("s4", &v1.ServerStatus{Reason: "it does not answer"})), "server s4 cannot lead now: it does not answer"},
		{"anybody, where nobody else votes", "", well[:1], "there is no other voting server"},
	} {
		err := mayLead(c.to, c.all, 3)
		if c.want == "" {
			check(t, err)
			continue
		}
		wantCode(t, core.StatusOf(err), codes.FailedPrecondition, c.want)
	}
}

// If one server alone is to vote although there are others, adding or removing servers changes nothing: desiredVoters
// has to be raised.
func TestSingleDesiredVoterSuggestsDesiringMore(t *testing.T) {
	const wayOut = "desire more with: cloudless cluster config set desiredVoters=3"
	var all []*v1.Server
	var statuses []*v1.ServerStatus
	for i, name := range []string{"s1", "s2", "s3"} {
		st := &v1.ServerStatus{Uid: name, Name: name, Leader: i == 0, Voter: i == 0, Healthy: true}
		all = append(all, &v1.Server{Metadata: &v1.Metadata{Uid: name, Name: name}, Status: st})
		statuses = append(statuses, st)
	}
	for _, to := range []string{"", "s2"} {
		err := core.StatusOf(mayLead(to, all, 1))
		wantCode(t, err, codes.FailedPrecondition, "because one voting server is desired: "+wayOut)
		if strings.Contains(err.Error(), "server rm") || strings.Contains(err.Error(), "join") {
			t.Errorf("a transfer to %q is answered with %v", to, err)
		}
	}
	if _, problems := serverProblems(statuses, 1); !slices.Equal(problems, []string{"the loss of the only voting server would stop every change: " + wayOut}) {
		t.Errorf("the problems are %q", problems)
	}
}

// No message asks for another server if an existing one is about to get its vote.
func TestJoiningServersAreNotReportedMissing(t *testing.T) {
	all := []*v1.ServerStatus{
		{Name: "s1", Leader: true, Voter: true, Healthy: true}, {Name: "s2", Voter: true, Healthy: true}, {Name: "s3", Joining: true},
	}
	if _, problems := serverProblems(all, 3); len(problems) != 0 {
		t.Errorf("while the third joins: %q", problems)
	}
	all[2].Joining, all[2].Healthy = false, true
	if _, problems := serverProblems(all, 3); !slices.Equal(problems, []string{"the loss of one more voting server would stop every change"}) {
		t.Errorf("before the third votes: %q", problems)
	}
	if _, problems := serverProblems(all, 5); len(problems) != 2 || !strings.HasPrefix(problems[0], "2 of the desired 5 servers vote: add servers") {
		t.Errorf("where five are desired: %q", problems)
	}
}

// A single server does not report that two more are missing, unless servers were lost or an operator wants more of
// them.
func TestSingleServerReportsNoMissingVoters(t *testing.T) {
	alone := &v1.ClusterStatus{Epoch: 1, Servers: []*v1.ServerStatus{{Name: "s1", Leader: true, Voter: true, Healthy: true}}}
	recovered := proto.CloneOf(alone)
	recovered.Epoch = 2
	for about, c := range map[string]struct {
		cluster *v1.Cluster
		want    string
	}{
		"alone":                  {&v1.Cluster{Spec: &v1.ClusterSpec{}, Status: alone}, ""},
		"recovered":              {&v1.Cluster{Spec: &v1.ClusterSpec{}, Status: recovered}, "1 of the desired 3 servers vote: add servers with: cloudless token create --role server"},
		"more are desired":       {&v1.Cluster{Spec: &v1.ClusterSpec{DesiredVoters: new(int32(5))}, Status: alone}, "1 of the desired 5 servers vote"},
		"recovered, one is well": {&v1.Cluster{Spec: &v1.ClusterSpec{DesiredVoters: new(int32(1))}, Status: recovered}, ""},
	} {
		_, problems := serverProblems(c.cluster.GetStatus().GetServers(), expectedVoters(c.cluster))
		if c.want == "" && len(problems) > 0 || c.want != "" && (len(problems) != 1 || !strings.HasPrefix(problems[0], c.want) || !strings.HasSuffix(problems[0], "config set desiredVoters=1")) {
			t.Errorf("%s: %q", about, problems)
		}
	}
}

// Frequent changes of the leader are reported; a few changes by a restart of all servers are not.
func TestUnstableLeadershipIsReported(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	store := state.New()
	led := func(i int, ago time.Duration) {
		t.Helper()
		var b state.Batch
		about := &v1.Server{Metadata: &v1.Metadata{Uid: "uid", Name: fmt.Sprintf("s%d", i%3)}}
		b.Create(state.NewEvent(fmt.Sprintf("uid-%03d", i), now.Add(-ago), about, state.SeverityInfo, state.ReasonLeads, "leads", "server"))
		_, err := store.Apply(uint64(i+1), b.Transaction(now))
		must(t, err)
	}
	for i := range 20 { // some time ago
		led(i, time.Hour)
	}
	for i := range 4 {
		led(20+i, 4*time.Minute)
	}
	if got := leaderProblems(store.Snapshot(), now); len(got) != 0 {
		t.Errorf("four changes are reported as %q", got)
	}
	led(24, time.Second)
	got := leaderProblems(store.Snapshot(), now)
	if len(got) != 1 || !strings.HasPrefix(got[0], "the leader has changed 5 times in the last 10m, most recently to server s0: ") || !strings.Contains(got[0], "cloudless events --for server/s0,") {
		t.Errorf("five changes are reported as %q", got)
	}
}

// Problems name a few nodes, with the way out.
func TestOfflineNodeProblems(t *testing.T) {
	c := newCluster(t)
	c.stop() // so that no loop changes the nodes
	node := func(b *state.Batch, name, standing, reason string) {
		b.Create(&v1.Node{Metadata: &v1.Metadata{Uid: "uid-" + name, Name: name}, Spec: &v1.NodeSpec{}, Status: &v1.NodeStatus{State: standing, Reason: reason}})
	}
	c.change(func(_ *state.Snapshot, b *state.Batch) {
		node(b, "well", "ready", "")
		node(b, "resting", "cordoned", "new disk")
		node(b, "new", "enrolling", "")
		node(b, "broken", "failed", "The container runtime does not answer.")
		for i := range 7 {
			node(b, fmt.Sprintf("away-%d", i), "offline", "no session for 10s")
		}
	})
	problems := c.nodeProblems(c.Store.Snapshot())
	if len(problems) != 7 {
		t.Fatalf("the problems are %q", problems)
	}
	for i := range 5 {
		want := fmt.Sprintf("node away-%d is offline: no session for 10s; start its machine, or its agent there with: cloudless agent; if it is gone for good: cloudless node rm away-%d", i, i)
		if !slices.Contains(problems, want) {
			t.Errorf("%q is not among %q", want, problems)
		}
	}
	for _, want := range []string{
		"2 more nodes are offline: look with: cloudless node ls",
		"node broken has failed: The container runtime does not answer; look on its machine with: cloudless doctor, and here with: cloudless node get broken",
	} {
		if !slices.Contains(problems, want) {
			t.Errorf("%q is not among %q", want, problems)
		}
	}
}

// A node that is short of a resource gets nothing new. Only its conditions show that, not its state.
func TestNodePressureProblems(t *testing.T) {
	c := newCluster(t)
	c.stop() // so that no loop changes the nodes
	c.change(func(_ *state.Snapshot, b *state.Batch) {
		for name, standing := range map[string]string{"full": "ready", "away": "offline"} {
			b.Create(&v1.Node{Metadata: &v1.Metadata{Uid: "uid-" + name, Name: name}, Spec: &v1.NodeSpec{}, Status: &v1.NodeStatus{State: standing, Conditions: []*v1.Condition{
				{Type: "Ready", Status: true}, {Type: "MemoryPressure"}, {Type: "DiskPressure", Status: true, Reason: "The disk is used up."},
			}}})
		}
	})
	problems := c.nodeProblems(c.Store.Snapshot())
	want := "node full has DiskPressure: The disk is used up; make room there: it is given nothing new until then"
	if len(problems) != 2 || !slices.Contains(problems, want) {
		t.Errorf("the problems are %q, want %q", problems, want)
	}
}

// Right after a start the health of the others is unknown, which is no problem.
func TestUnknownHealthIsNoProblem(t *testing.T) {
	all := []*v1.ServerStatus{
		{Name: "s1", Leader: true, Voter: true, Healthy: true}, {Name: "s2", Voter: true, Unknown: true}, {Name: "s3", Voter: true, Unknown: true},
	}
	if _, problems := serverProblems(all, 3); len(problems) != 0 {
		t.Errorf("before the leader has looked: %q", problems)
	}
	all[1].Unknown, all[1].Reason = false, "it does not answer"
	if _, problems := serverProblems(all, 3); len(problems) != 1 || !strings.HasPrefix(problems[0], "server s2 at  is not healthy: it does not answer; start it again") {
		t.Errorf("of the one that it has looked at: %q", problems)
	}
}

// Without a leader the message names the way out, the harmless one first.
func TestNoLeaderProblemNamesTheWayOut(t *testing.T) {
	all := []*v1.ServerStatus{{Name: "s1", Voter: true, Healthy: true}, {Name: "s2", Voter: true, Unknown: true}, {Name: "s3", Voter: true, Unknown: true}}
	_, problems := serverProblems(all, 3)
	if len(problems) != 1 {
		t.Fatalf("the problems are %q", problems)
	}
	last := -1
	for _, part := range []string{
		"this server reaches no leader, so nothing can be changed", "2 of the 3 voting servers must run", "start those that are missing", "only if they are lost for good", "cloudless cluster recover", "docs/servers.md",
	} {
		at := strings.Index(problems[0], part)
		if at <= last {
			t.Errorf("%q is not where it should be in %q", part, problems[0])
		}
		last = at
	}
	if _, problems := serverProblems(all[:1], 3); len(problems) != 1 || strings.Contains(problems[0], "recover") {
		t.Errorf("of the only one: %q", problems)
	}
}

func TestDiskAndClockProblems(t *testing.T) {
	three := func(change func(all []*v1.ServerStatus)) string {
		all := []*v1.ServerStatus{
			{Name: "s1", Leader: true, Voter: true, Healthy: true}, {Name: "s2", Voter: true, Healthy: true}, {Name: "s3", Voter: true, Healthy: true},
		}
		change(all)
		_, problems := serverProblems(all, 3)
		return strings.Join(problems, "\n")
	}
	for _, test := range []struct {
		change func(all []*v1.ServerStatus)
		want   string
	}{
		{func([]*v1.ServerStatus) {}, ""},
		{func(all []*v1.ServerStatus) { all[1].Full = true }, "the disk of server s2 is full: make room there"},
		{func(all []*v1.ServerStatus) { all[0].Full, all[1].Full, all[2].Full = true, true, true }, "the disks of all voting servers are full (s1, s2, s3), so nothing can be changed: make room on them"},
		{func(all []*v1.ServerStatus) { all[1].ClockSkew = presentSkew(5 * time.Minute) }, "the clock of server s2 is 5m ahead of that of server s1, which leads"},
		{func(all []*v1.ServerStatus) { all[1].ClockSkew = presentSkew(-5 * time.Minute) }, "the clock of server s2 is 5m behind that of server s1, which leads"},
		{func(all []*v1.ServerStatus) { all[1].ClockSkew, all[2].ClockSkew = "-5m", "-5m1s" }, "differ from that of server s1, which leads, and is about 5m1s ahead of theirs"},
		{func(all []*v1.ServerStatus) { all[1].ClockSkew = presentSkew(time.Second) }, ""},
	} {
		got := three(test.change)
		if (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
			t.Errorf("the problems are %q, want %q", got, test.want)
		}
	}
}

func TestEndOfTheAuthorityIsAnnouncedAYearBefore(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	if problems := authorityProblems(now.AddDate(2, 0, 0), now); len(problems) != 0 {
		t.Errorf("two years before: %q", problems)
	}
	problems := authorityProblems(now.AddDate(0, 6, 0), now)
	if len(problems) != 1 || !strings.Contains(problems[0], "2030-07-01") || !strings.Contains(problems[0], "cloudless ca rotate") {
		t.Errorf("half a year before: %q", problems)
	}
}
