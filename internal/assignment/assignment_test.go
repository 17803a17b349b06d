package assignment

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func replica(name, node, phase string) *v1.Replica {
	return &v1.Replica{
		Metadata: &v1.Metadata{Uid: "uid-" + name, Name: name, Namespace: "default"},
		Spec:     &v1.ReplicaSpec{NodeUid: node, RevisionUid: "revision", Desired: spec.DesiredRunning},
		Status:   &v1.ReplicaStatus{Phase: phase},
	}
}

func TestNodeGetsItsLiveReplicas(t *testing.T) {
	store := state.New()
	var b state.Batch
	b.Create(&v1.Node{Metadata: &v1.Metadata{Uid: "n1", Name: "one"}, Spec: &v1.NodeSpec{SubnetV4: "10.64.1.0/24"}})
	b.Create(&v1.Revision{Metadata: &v1.Metadata{Uid: "revision"}})
	for _, r := range []*v1.Replica{
		replica("a", "n1", spec.PhaseRunning), replica("b", "n1", spec.PhaseCompleted), replica("c", "n2", spec.PhaseRunning),
	} {
		b.Create(r)
	}
	if _, err := store.Apply(1, b.Transaction(noon)); err != nil {
		t.Fatal(err)
	}
	full := Full(store.Snapshot(), "n1")
	if len(full.GetAssign()) != 1 || full.GetAssign()[0].GetReplica().GetMetadata().GetName() != "a" ||
		full.GetAssign()[0].GetRevision() == nil || full.GetNode().GetSubnetV4() == "" || !full.GetFull() {
		t.Errorf("the full assignments are %v", full)
	}
	news := News(store.Snapshot(), "n1", []string{"uid-a", "uid-b", "uid-c", "uid-gone"})
	if len(news.GetAssign()) != 1 || !slices.Equal(news.GetRemove(), []string{"uid-b", "uid-c", "uid-gone"}) || news.GetFull() {
		t.Errorf("the changed assignments are %v", news)
	}
	if News(store.Snapshot(), "n1", nil) != nil {
		t.Error("without changed replicas there is a message")
	}
}

