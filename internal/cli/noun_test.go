package cli

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

func replica(name, workload, phase string, restarts int32, old time.Duration) *cloudlessv1.Replica {
	return &cloudlessv1.Replica{
		Metadata: &cloudlessv1.Metadata{Uid: "uid-" + name, Name: name, Namespace: "default", CreateTime: timestamppb.New(time.Now().Add(-old))},
		Spec:     &cloudlessv1.ReplicaSpec{Workload: workload, Node: "box", Revision: 3},
		Status:   &cloudlessv1.ReplicaStatus{Phase: phase, Restarts: restarts},
	}
}

func TestRunAnImage(t *testing.T) {
	c := newCluster(t)
	t.Setenv("HOME_CITY", "Bern")
	c.run(t.Context(), "", "run", "docker.io/library/nginx:1.27", "--replicas", "2", "-e", "A=b=c", "-e", "HOME_CITY", "-p", "http=8080",
		"--cpu", "500m", "--memory", "64Mi", "--restart", "never", "-l", "app=web", "--only-on", "disk=ssd", "--", "--flag", "x").
		expect(t, 0, "workload nginx created\nnginx: 2 of 2 running\n", "")
	got := c.workloads["nginx"]
	s := got.GetSpec()
	if s.GetImage() != "docker.io/library/nginx:1.27" || s.GetReplicas() != 2 || s.GetEnv()["A"] != "b=c" || s.GetEnv()["HOME_CITY"] != "Bern" ||
		s.GetPorts()[0].GetPublish() != 8080 || s.GetPorts()[0].GetName() != "http" || s.GetResources().GetLimits().GetCpu() != "500m" ||
		s.GetResources().GetLimits().GetMemory() != "64Mi" || s.GetRestart().GetPolicy() != "never" || strings.Join(s.GetArgs(), " ") != "--flag x" ||
		got.GetMetadata().GetLabels()["app"] != "web" || s.GetPlacement().GetLabels()["disk"] != "ssd" || got.GetMetadata().GetNamespace() != "default" {
		t.Errorf("the cluster was asked for %v", got)
	}

	c.run(t.Context(), "", "run", "nginx").expect(t, 1, "", "cloudless: workload nginx exists already: give another --name, or change it with --update\n")
	c.run(t.Context(), "", "run", "nginx", "--update", "-d").expect(t, 0, "workload nginx updated\n", "")
	if got := c.run(t.Context(), "", "run", "nginx", "--name", "Bad_Name"); got.code != 1 || !strings.Contains(got.stderr, "metadata.name") {
		t.Errorf("a bad name: %+v", got)
	}
}

func TestRunHintsAtALocalProgram(t *testing.T) {
	c := newCluster(t)
	t.Chdir(t.TempDir())
	if err := os.WriteFile("hello", []byte("x"), 0o700); err != nil {
		t.Fatal(err)
	}
	c.run(t.Context(), "", "run", "hello", "-d").expect(t, 0, "workload hello created\n", "")
	got := c.run(t.Context(), "", "run", "hello", "-d")
	if got.code != 1 || !strings.Contains(got.stderr, "to run the program hello of this folder, write ./hello") {
		t.Errorf("%+v", got)
	}
	got = c.run(t.Context(), "", "run", "./hello")
	if got.code != 1 || !strings.Contains(got.stderr, "is not an ELF executable") {
		t.Errorf("what is no program: %+v", got)
	}
}

func TestNameFromProgramOrImage(t *testing.T) {
	for what, want := range map[string]string{
		"./Hello_World":                 "hello-world",
		"/usr/bin/app.v2":               "app-v2",
		"hello:1":                       "hello",
		"docker.io/library/nginx":       "nginx",
		"localhost:5000/x@sha256:00":    "x",
		"./" + strings.Repeat("a", 100): strings.Repeat("a", 63),
		"./...":                         "",
	} {
		if got := nameOf(what); got != want {
			t.Errorf("nameOf(%q) = %q, want %q", what, got, want)
		}
	}
}

const twoDocuments = `apiVersion: cloudless/v1
kind: Workload
metadata: {name: web}
spec: {image: "hello:1", replicas: 3}
---
kind: Workload
metadata: {name: db}
spec: {image: "db:1"}
`

