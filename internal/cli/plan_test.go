package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/creack/pty"
	"google.golang.org/protobuf/proto"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/command"
)

// withoutFingerprint drops the line with the fingerprint.
func (r result) withoutFingerprint() result {
	r.stdout = regexp.MustCompile(`(?m)^Apply this and nothing else with --plan .*\n`).ReplaceAllString(r.stdout, "")
	return r
}

func TestPlanShowsWhatWouldChange(t *testing.T) {
	c := newCluster(t)
	c.run(t.Context(), twoDocuments, "plan", "-f", "-").withoutFingerprint().expect(t, 2, `+ workload web would be created
    + spec.image: hello:1
    + 3 replicas created on box

+ workload db would be created
    + spec.image: db:1
    + 1 replica created on box

Plan: 2 to create, 0 to update, 0 to delete, 0 unchanged.
`, "")
	if len(c.workloads) != 0 {
		t.Fatal("the plan has made something")
	}
	c.run(t.Context(), twoDocuments, "apply", "-f", "-", "--wait=false")
	c.run(t.Context(), twoDocuments, "plan", "-f", "-").expect(t, 0, "= workload web is unchanged\n= workload db is unchanged\nNothing would change.\n", "")

	changed := strings.Replace(twoDocuments, `{image: "hello:1", replicas: 3}`, `{image: "hello:1", env: {A: "x\ny"}}`, 1)
	c.run(t.Context(), changed, "apply", "--dry-run", "-f", "-").withoutFingerprint().expect(t, 2, `~ workload web would be updated
    + spec.env[A]: "x\ny"
    ~ spec.replicas: 3 -> 1

= workload db is unchanged
Plan: 0 to create, 1 to update, 0 to delete, 1 unchanged.
`, "")
	alone := "kind: Workload\nmetadata: {name: db}\nspec: {image: \"db:1\"}\n"
	c.run(t.Context(), alone, "plan", "-f", "-", "--prune", "app=x").withoutFingerprint().expect(t, 2,
		"= workload db is unchanged\n- workload web would be deleted\n\nPlan: 0 to create, 0 to update, 1 to delete, 1 unchanged.\n", "")

	got := c.run(t.Context(), changed, "plan", "-f", "-", "-o", "json")
	var plan struct {
		Changes     []struct{ Name, Action string }
		Fingerprint string
	}
	if err := json.Unmarshal([]byte(got.stdout), &plan); err != nil || got.code != 2 || len(plan.Changes) != 2 || plan.Changes[0].Action != "update" || plan.Fingerprint == "" {
		t.Errorf("as JSON: %v\n%+v", err, got)
	}
}

func TestPlanOfReplicas(t *testing.T) {
	step := func(action, replica, from, to string) *cloudlessv1.ReplicaStep {
		return &cloudlessv1.ReplicaStep{Action: action, Replica: replica, FromNode: from, ToNode: to}
	}
	plan := &cloudlessv1.Plan{Fingerprint: "0123", Changes: []*cloudlessv1.PlanChange{{
		Kind: "Workload", Namespace: "other", Name: "web", Action: "update", Image: "cloudless/hello@sha256:0123",
		Fields: []*cloudlessv1.FieldChange{{Path: "spec.args[0]", Before: "-v"}},
		Replicas: []*cloudlessv1.ReplicaStep{
			step("keep", "web-a", "n1", "n1"), step("keep", "web-b", "n1", "n1"), step("replace", "web-c", "n2", "n2"),
			step("move", "web-d", "n2", "n3"), step("stop", "web-e", "n2", ""), step("stop", "web-f", "", ""), step("create", "", "", "n1"),
			step("create", "web-g", "", "n1"), step("create", "", "", ""),
		},
		Unplaced: 2, UnplacedReasons: []*cloudlessv1.NodeReason{{Node: "n1", Reason: "needs 3 CPU, 1 of 4 free"}},
		Warnings: []string{"nothing answers there"},
	}}}
	var out strings.Builder
	c := &cli{Env: &command.Env{Stdout: &out, Namespace: "default"}}
	if err := c.showPlan(plan); err != nil {
		t.Fatal(err)
	}
	want := `~ workload web in namespace other would be updated
    - spec.args[0]: -v
      image cloudless/hello@sha256:0123
    = 2 replicas kept on n1
    ~ replica web-c replaced on n2
    ~ replica web-d replaced, moving from n2 to n3
    - replica web-e stopped on n2
    - replica web-f given up: it has no node yet
    + 2 replicas created on n1
    + 1 replica created; its node is chosen when its turn comes
    ! 2 replicas have no place: n1: needs 3 CPU, 1 of 4 free
    ! nothing answers there

Plan: 0 to create, 1 to update, 0 to delete, 0 unchanged.
`
	if out.String() != want {
		t.Errorf("shown:\n%s\nwant:\n%s", out.String(), want)
	}
}