func TestChangeConcernsNodesThatMustAct(t *testing.T) {
	unplaced, placed := replica("a", "", spec.PhasePending), replica("a", "n1", spec.PhasePlaced)
	running, moved := replica("a", "n1", spec.PhaseRunning), replica("a", "n2", spec.PhasePlaced)
	stopped := replica("a", "n1", spec.PhaseStopped)
	for _, c := range []struct {
		name          string
		before, after *v1.Replica
		want          []string
	}{
		{"created without a node", nil, unplaced, nil},
		{"placed", unplaced, placed, []string{"n1"}},
		{"a report", placed, running, nil},
		{"ended", running, stopped, []string{"n1"}},
		{"moved", running, moved, []string{"n1", "n2"}},
		{"deleted", stopped, nil, []string{"n1"}},
	} {
		if _, got := Concerned(c.before, c.after); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestReportCountsOnlyForTheNodesLiveReplicas(t *testing.T) {
	said := &v1.ReplicaStatus{Phase: spec.PhaseCompleted}
	running := replica("a", "n1", spec.PhaseRunning)
	got := Reported(running, "n1", said, noon)
	if got.GetStatus().GetPhase() != spec.PhaseCompleted || !got.GetStatus().GetEndTime().AsTime().Equal(noon) {
		t.Errorf("after the report it is %v", got)
	}
	if running.GetStatus().GetPhase() != spec.PhaseRunning || said.GetEndTime() != nil {
		t.Error("the arguments were modified")
	}
	for name, nothing := range map[string]*v1.Replica{
		"of another node": Reported(running, "n2", said, noon),
		"of no replica":   Reported(nil, "n1", said, noon),
		"after the end":   Reported(replica("a", "n1", spec.PhaseLost), "n1", said, noon),
		"without a phase": Reported(running, "n1", &v1.ReplicaStatus{}, noon),
		"known already":   Reported(running, "n1", proto.CloneOf(running.GetStatus()), noon),
		"of an older end": Reported(running, "n1", &v1.ReplicaStatus{Phase: spec.PhaseRunning, EndTime: timestamppb.New(noon)}, noon),
	} {
		if nothing != nil {
			t.Errorf("a report %s counts: %v", name, nothing)
		}
	}
}

// A node does not know why it has to stop a replica, so its reports keep the leader's reason.
func TestReportKeepsTheStopReason(t *testing.T) {
	old := replica("a", "n1", spec.PhaseRunning)
	old.Spec.StopReason = "makes room for another"
	got := Reported(old, "n1", &v1.ReplicaStatus{Phase: spec.PhaseStopping}, noon)
	if got.GetStatus().GetReason() != "makes room for another" {
		t.Errorf("after the report it is %v", got)
	}
	if again := Reported(got, "n1", &v1.ReplicaStatus{Phase: spec.PhaseStopping}, noon); again != nil {
		t.Errorf("the same report changes it to %v", again)
	}
	if got := Reported(old, "n1", &v1.ReplicaStatus{Phase: spec.PhaseFailed, Reason: "it crashed"}, noon); got.GetStatus().GetReason() != "it crashed" {
		t.Errorf("the node's own reason is lost: %v", got)
	}
}

// A node may speak only for its own subnets: an address elsewhere would divert connections to another machine.
func TestReportLosesAddressesOutsideOfTheNode(t *testing.T) {
	node := &v1.NodeSpec{SubnetV4: "10.64.1.0/24", SubnetV6: "fd00:0:0:1::/64"}
	for want, reported := range map[string][]string{
		"[10.64.1.2 fd00:0:0:1::2]": {"10.64.1.2", "fd00:0:0:1::2"},
		"[10.64.1.3]":               {"10.64.2.3", "10.64.1.3", "fd00:0:0:2::3"},
		"[]":                        {"192.0.2.1", "::ffff:10.64.1.4", "nonsense", ""},
	} {
		status := &v1.ReplicaStatus{Phase: spec.PhaseRunning, Addresses: reported}
		before := proto.CloneOf(status)
		if got := fmt.Sprint(Within(node, status).GetAddresses()); got != want {
			t.Errorf("of %v remain %s, want %s", reported, got, want)
		}
		if !proto.Equal(status, before) {
			t.Errorf("the report itself has changed to %v", status)
		}
	}
	if kept := Within(&v1.NodeSpec{}, &v1.ReplicaStatus{Addresses: []string{"10.64.1.2"}}); len(kept.GetAddresses()) != 0 {
		t.Errorf("a node without a subnet may report %v", kept.GetAddresses())
	}
}

// Replicas have the limits of the network that their workload has now, and those of their revision when it is gone: they
// are never free because of a deletion.
func TestLimitsOfTheNetworkComeFromTheWorkload(t *testing.T) {
	limited := func(bandwidth string, allow ...string) *v1.WorkloadSpec {
		w := &v1.WorkloadSpec{Egress: &v1.Egress{}, Resources: &v1.Resources{Limits: &v1.ResourceAmounts{Bandwidth: bandwidth}}}
		for _, cidr := range allow {
			w.Egress.Allow = append(w.Egress.Allow, &v1.EgressRule{Cidr: cidr})
		}
		return w
	}
	store := state.New()
	var b state.Batch
	b.Create(&v1.Node{Metadata: &v1.Metadata{Uid: "n1", Name: "one"}})
	b.Create(&v1.Revision{Metadata: &v1.Metadata{Uid: "revision"}, Spec: &v1.RevisionSpec{Workload: limited("1M", "10.0.0.0/8")}})
	w := &v1.Workload{Metadata: &v1.Metadata{Uid: "w", Name: "web", Namespace: "default"}, Spec: limited("2M")}
	b.Create(w)
	for name, workload := range map[string]string{"a": "w", "b": "gone"} {
		r := replica(name, "n1", spec.PhaseRunning)
		r.Spec.WorkloadUid = workload
		b.Create(r)
	}
	if _, err := store.Apply(1, b.Transaction(noon)); err != nil {
		t.Fatal(err)
	}
	for _, a := range Full(store.Snapshot(), "n1").GetAssign() {
		got := fmt.Sprint(a.GetBandwidth(), len(a.GetEgress().GetAllow()))
		if want := map[string]string{"a": "2000000 0", "b": "1000000 1"}[a.GetReplica().GetMetadata().GetName()]; got != want || a.GetEgress() == nil {
			t.Errorf("%s has %s, want %s", a.GetReplica().GetMetadata().GetName(), got, want)
		}
	}
	same := &v1.Workload{Spec: limited("2000k")}
	for name, c := range map[string]struct {
		before, after *v1.Workload
		want          bool
	}{
		"nothing": {w, same, false}, "the bandwidth": {w, &v1.Workload{Spec: limited("")}, true},
		"egress": {w, &v1.Workload{Spec: limited("2M", "::/0")}, true}, "its removal": {w, nil, false},
	} {
		if got := WorkloadChanged(c.before, c.after); got != c.want {
			t.Errorf("a change of %s concerns nodes: %v", name, got)
		}
	}
}