func TestApply(t *testing.T) {
	c := newCluster(t)
	c.run(t.Context(), twoDocuments, "apply", "-f", "-").expect(t, 0,
		"workload web created\nworkload db created\nweb: 3 of 3 running\ndb: 1 of 1 running\n", "")
	file := filepath.Join(t.TempDir(), "app.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(twoDocuments, "db:1", "db:2", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	c.run(t.Context(), "", "apply", "-f", file, "--wait=false").expect(t, 0, "workload web unchanged\nworkload db updated\n", "")

	got := c.run(t.Context(), "", "apply", "-f", file, "-o", "json")
	var answer struct{ Objects []map[string]map[string]any }
	if err := json.Unmarshal([]byte(got.stdout), &answer); err != nil || len(answer.Objects) != 2 || answer.Objects[0]["workload"]["kind"] != "Workload" {
		t.Errorf("as JSON: %v\n%+v", err, got)
	}
}

func TestApplyRefusesBeforeItChangesAnything(t *testing.T) {
	c := newCluster(t)
	for name, test := range map[string]struct{ text, want string }{
		"a bad field":         {twoDocuments + "---\nkind: Workload\nmetadata: {name: x}\nspec: {image: y, network: wifi}\n", "spec.network"},
		"another namespace":   {"kind: Workload\nmetadata: {name: x, namespace: other}\nspec: {image: y}\n", "is of namespace other, but --namespace says mine"},
		"nothing":             {"", "nothing to apply"},
		"what is not a thing": {"kind: Elephant\n", "Elephant"},
	} {
		got := c.run(t.Context(), test.text, "apply", "-f", "-", "-n", "mine")
		if got.code != 1 || got.stdout != "" || !strings.Contains(got.stderr, test.want) {
			t.Errorf("%s: %+v, want something about %q", name, got, test.want)
		}
	}
	if len(c.workloads) != 0 {
		t.Errorf("%d workloads were made", len(c.workloads))
	}
	if got := c.run(t.Context(), "", "apply", "-f", "/no/such/file"); got.code != 1 || !strings.Contains(got.stderr, "no such file") {
		t.Errorf("%+v", got)
	}
}

func TestWaitingShowsWhyAWorkloadIsPending(t *testing.T) {
	c := newCluster(t)
	c.standing = func(w *cloudlessv1.Workload) *cloudlessv1.WorkloadStatus {
		return &cloudlessv1.WorkloadStatus{Phase: "pending", Desired: 1, Pending: 1, Reason: "no node has label disk=ssd"}
	}
	c.run(t.Context(), "", "run", "hello", "--timeout", "100ms").expect(t, 1, "workload hello created\n",
		"cloudless: workload hello is not ready after 100ms: 0 of 1 running, no node has label disk=ssd; "+
			"the cluster keeps trying: see: cloudless workload get hello\n")
}

// A node that is briefly offline may have room when it is back. Nodes that are offline for long are not waited for.
func TestWaitsForNodesThatAreBrieflyOffline(t *testing.T) {
	for want, away := range map[string]time.Duration{
		"workload web is not ready after 500ms":                                          time.Second,
		"workload web has pending replicas, 0 of 1 running: far: is offline: no session": time.Hour,
	} {
		c := newCluster(t)
		c.nodes = []*cloudlessv1.Node{{
			Metadata: &cloudlessv1.Metadata{Name: "far"},
			Status:   &cloudlessv1.NodeStatus{State: "offline", LastSeen: timestamppb.New(time.Now().Add(-away))},
		}}
		c.standing = func(w *cloudlessv1.Workload) *cloudlessv1.WorkloadStatus {
			status := waitingFor(w)
			status.Unplaced = []*cloudlessv1.NodeReason{{Node: "far", Reason: "is offline: no session"}}
			return status
		}
		c.tells(func(send func(*cloudlessv1.Replica)) {
			send(tell("pending", func(r *cloudlessv1.Replica) { r.Spec.Node = "" }))
		})
		if got := c.run(t.Context(), "", "run", "hello:1", "--name", "web", "--timeout", "500ms"); got.code != 1 || !strings.Contains(got.stderr, want) {
			t.Errorf("away for %s: %+v", away, got)
		}
	}
}

// Every command that starts replicas says at once why they will never run, without waiting for the timeout.
func TestEveryChangeSaysWhyReplicasDoNotRun(t *testing.T) {
	for _, args := range [][]string{{"run", "hello:1", "--name", "web"}, {"run", "hello:1", "--name", "web", "--update"}, {"workload", "scale", "web", "1"}, {"workload", "restart", "web"}} {
		c := newCluster(t)
		if args[0] == "workload" {
			c.run(t.Context(), "", "run", "hello:0", "--name", "web")
		}
		c.standing = func(w *cloudlessv1.Workload) *cloudlessv1.WorkloadStatus {
			status := waitingFor(w)
			status.Unplaced = []*cloudlessv1.NodeReason{{Node: "box", Reason: "port 8080 is used by other in namespace default; choose another with --publish"}}
			return status
		}
		c.tells(func(send func(*cloudlessv1.Replica)) {
			send(tell("pending", func(r *cloudlessv1.Replica) { r.Spec.Node = "" }))
		})
		got := c.run(t.Context(), "", args...)
		if got.code != 1 || !strings.Contains(got.stderr, "workload web has pending replicas, 0 of 1 running: box: port 8080 is used by other in namespace default; choose another with --publish; they start when there is room (details: cloudless explain web)") {
			t.Errorf("%q without a place: %+v", args, got)
		}

		c = newCluster(t)
		if args[0] == "workload" {
			c.run(t.Context(), "", "run", "hello:0", "--name", "web")
		}
		c.standing = waitingFor
		c.tells(func(send func(*cloudlessv1.Replica)) {
			for range 3 {
				send(tell("running"))
				send(tell("backoff", crashed))
			}
		})
		got = c.run(t.Context(), "", args...)
		if got.code != 1 || !strings.Contains(got.stderr, "cloudless: workload web does not stay up: replica web-1 on box: it exited with code 3 (3 times)") {
			t.Errorf("%q of what does not stay up: %+v", args, got)
		}
	}
}

func TestInterruptEndsOnlyTheWait(t *testing.T) {
	c := newCluster(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked := 0
	c.standing = func(w *cloudlessv1.Workload) *cloudlessv1.WorkloadStatus {
		if asked++; asked == 2 { // the first answer is that of the creation
			cancel()
		}
		return &cloudlessv1.WorkloadStatus{Phase: "pending", Desired: 1, Pending: 1}
	}
	c.run(ctx, "", "run", "hello").expect(t, 130, "workload hello created\n",
		"Stopped waiting. The cluster continues with hello: see: cloudless workload get hello\n")
	if c.workloads["hello"] == nil {
		t.Error("the workload is gone")
	}
}

func TestPs(t *testing.T) {
	c := newCluster(t)
	c.replicas = []*cloudlessv1.Replica{
		replica("web-b", "web", "backoff", 4, 3*time.Hour),
		replica("web-a", "web", "running", 0, 50*time.Hour),
		replica("db-a", "db", "failed", 0, 5*time.Minute),
	}
	c.replicas[0].Status.LastExit = &cloudlessv1.Exit{Code: 137, OomKilled: true}
	c.replicas[1].Status.Addresses = []string{"10.64.0.2", "fd00::2"}
	c.replicas[2].Status.Reason = "line one\nline two\x1b[31m"
	c.run(t.Context(), "", "ps").expect(t, 0, `NAME   WORKLOAD  NODE  PHASE    REV  RESTARTS  AGE  ADDRESS            PORTS  REASON
web-a  web       box   running  3    0         2d   10.64.0.2,fd00::2  -      -
web-b  web       box   backoff  3    4         3h   -                  -      It ran out of memory (OOM)
`, "")
	c.run(t.Context(), "", "ps", "db", "--all", "-A").expect(t, 0, `NAMESPACE  NAME  WORKLOAD  NODE  PHASE   REV  RESTARTS  AGE  ADDRESS  PORTS  REASON
default    db-a  db        box   failed  3    0         5m   -        -      line one line two [31m
`, "")
	c.run(t.Context(), "", "ps", "nothing").expect(t, 0, "NAME  WORKLOAD  NODE  PHASE  REV  RESTARTS  AGE  ADDRESS  PORTS  REASON\n", "no replicas that run in namespace default\n")
	c.run(t.Context(), "", "ps", "nothing", "-o", "yaml").expect(t, 0, "items: []\n", "")
	c.run(t.Context(), "", "ps", "nothing", "-o", "json").expect(t, 0, "{\n  \"items\": []\n}\n", "")

	// A watch begins with the same rows and then shows changes.
	got := c.run(t.Context(), "", "ps", "-w")
	lines := strings.Split(got.stdout, "\n")
	if len(lines) != 5 || !strings.HasPrefix(lines[1], "web-a  web") || !strings.HasPrefix(lines[2], "web-b  web") || !strings.Contains(lines[3], "removed") {
		t.Errorf("%+v", got)
	}
	got = c.run(t.Context(), "", "ps", "-w", "-o", "json")
	if first, _, _ := strings.Cut(got.stdout, "\n"); !json.Valid([]byte(first)) || !strings.Contains(first, `"change":"added"`) {
		t.Errorf("%+v", got)
	}
}

// A replica that is being replaced has the ports of its own revision, and one that has ended has none.
func TestPsShowsThePortsOfEachRevision(t *testing.T) {
	c := newCluster(t)
	port := func(n int32) *cloudlessv1.WorkloadSpec {
		return &cloudlessv1.WorkloadSpec{Image: "hello:1", Ports: []*cloudlessv1.Port{{Port: 80, Publish: n}}}
	}
	c.put(&cloudlessv1.Workload{Metadata: &cloudlessv1.Metadata{Name: "web", Namespace: "default"}, Spec: port(8081)})
	c.standing = func(*cloudlessv1.Workload) *cloudlessv1.WorkloadStatus {
		return &cloudlessv1.WorkloadStatus{RevisionUid: "new"}
	}
	c.revisions = []*cloudlessv1.Revision{{Metadata: &cloudlessv1.Metadata{Uid: "old"}, Spec: &cloudlessv1.RevisionSpec{Workload: port(8080)}}}
	for i, revision := range []string{"old", "new", "gone"} {
		r := replica("web-"+string("abc"[i]), "web", "running", 0, time.Duration(9-i)*time.Hour)
		r.Metadata.Namespace, r.Spec.RevisionUid = "default", revision
		c.replicas = append(c.replicas, r)
	}
	over := replica("web-d", "web", "failed", 0, 6*time.Hour)
	over.Spec.RevisionUid = "new"
	c.replicas = append(c.replicas, over)
	c.run(t.Context(), "", "ps", "--all").expect(t, 0, `NAME   WORKLOAD  NODE  PHASE    REV  RESTARTS  AGE  ADDRESS  PORTS    REASON
web-a  web       box   running  3    0         9h   -        8080:80  -
web-b  web       box   running  3    0         8h   -        8081:80  -
web-c  web       box   running  3    0         7h   -        -        -
web-d  web       box   failed   3    0         6h   -        -        -
`, "")
}

func TestListsReadBack(t *testing.T) {
	c := newCluster(t)
	c.run(t.Context(), twoDocuments, "apply", "-f", "-", "--wait=false")
	got := c.run(t.Context(), "", "workload", "get", "web", "-o", "yaml")
	documents, err := spec.Decode("out", []byte(got.stdout))
	if err != nil || len(documents) != 1 {
		t.Fatalf("what get shows cannot be applied: %v\n%s", err, got.stdout)
	}
	got = c.run(t.Context(), "", "workload", "ls", "-o", "yaml")
	if got.code != 0 || !strings.HasPrefix(got.stdout, "items:\n- ") || strings.Count(got.stdout, "\n- ") != 2 {
		t.Errorf("%+v", got)
	}
}

func TestWorkloads(t *testing.T) {
	c := newCluster(t)
	c.run(t.Context(), twoDocuments, "apply", "-f", "-", "--wait=false")
	c.run(t.Context(), "", "workload", "scale", "web", "5").expect(t, 0, "workload web scaled\nweb: 5 of 5 running\n", "")
	c.run(t.Context(), "", "workload", "restart", "web").expect(t, 0, "workload web restarted\nweb: 5 of 5 running\n", "")
	c.run(t.Context(), "", "workload", "rm", "nobody", "db", "none").expect(t, 1, "workload db removed\n",
		"cloudless: workload none does not exist in namespace default\ncloudless: workload nobody does not exist in namespace default\n")
	c.run(t.Context(), "", "workload", "ls").expect(t, 0,
		"NAME  KIND     PHASE    RUNNING  IMAGE    AGE  REASON\nweb   service  running  5/5      hello:1  3h   -\n", "")
	c.run(t.Context(), "", "workload", "get", "db").expect(t, 1, "", "cloudless: workload db does not exist in namespace default\n")

	c.replicas = []*cloudlessv1.Replica{replica("web-a", "web", "running", 0, time.Minute)}
	c.standing = func(*cloudlessv1.Workload) *cloudlessv1.WorkloadStatus {
		return &cloudlessv1.WorkloadStatus{
			Phase: "pending", Desired: 5, Running: 1, Pending: 4, Revision: 2, Reason: "nothing fits",
			Unplaced: []*cloudlessv1.NodeReason{{Node: "box", Reason: "needs 2 CPU, 1 of 4 free"}},
		}
	}
	c.run(t.Context(), "", "workload", "get", "web").expect(t, 0, `Name:       web
Namespace:  default
Phase:      pending
Reason:     nothing fits
Kind:       service
Replicas:   1 running of 5, 4 pending, 0 failed
Revision:   2
Image:      hello:1
Age:        3h

Why it is pending, node by node:
NODE  REASON
box   needs 2 CPU, 1 of 4 free

NAME   WORKLOAD  NODE  PHASE    REV  RESTARTS  AGE  ADDRESS  REASON
web-a  web       box   running  3    0         60s  -        -
`, "")
}

func TestNodes(t *testing.T) {
	c := newCluster(t)
	c.run(t.Context(), "", "node", "ls").expect(t, 0,
		"NAME  STATE  CPU     MEMORY   DISK   RELIABILITY  SEEN  VERSION  AGE  REASON\nbox   ready  250m/4  1Gi/8Gi  100Gi  91/100       3h    v1       -    DiskPressure\n", "")
	c.run(t.Context(), "", "node", "get", "box").expect(t, 0, `Name:         box
Uid:          uid-box
Labels:       arch=arm, disk=ssd
Taints:       spot:PreferNoSchedule
State:        ready
Price:        40
Power:        battery
System:       linux arm64 6.1
Version:      v1
Driver:       container 1.6
Cannot:       keep logs across restarts of containerd
Subnets:      10.64.0.0/24
Seen:         3h ago
Reliability:  91/100

RESOURCE   CAPACITY          ALLOCATABLE  REQUESTED  USED
CPU        4                 6            1          250m
memory     8Gi               7Gi          1Gi        1Gi
disk       100Gi             -            -          -
bandwidth  1G                1G           100M       -
GPU        2 a100, tesla-t4  2            1          -

RELIABILITY    WEIGHT  SCORE  BECAUSE
uptime         30 %    99     there for 99h of the 100h that count
response time  20 %    80     answers in 25 ms
success rate   20 %    100    no replica was started lately
capacity       15 %    70     35 % of memory is free, on average
stability      15 %    100    not lost lately

CONDITION     STATUS  FOR  REASON
Ready         yes     -    -
DiskPressure  yes     -    91 % used
`, "")
	c.run(t.Context(), "", "node", "get", "nix").expect(t, 1, "", "cloudless: node nix does not exist\n")
}

func TestCordon(t *testing.T) {
	c := newCluster(t)
	c.run(t.Context(), "", "node", "cordon", "box", "--reason", "new disk").expect(t, 0, "node box cordoned; it is cordoned\n", "")
	got := c.run(t.Context(), "", "node", "cordon", "box", "--reason", "new disk", "-o", "json")
	if got.code != 0 || !strings.Contains(got.stdout, `"availabilityReason": "new disk"`) {
		t.Errorf("%+v", got)
	}
	c.run(t.Context(), "", "node", "uncordon", "box").expect(t, 0, "node box uncordoned; it is ready\n", "")
	c.run(t.Context(), "", "node", "cordon", "nix").expect(t, 1, "", "cloudless: node nix does not exist\n")
	c.run(t.Context(), "", "node", "cordon").expect(t, 2, "", "cloudless: NAME is missing: cloudless node cordon NAME [flags]\nSee: cloudless node cordon --help\n")
}

// An offline or failed node shows that it is cordoned.
func TestDesiredStateOfAnOfflineNodeIsShown(t *testing.T) {
	for _, c := range []struct{ desired, reason, state, want string }{
		{"", "", "ready", ""},
		{"", "", "offline", ""},
		{"cordoned", "new disk", "cordoned", ""},
		{"cordoned", "new disk", "offline", "cordoned as soon as it is in service: new disk"},
		{"draining", "", "failed", "draining as soon as it is in service"},
	} {
		n := &cloudlessv1.Node{
			Spec:   &cloudlessv1.NodeSpec{Availability: c.desired, AvailabilityReason: c.reason},
			Status: &cloudlessv1.NodeStatus{State: c.state},
		}
		var out strings.Builder
		if err := newCLI(Options{Stdout: &out}).describeNode(n, nil); err != nil {
			t.Fatal(err)
		}
		if shown := strings.Contains(out.String(), "Desired:"); shown != (c.want != "") || !strings.Contains(out.String(), c.want) {
			t.Errorf("%s, %s: want %q in\n%s", c.desired, c.state, c.want, &out)
		}
	}
}

func TestNodeLabelsTaintsAndSettings(t *testing.T) {
	c := newCluster(t)
	asked := func(want *cloudlessv1.UpdateNodeRequest) {
		t.Helper()
		want.Name = "box"
		if !proto.Equal(c.lastUpdate, want) {
			t.Errorf("asked for %v, want %v", c.lastUpdate, want)
		}
	}
	c.run(t.Context(), "", "node", "label", "box", "disk=ssd", "old-", "empty=").expect(t, 0, "node box has the labels disk=ssd, empty=\n", "")
	asked(&cloudlessv1.UpdateNodeRequest{Labels: map[string]string{"disk": "ssd", "empty": ""}, RemoveLabels: []string{"old"}})
	c.run(t.Context(), "", "node", "label", "box", "old-").expect(t, 0, "node box has no labels\n", "")
	c.run(t.Context(), "", "node", "taint", "box", "gpu=only:NoSchedule", "spot:NoExecute", "a-", "b:NoExecute-", "c=d:PreferNoSchedule-").expect(t, 0,
		"node box has the taints gpu=only:NoSchedule, spot:NoExecute\n", "")
	asked(&cloudlessv1.UpdateNodeRequest{
		Taints:       []*cloudlessv1.Taint{{Key: "gpu", Value: "only", Effect: "NoSchedule"}, {Key: "spot", Effect: "NoExecute"}},
		RemoveTaints: []*cloudlessv1.TaintName{{Key: "a"}, {Key: "b", Effect: "NoExecute"}, {Key: "c", Effect: "PreferNoSchedule"}},
	})
	c.run(t.Context(), "", "node", "taint", "box", "gpu-").expect(t, 0, "node box has no taints\n", "")
	c.run(t.Context(), "", "node", "set", "box", "--price", "40", "--bandwidth", "1G", "--region", "eu", "--zone", "").expect(t, 0,
		"node box has price 40, region eu, bandwidth 1G\n", "")
	asked(&cloudlessv1.UpdateNodeRequest{
		Price: proto.Int64(40), Bandwidth: proto.String("1G"), Labels: map[string]string{"region": "eu"}, RemoveLabels: []string{"zone"},
	})
	c.run(t.Context(), "", "node", "set", "box", "--bandwidth", "auto").expect(t, 0, "node box has price 0\n", "")
	asked(&cloudlessv1.UpdateNodeRequest{Bandwidth: proto.String("")})
	if got := c.run(t.Context(), "", "node", "set", "box", "--price", "40", "-o", "json"); got.code != 0 || !strings.Contains(got.stdout, `"price": "40"`) {
		t.Errorf("%+v", got)
	}

	for _, wrong := range []struct {
		words string
		args  []string
	}{
		{"KEY=VALUE or KEY- is missing", []string{"label", "box"}},
		{"NAME is missing", []string{"taint"}},
		{`label "disk" has no value: write disk=VALUE`, []string{"label", "box", "disk"}},
		{`label "disk" is given twice`, []string{"label", "box", "disk=a", "disk=b"}},
		{`taint "gpu=only" has no effect: write gpu=only:NoSchedule, or PreferNoSchedule or NoExecute; to take it away, gpu-`, []string{"taint", "box", "gpu=only"}},
		{`taint "foo:Bar": its effect must be NoSchedule, PreferNoSchedule or NoExecute`, []string{"taint", "box", "ok:NoSchedule", "foo:Bar"}},
		{`taint "foo:Bar-": its effect must be`, []string{"taint", "box", "foo:Bar-"}},
		{`taint "a b:NoExecute": its key must`, []string{"taint", "box", "a b:NoExecute"}},
		{`taint ":NoSchedule" has no key`, []string{"taint", "box", ":NoSchedule"}},
		{"there is nothing to set: give a flag such as --price 40", []string{"set", "box"}},
	} {
		if got := c.run(t.Context(), "", append([]string{"node"}, wrong.args...)...); got.code != 2 || !strings.Contains(got.stderr, wrong.words) {
			t.Errorf("%q: %+v, want %q", wrong.args, got, wrong.words)
		}
	}
	c.run(t.Context(), "", "node", "label", "nix", "a=b").expect(t, 1, "", "cloudless: node nix does not exist\n")
}

func TestTokens(t *testing.T) {
	c := newCluster(t)
	got := c.run(t.Context(), "", "token", "create", "--role", "node", "--uses", "3", "--ttl", "1h", "--name", "t1")
	if got.code != 0 || got.stdout != "cljoin_secret\n" || !strings.Contains(got.stderr, "cloudless join 127.0.0.1:") {
		t.Errorf("%+v", got)
	}
	if r := c.lastToken; r.GetUses() != 3 || r.GetTtl() != "1h" || r.GetName() != "t1" || r.GetIdempotencyKey() == "" {
		t.Errorf("asked for %v", r)
	}
	if got := c.run(t.Context(), "", "token", "create", "--role", "server"); !strings.Contains(got.stderr, " --token-file FILE --role server\n") {
		t.Errorf("for a server: %+v", got)
	}
	c.run(t.Context(), "", "token", "ls").expect(t, 0,
		"NAME  ROLE    NAMESPACE  USED    LAST USED  EXPIRES    AGE  PURPOSE\n"+
			"t1    node    -          1 of 2  -          has ended  -    -\n"+
			"ci    viewer  -          -       never      never      -    -\n", "")
	c.run(t.Context(), "", "token", "rm", "ci").expect(t, 0, "token ci revoked\n", "")
}

func TestImages(t *testing.T) {
	newCluster(t).run(t.Context(), "", "image", "ls").expect(t, 0,
		"REPOSITORY  TAG  DIGEST               SIZE    PLATFORMS    AGE  USED BY\nweb         1    sha256:0123456789ab  2.3 MB  linux/amd64  -    -\n", "")
}

func TestEvents(t *testing.T) {
	c := newCluster(t)
	c.events = []*cloudlessv1.Event{event("e2", "Placed", "replica web-1 goes to box"), event("e1", "Created", "workload web was created")}
	const past = `TIME                 SEVERITY  REASON   ABOUT         MESSAGE
2026-01-02 03:04:05  info      Created  Workload web  workload web was created
2026-01-02 03:04:05  info      Placed   Workload web  replica web-1 goes to box
`
	c.run(t.Context(), "", "events", "--for", "web").expect(t, 0, past, "")
	c.run(t.Context(), "", "events", "-f").expect(t, 0, past+"2026-01-02 03:04:05  info      Started  Workload web  replica web-9 runs\n", "")
	if got := c.run(t.Context(), "", "events", "--limit", "1", "-o", "json"); strings.Count(got.stdout, `"reason"`) != 1 {
		t.Errorf("%+v", got)
	}
}

// The command in the hint includes the namespace.
func TestHintAfterATimeoutNamesTheNamespace(t *testing.T) {
	c := newCluster(t)
	c.standing = func(*cloudlessv1.Workload) *cloudlessv1.WorkloadStatus {
		return &cloudlessv1.WorkloadStatus{Phase: "progressing", Desired: 1}
	}
	r := c.run(t.Context(), "", "run", "hello", "-n", "team", "--timeout", "10ms")
	if hint := "see: cloudless workload get hello -n team\n"; r.code != 1 || !strings.HasSuffix(r.stderr, hint) {
		t.Errorf("exit code %d, want 1; stderr is %q, want it to end with %q", r.code, r.stderr, hint)
	}
}

func TestRestartThatWaitsForAnOperatorSaysSo(t *testing.T) {
	w := &cloudlessv1.Workload{
		Metadata: &cloudlessv1.Metadata{Name: "web", Namespace: "shop"},
		Spec:     &cloudlessv1.WorkloadSpec{Update: &cloudlessv1.Update{Strategy: spec.StrategyBlueGreen, ManualSwitch: true}},
	}
	if got, want := restarted(w), "leads to the old ones until you run: cloudless rollout promote web -n shop"; !strings.HasSuffix(got, want) {
		t.Errorf("it says %q, want %q at the end", got, want)
	}
	w.Spec.Update.ManualSwitch = false
	if got := restarted(w); got != "restarted" {
		t.Errorf("without manualSwitch it says %q", got)
	}
}