// Apply warns of what will not work before it changes anything, and only of what it changes.
func TestApplyWarns(t *testing.T) {
	var out strings.Builder
	c := &cli{Env: &command.Env{Stderr: &out, Namespace: "default"}}
	full := []*cloudlessv1.NodeReason{{Node: "n1", Reason: "needs 3 CPU, 1 of 4 free"}}
	c.warn(&cloudlessv1.Plan{Changes: []*cloudlessv1.PlanChange{
		{Kind: "Workload", Name: "web", Action: "update", Image: "web@sha256:0123", Unplaced: 2, UnplacedReasons: full},
		{Kind: "Workload", Name: "api", Action: "create", Image: "registry.example/api:1"},
		{Kind: "Workload", Name: "db", Action: "create", Warnings: []string{"nothing answers there"}},
		{Kind: "Workload", Name: "old", Action: "unchanged", Image: "old:1", Unplaced: 1, UnplacedReasons: full},
		{Kind: "Namespace", Name: "shop", Action: "create"},
	}})
	want := `warning: workload web: 2 replicas have no place: n1: needs 3 CPU, 1 of 4 free
warning: workload api: image registry.example/api:1 could not be checked, because its registry cannot be reached from the server
warning: workload db: nothing answers there
`
	if out.String() != want {
		t.Errorf("shown:\n%s\nwant:\n%s", out.String(), want)
	}
}

func TestPlanShowsPreemptions(t *testing.T) {
	plan := &cloudlessv1.Plan{Fingerprint: "0123", Changes: []*cloudlessv1.PlanChange{{Kind: "Workload", Namespace: "default", Name: "web", Action: "create"}}, Preemptions: []*cloudlessv1.Preemption{
		{Namespace: "default", Workload: "batch", Replica: "batch-a", Node: "n1", Priority: proto.Int32(0), ForNamespace: "default", ForWorkload: "web", ForPriority: proto.Int32(500)},
		{Namespace: "team", Workload: "batch", Replica: "batch-b", Node: "n2", Priority: proto.Int32(50), ForNamespace: "default", ForWorkload: "web", ForPriority: proto.Int32(500), ToNode: "n3"},
	}}
	var out strings.Builder
	c := &cli{Env: &command.Env{Stdout: &out, Namespace: "default"}}
	if err := c.showPlan(plan); err != nil {
		t.Fatal(err)
	}
	want := `+ workload web would be created

- 2 replicas would be pushed out, by the signal and grace period of their workloads
    - batch-a of batch (priority 0) on n1, for web (priority 500); another waits for room
    - batch-b of batch in namespace team (priority 50) on n2, for web (priority 500); another takes its place on n3

Plan: 1 to create, 0 to update, 0 to delete, 0 unchanged.
`
	if out.String() != want {
		t.Errorf("shown:\n%s\nwant:\n%s", out.String(), want)
	}
	out.Reset()
	if err := c.PrintObject(plan); err != nil || !strings.Contains(out.String(), `"priority": 0,`) {
		t.Errorf("a priority of 0 is left out of the JSON: %v\n%s", err, out.String())
	}
	out.Reset()
	if err := c.tellPreemptions(plan.GetPreemptions()); err != nil {
		t.Fatal(err)
	}
	if want := "batch-a of batch (priority 0) on n1 makes room for web (priority 500)\n"; !strings.HasPrefix(out.String(), want) {
		t.Errorf("told:\n%s", out.String())
	}
}

// Exit code 2 means that something would change, and nothing else.
func TestPlanErrorHasExitCodeOne(t *testing.T) {
	c := newCluster(t)
	folder := t.TempDir()
	big := filepath.Join(folder, "big.yaml")
	if err := os.WriteFile(big, []byte("kind: Workload\nmetadata: {name: x}\nspec: {image: y, args: ["+strings.Repeat("x", 10<<20)+"]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	threeMB := func(name string) string {
		var text strings.Builder
		for i := range 3 {
			fmt.Fprintf(&text, "---\nkind: Workload\nmetadata: {name: %s%d}\nspec: {image: y, args: [%s]}\n", name, i, strings.Repeat("x", 1<<20-100))
		}
		path := filepath.Join(folder, name+".yaml")
		if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, test := range map[string]struct {
		stdin string
		args  []string
		want  string
	}{
		"no file":              {"", []string{}, "the file is missing"},
		"an unknown flag":      {"", []string{"--nope"}, "there is no flag --nope"},
		"an unknown format":    {"", []string{"-f", "-", "-o", "xml"}, "output format"},
		"too much":             {"", []string{"-f", "-", "web"}, `"web" is too much`},
		"an empty selector":    {twoDocuments, []string{"-f", "-", "--prune", ""}, "--prune needs labels"},
		"a file of 10 MB":      {"", []string{"-f", big}, "big.yaml has more than the 4 MB that a file of workloads may have"},
		"3 files of 3 MB":      {"", []string{"-f", threeMB("a"), "-f", threeMB("b"), "-f", threeMB("c")}, "the files hold 9 MB of workloads together and one request may have 8"},
		"an empty folder":      {"", []string{"-f", t.TempDir()}, "holds no file that ends in .yaml"},
		"twice":                {twoDocuments + "---\n" + twoDocuments, []string{"-f", "-"}, "-:10: workload default/web is given twice, first at -:1"},
		"several namespaces":   {twoDocuments + "---\nkind: Workload\nmetadata: {name: x, namespace: other}\nspec: {image: y}\n", []string{"-f", "-", "--prune", "a=b"}, "say by --namespace"},
		"a namespace twice":    {"kind: Namespace\nmetadata: {name: shop}\n---\nkind: Namespace\nmetadata: {name: shop}\n", []string{"-f", "-"}, "-:4: namespace shop is given twice, first at -:1"},
		"a wrong quota":        {"kind: Namespace\nmetadata: {name: shop}\nspec:\n  quota: {cpu: much}\n", []string{"-f", "-"}, "-:4:16: spec.quota.cpu: must be an amount of CPU"},
		"an unknown field":     {"kind: Workload\nmetadata: {name: x}\nspec:\n  image: y\n  replica: 3\n", []string{"-f", "-"}, "-:5:3: spec.replica: is not a known field; did you mean replicas?"},
		"a wrong unit":         {"kind: Workload\nmetadata: {name: x}\nspec:\n  image: y\n  resources: {limits: {memory: 5 apples}}\n", []string{"-f", "-"}, "-:5:32: spec.resources.limits.memory: must be"},
		"negative replicas":    {"kind: Workload\nmetadata: {name: x}\nspec:\n  image: y\n  replicas: -1\n", []string{"-f", "-"}, "-:5:13: spec.replicas: must be between 0 and 100000"},
		"a name too long":      {"kind: Workload\nmetadata: {name: " + strings.Repeat("a", 64) + "}\nspec: {image: y}\n", []string{"-f", "-"}, "-:2:18: metadata.name: must be"},
		"a memory limit of 1":  {"kind: Workload\nmetadata: {name: x}\nspec:\n  image: y\n  resources: {limits: {memory: 1Ki}}\n", []string{"-f", "-"}, "-:5:32: spec.resources.limits.memory: a memory limit of 1Ki is too small: nothing can run below 4Mi"},
		"a kind not for files": {"kind: Server\nmetadata: {name: x}\n", []string{"-f", "-"}, `kind: "Server" cannot be in a file`},
	} {
		got := c.run(t.Context(), test.stdin, append([]string{"plan"}, test.args...)...)
		if got.code != 1 || got.stdout != "" || !strings.Contains(got.stderr, test.want) || !strings.HasPrefix(got.stderr, "cloudless: ") {
			t.Errorf("%s: %+v, want something about %q", name, got, test.want)
		}
		if got := c.run(t.Context(), test.stdin, append([]string{"apply"}, test.args...)...); got.code == 0 || got.stdout != "" || len(c.workloads) != 0 {
			t.Errorf("%s: apply: %+v", name, got)
		}
	}
}

func TestApplyReadsAllFilesOfAFolder(t *testing.T) {
	c := newCluster(t)
	folder := t.TempDir()
	for name, text := range map[string]string{
		"b.yaml": "kind: Workload\nmetadata: {name: b}\nspec: {image: x}\n", "a.json": `{"kind":"Workload","metadata":{"name":"a"},"spec":{"image":"x"}}`,
		"notes.txt": "not a workload", "deeper/c.yaml": "not read",
	} {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.run(t.Context(), "kind: Workload\nmetadata: {name: z}\nspec: {image: x}\n", "apply", "-f", "-", "-f", folder, "--wait=false").
		expect(t, 0, "workload z created\nworkload a created\nworkload b created\n", "")
}

func TestApplyPlansAgainOnlyWhileTheChangesAreTheSame(t *testing.T) {
	c := newCluster(t)
	times := 0
	c.moved = func() bool { times++; return times < 3 }
	c.run(t.Context(), twoDocuments, "apply", "-f", "-", "--wait=false").expect(t, 0, "workload web created\nworkload db created\n", "")

	// Somebody creates db meanwhile: the plan is outdated.
	applied := c.workloads["db"]
	delete(c.workloads, "db")
	c.moved = func() bool {
		c.put(&cloudlessv1.Workload{Metadata: &cloudlessv1.Metadata{Name: "db", Namespace: "default"}, Spec: &cloudlessv1.WorkloadSpec{Image: "db:9"}})
		return true
	}
	got := c.run(t.Context(), twoDocuments, "apply", "-f", "-")
	if got.code != 1 || got.stdout != "" || !strings.Contains(got.stderr, "somebody else is changing these workloads, so nothing was done") ||
		!strings.Contains(got.stderr, "cloudless plan") || c.workloads["db"].GetSpec().GetImage() != "db:9" {
		t.Errorf("%+v", got)
	}

	// Somebody applies the same file at the same time: there is nothing left to do.
	c.moved = func() bool {
		before := c.workloads["db"]
		c.workloads["db"] = applied
		return before != applied
	}
	c.run(t.Context(), twoDocuments, "apply", "-f", "-", "--wait=false").expect(t, 0, "workload web unchanged\nworkload db unchanged\n", "")

	c.moved = func() bool { return true }
	got = c.run(t.Context(), twoDocuments, "apply", "-f", "-")
	if got.code != 1 || !strings.Contains(got.stderr, "nothing was done after 10 attempts") {
		t.Errorf("%+v", got)
	}
}

// Apply carries out exactly the plan with the given fingerprint, or nothing.
func TestApplyCarriesOutTheGivenPlan(t *testing.T) {
	c := newCluster(t)
	got := c.run(t.Context(), twoDocuments, "plan", "-f", "-", "-o", "json")
	var seen struct{ Fingerprint string }
	if err := json.Unmarshal([]byte(got.stdout), &seen); err != nil || got.code != 2 {
		t.Fatalf("%v: %+v", err, got)
	}
	people := c.run(t.Context(), twoDocuments, "plan", "-f", "-")
	if want := "Apply this and nothing else with --plan " + seen.Fingerprint + "\n"; !strings.HasSuffix(people.stdout, want) {
		t.Errorf("%+v does not end with %q", people, want)
	}
	c.put(&cloudlessv1.Workload{Metadata: &cloudlessv1.Metadata{Name: "other", Namespace: "default"}, Spec: &cloudlessv1.WorkloadSpec{Image: "db:9"}})
	c.run(t.Context(), twoDocuments, "apply", "-f", "-", "--plan", seen.Fingerprint).expect(t, 1, "", "cloudless: the plan is outdated\n")
	if len(c.workloads) != 1 {
		t.Errorf("%d workloads, want only the one that was there", len(c.workloads))
	}
	got = c.run(t.Context(), twoDocuments, "plan", "-f", "-", "-o", "json")
	if err := json.Unmarshal([]byte(got.stdout), &seen); err != nil {
		t.Fatal(err)
	}
	c.run(t.Context(), twoDocuments, "apply", "-f", "-", "--wait=false", "--plan", seen.Fingerprint).expect(t, 0, "workload web created\nworkload db created\n", "")
	if got = c.run(t.Context(), twoDocuments, "apply", "-f", "-", "--plan", ""); got.code != 2 || !strings.Contains(got.stderr, "--plan needs the fingerprint that cloudless plan shows") {
		t.Errorf("%+v", got)
	}
	if got = c.run(t.Context(), twoDocuments, "apply", "-f", "-", "--plan", "x", "--dry-run"); got.code != 2 || !strings.Contains(got.stderr, "--plan and --dry-run exclude each other") {
		t.Errorf("%+v", got)
	}
}

// waitingFor is the status of workloads without running replicas.
func waitingFor(w *cloudlessv1.Workload) *cloudlessv1.WorkloadStatus {
	return &cloudlessv1.WorkloadStatus{Phase: "pending", RevisionUid: "r1", Desired: 1, Pending: 1}
}

// tell returns a replica of web in the given phase.
func tell(phase string, change ...func(*cloudlessv1.Replica)) *cloudlessv1.Replica {
	r := replica("web-1", "web", phase, 0, 0)
	r.Metadata.Uid, r.Spec.RevisionUid = "u1", "r1"
	for _, f := range change {
		f(r)
	}
	return r
}

// crashed returns a replica that has exited.
func crashed(r *cloudlessv1.Replica) {
	r.Status.LastExit, r.Status.Reason = &cloudlessv1.Exit{Code: 3}, "It exited with code 3."
}

const oneDocument = "kind: Workload\nmetadata: {name: web}\nspec: {image: \"hello:1\"}\n"

func TestApplySaysWhyAProgramDoesNotStayUp(t *testing.T) {
	c := newCluster(t)
	c.standing = waitingFor
	c.entries = []*cloudlessv1.LogEntry{{Replica: "web-1", Stream: "stderr", Text: "no database"}}
	c.tells(func(send func(*cloudlessv1.Replica)) {
		for range 3 {
			send(tell("preparing"))
			send(tell("backoff", crashed))
		}
	})
	got := c.run(t.Context(), oneDocument, "apply", "-f", "-")
	want := "cloudless: workload web does not stay up: replica web-1 on box: it exited with code 3 (3 times), its last line is \"no database\": " +
		"see its output with: cloudless logs web\n"
	if got.code != 1 || got.stderr != want {
		t.Errorf("%+v, want %s", got, want)
	}
	line := "web-1: backoff on box: It exited with code 3.\n"
	if want := "workload web created\n" + strings.Repeat("web-1: preparing on box\n"+line, 3); got.stdout != want {
		t.Errorf("the changes were told as\n%s\nwant\n%s", got.stdout, want)
	}

	c.tells(func(send func(*cloudlessv1.Replica)) {
		for range 3 {
			send(tell("preparing", func(r *cloudlessv1.Replica) {
				r.Status.Progress = &cloudlessv1.Progress{What: "pulling hello:1", DoneBytes: 3 << 20, TotalBytes: 9 << 20}
			}))
			send(tell("backoff", func(r *cloudlessv1.Replica) { r.Status.Reason = "pull hello:1: not found" }))
		}
	})
	got = c.run(t.Context(), oneDocument, "apply", "-f", "-")
	if got.code != 1 || !strings.Contains(got.stderr, "workload web cannot be started: replica web-1 on box: pull hello:1: not found") ||
		!strings.Contains(got.stdout, "web-1: preparing on box: pulling hello:1: 3 of 9 MB\n") {
		t.Errorf("%+v", got)
	}

	c.tells(func(send func(*cloudlessv1.Replica)) { send(tell("failed", crashed)) })
	if got = c.run(t.Context(), oneDocument, "apply", "-f", "-", "-o", "json"); got.code != 1 || got.stdout != "" || !strings.Contains(got.stderr, "does not stay up") {
		t.Errorf("%+v", got)
	}
}

func TestApplySaysWhatDoesNotFit(t *testing.T) {
	c := newCluster(t)
	c.standing = func(w *cloudlessv1.Workload) *cloudlessv1.WorkloadStatus {
		status := waitingFor(w)
		status.Unplaced = []*cloudlessv1.NodeReason{{Node: "box", Reason: "needs 9 CPU, 4 of 4 free"}}
		return status
	}
	c.tells(func(send func(*cloudlessv1.Replica)) {
		send(tell("pending", func(r *cloudlessv1.Replica) { r.Spec.Node = "" }))
	})
	got := c.run(t.Context(), oneDocument, "apply", "-f", "-")
	if got.code != 1 || !strings.Contains(got.stderr, "workload web has pending replicas, 0 of 1 running: box: needs 9 CPU, 4 of 4 free; they start when there is room (details: cloudless explain web)") {
		t.Errorf("%+v", got)
	}
}

func TestApplyStopsWaiting(t *testing.T) {
	c := newCluster(t)
	c.standing = waitingFor
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c.tells(func(send func(*cloudlessv1.Replica)) {
		send(tell("preparing"))
		cancel()
	})
	got := c.run(ctx, oneDocument, "apply", "-f", "-")
	if got.code != 130 || !strings.Contains(got.stderr, "Stopped waiting. The cluster continues with web: see: cloudless workload get web\n") {
		t.Errorf("%+v", got)
	}
	c.tells(func(send func(*cloudlessv1.Replica)) { send(tell("preparing")) })
	got = c.run(t.Context(), oneDocument, "apply", "-f", "-", "--timeout", "100ms")
	if got.code != 1 || !strings.Contains(got.stderr, "workload web is not ready after 100ms: 0 of 1 running; the cluster keeps trying") {
		t.Errorf("%+v", got)
	}
}

// On a terminal, apply redraws a tree in place and leaves it there in the end.
func TestApplyDrawsATree(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	t.Setenv("LC_ALL", "C.UTF-8")
	c := newCluster(t)
	c.replicas = []*cloudlessv1.Replica{tell("running")}
	c.tells(func(func(*cloudlessv1.Replica)) {})
	screen, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	if err := pty.Setsize(terminal, &pty.Winsize{Cols: 60, Rows: 10}); err != nil {
		t.Fatal(err)
	}
	code := Main(t.Context(), Options{
		Args:  []string{"apply", "--config", c.config, "-f", "-"},
		Stdin: strings.NewReader(oneDocument), Stdout: terminal, Stderr: terminal,
	})
	_ = terminal.Close()
	var all strings.Builder
	for scan := bufio.NewScanner(screen); scan.Scan(); {
		all.WriteString(scan.Text() + "\n")
	}
	text := strings.ReplaceAll(all.String(), "\r", "")
	want := "web: 1 of 1 running\x1b[K\n└─ web-1  \x1b[32mrunning\x1b[0m    box\x1b[K\n"
	last := text[max(0, len(text)-len(want)-len("\x1b[J\n")):]
	want += "\x1b[J\n"
	if code != 0 || !strings.HasPrefix(text, "workload web created\n") || last != want {
		t.Errorf("exit code %d, on the screen:\n%q\nwant in the end\n%q", code, text, want)
	}
}
