package cli

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
)

func (c *cluster) ListRevisions(_ context.Context, r *cloudlessv1.ListRevisionsRequest) (*cloudlessv1.ListRevisionsResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.find(r.GetWorkload()); err != nil {
		return nil, err
	}
	return &cloudlessv1.ListRevisionsResponse{Items: c.revisions}, nil
}

type copyServer = grpc.BidiStreamingServer[cloudlessv1.CopyRequest, cloudlessv1.CopyResponse]

func (c *cluster) Copy(s copyServer) error { return c.copy(s) }

func revision(number uint64, image string, ago time.Duration, change func(*cloudlessv1.WorkloadSpec)) *cloudlessv1.Revision {
	w := &cloudlessv1.WorkloadSpec{Image: "hello:1", Replicas: proto.Int32(1)}
	if change != nil {
		change(w)
	}
	return &cloudlessv1.Revision{
		Kind:     "Revision",
		Metadata: &cloudlessv1.Metadata{CreateTime: timestamppb.New(time.Now().Add(-ago))},
		Spec:     &cloudlessv1.RevisionSpec{Number: number, Workload: w, Image: "registry.cloudless.internal/hello@sha256:" + image},
	}
}

// described is a cluster with one workload that has revisions, replicas and events.
func described(t *testing.T) *cluster {
	c := newCluster(t)
	c.put(&cloudlessv1.Workload{
		Kind:     "Workload",
		Metadata: &cloudlessv1.Metadata{Name: "web", Namespace: "default"},
		Spec: &cloudlessv1.WorkloadSpec{
			Image: "hello:1", Env: map[string]string{"COLOUR": "blue"},
			Ports: []*cloudlessv1.Port{{Name: "http", Port: 8080, Publish: 80}},
		},
	})
	again := revision(4, "bbbbbbbbbbbbbbbb", time.Minute, func(w *cloudlessv1.WorkloadSpec) { w.Env = map[string]string{"COLOUR": "blue"} })
	again.Spec.Restart = 1
	c.revisions = []*cloudlessv1.Revision{
		again,
		revision(3, "bbbbbbbbbbbbbbbb", 2*time.Hour, func(w *cloudlessv1.WorkloadSpec) { w.Env = map[string]string{"COLOUR": "blue"} }),
		revision(2, "aaaaaaaaaaaaaaaa", 50*time.Hour, func(w *cloudlessv1.WorkloadSpec) { w.Env = map[string]string{"COLOUR": "red"}; w.Args = []string{"-v"} }),
	}
	ended := timestamppb.New(time.Now().Add(-time.Hour))
	replica := func(name, phase string, status *cloudlessv1.ReplicaStatus) *cloudlessv1.Replica {
		status.Phase = phase
		return &cloudlessv1.Replica{
			Kind:     "Replica",
			Metadata: &cloudlessv1.Metadata{Name: name, CreateTime: timestamppb.New(time.Now().Add(-3 * time.Hour))},
			Spec:     &cloudlessv1.ReplicaSpec{Workload: "web", WorkloadUid: "uid-web", Node: "box", Revision: 4},
			Status:   status,
		}
	}
	stranger := replica("web-z", "running", &cloudlessv1.ReplicaStatus{})
	stranger.Spec.WorkloadUid = "uid-of-an-older-web"
	c.replicas = []*cloudlessv1.Replica{
		replica("web-a", "running", &cloudlessv1.ReplicaStatus{Restarts: 2, Addresses: []string{"10.64.0.2", "fd00::2"}, LastExit: &cloudlessv1.Exit{Code: 137, OomKilled: true, Time: ended}}),
		replica("web-c", "running", &cloudlessv1.ReplicaStatus{
			Unready:     "It does not listen on port 8080 yet.",
			FailedProbe: &cloudlessv1.ProbeFailure{Probe: "startup", Reason: "nothing listens on port 8080", Output: "loading", Time: ended},
		}),
		replica("web-b", "failed", &cloudlessv1.ReplicaStatus{EndTime: ended, LastExit: &cloudlessv1.Exit{Code: 3, Time: ended}}),
		stranger,
	}
	c.events = []*cloudlessv1.Event{event("e1", "Created", "1 replica of hello:1")}
	return c
}

func TestHistoryShowsWhatEachRevisionChanged(t *testing.T) {
	c := described(t)
	got := c.run(t.Context(), "", "workload", "history", "web")
	at := regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`)
	want := `REVISION  CREATED              AGE  IMAGE                CHANGES
4         TIME  60s  sha256:bbbbbbbbbbbb  restarted
3         TIME  2h   sha256:bbbbbbbbbbbb  args[0]: -v removed
                                          env[COLOUR]: red → blue
                                          hello:1 is another image now
2         TIME  2d   sha256:aaaaaaaaaaaa  the ones before are not kept
`
	shown := strings.ReplaceAll(at.ReplaceAllString(got.stdout, "TIME"), strings.Repeat(" ", 56), strings.Repeat(" ", 41))
	if got.code != 0 || shown != want {
		t.Errorf("exit code %d, %s\n%s\nwant\n%s", got.code, got.stderr, shown, want)
	}
	if got := c.run(t.Context(), "", "workload", "history", "web", "-o", "json"); got.code != 0 || strings.Count(got.stdout, `"number"`) != 3 {
		t.Errorf("%+v", got)
	}
	c.run(t.Context(), "", "workload", "history", "wbe").expect(t, 1, "", "cloudless: workload wbe does not exist in namespace default\n")
}

func TestDescribeShowsEverything(t *testing.T) {
	c := described(t)
	c.standing = func(*cloudlessv1.Workload) *cloudlessv1.WorkloadStatus {
		return &cloudlessv1.WorkloadStatus{
			Phase: "degraded", Desired: 2, Running: 1, Pending: 1, Revision: 4, Reason: "nothing fits",
			Unplaced: []*cloudlessv1.NodeReason{{Node: "box", Reason: "needs 2 CPU, 1 of 4 free"}},
		}
	}
	got := c.run(t.Context(), "", "describe", "web")
	for _, want := range []string{
		"\nPhase:        degraded\n", "\nReason:       nothing fits\n", "\nImage:        hello:1\n", "\nDigest:       sha256:bbbbbbbbbbbbbbbb\n",
		"\nEnvironment:  COLOUR=blue\n", "\nPorts:        http 8080 on the node's 80\n",
		"\nWhy it is pending, node by node:\nNODE  REASON\nbox   needs 2 CPU, 1 of 4 free\n",
		"\nReplicas\nNAME   NODE  PHASE               REVISION  RESTARTS  AGE  ADDRESSES           REASON\n" +
			"web-a  box   running             4         2         3h   10.64.0.2, fd00::2  -\n" +
			"web-c  box   running, not ready  4         0         3h   -                   It does not listen on port 8080 yet.\n",
		"\nLast failed probes\nREPLICA  AGO  PROBE    REASON                        OUTPUT\nweb-c    60m  startup  nothing listens on port 8080  loading\n",
		"\nLast exits\nREPLICA  AGO  CODE  REASON\nweb-a    60m  137   It ran out of memory (OOM)\nweb-b    60m  3     -\n",
		"\nRevisions\nREVISION", "restarted\n",
		"\nEvents\nAGO", "Created  Workload web  1 replica of hello:1\n",
	} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("%q is not in\n%s", want, got.stdout)
		}
	}
	if got.code != 0 || got.stderr != "" || strings.Contains(got.stdout, "web-z") || strings.Contains(got.stdout, "\x1b") {
		t.Errorf("%+v", got)
	}
	for output, want := range map[string]string{
		"json": `(?s)^\{\n  "workload": \{.*"kind": "Workload".*\n  "revisions": \[.*"kind": "Revision".*\n  "replicas": \[.*"kind": "Replica".*\n  "events": \[`,
		"yaml": `(?s)^workload:\n  kind: Workload\n.*\nrevisions:\n- kind: Revision\n.*\nreplicas:\n- kind: Replica\n.*\nevents:\n- metadata:`,
	} {
		if got := c.run(t.Context(), "", "describe", "web", "-o", output); got.code != 0 || !regexp.MustCompile(want).MatchString(got.stdout) {
			t.Errorf("%s: %+v", output, got)
		}
	}
	for _, line := range []string{"describe node/box", "describe nodes/box", "describe replica/web-b"} {
		if got := c.run(t.Context(), "", strings.Fields(line)...); got.code != 0 || !strings.Contains(got.stdout, "Name:") || !strings.Contains(got.stdout, "\nEvents\n") {
			t.Errorf("%s: %+v", line, got)
		}
	}
	c.run(t.Context(), "", "describe", "replica/web-bb").expect(t, 1, "", "cloudless: replica web-bb does not exist in namespace default\n")
	c.run(t.Context(), "", "describe", "replica/web-b")
	if got := c.lastEvents; got.GetObjectKind() != "Replica" || got.GetObject() != "web-b" {
		t.Errorf("a description of a replica asks for the events %v", got)
	}
	c.run(t.Context(), "", "events", "--for", "nodes/box")
	if got := c.lastEvents; got.GetObjectKind() != "Node" || got.GetObject() != "box" {
		t.Errorf("events --for nodes/box asks for %v", got)
	}
	if got := c.run(t.Context(), "", "events", "--for", "nod/box"); got.code == 0 || !strings.Contains(got.stderr, `there is no kind "nod"`) {
		t.Errorf("events of no kind: %+v", got)
	}
	if got := c.run(t.Context(), "", "describe", "pod/web"); got.code != 2 || !strings.Contains(got.stderr, "or KIND/NAME such as node/box1; the kinds are accesskey, bucket, certificate, cluster, configuration") {
		t.Errorf("%+v", got)
	}
}

// onTerminal runs a command line whose output is a terminal of a certain width.
func onTerminal(t *testing.T, columns uint16, args ...string) string {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	if err := pty.Setsize(slave, &pty.Winsize{Cols: columns, Rows: 24}); err != nil {
		t.Fatal(err)
	}
	shown := make(chan string)
	go func() {
		data, _ := io.ReadAll(master) // ends with an error when the last slave is closed
		shown <- string(data)
	}()
	code := Main(t.Context(), Options{Args: args, Stdin: strings.NewReader(""), Stdout: slave, Stderr: io.Discard})
	if err := slave.Close(); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v", code, err)
	}
	return strings.ReplaceAll(<-shown, "\r\n", "\n")
}

func TestTablesOnATerminalAreColouredAndCut(t *testing.T) {
	c := described(t)
	c.replicas[0].Status.Reason = "it was restarted because of something that takes long to say"
	c.replicas = c.replicas[:1]
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	plainTable := "NAME   WORKLOAD  NODE  PHASE    REV  RESTARTS  AGE  ADDRESS            PORTS    REASON\n" +
		"web-a  web       box   running  4    2         3h   10.64.0.2,fd00::2  80:8080  it was resta…\n"
	colours := strings.NewReplacer("\x1b[1m", "", "\x1b[32m", "", "\x1b[0m", "")
	got := onTerminal(t, 93, "ps", "--config", c.config)
	if !strings.Contains(got, "\x1b[32mrunning\x1b[0m  4    2") || !strings.Contains(got, "\x1b[1mNAME\x1b[0m   ") || colours.Replace(got) != plainTable {
		t.Errorf("shown %q", got)
	}
	// The column of addresses is dropped first if the table is too wide.
	want := "NAME   WORKLOAD  NODE  PHASE    REV  RESTARTS  AGE  PORTS    REASON\n" +
		"web-a  web       box   running  4    2         3h   80:8080  it was restarted b…\n"
	if got := colours.Replace(onTerminal(t, 80, "ps", "--config", c.config)); got != want {
		t.Errorf("on a terminal of 80 columns\n%s\nwant\n%s", got, want)
	}
	// Names are never cut, and nothing is cut without need.
	if got := colours.Replace(onTerminal(t, 20, "ps", "--config", c.config)); !strings.Contains(got, "web-a  web       box   running") {
		t.Errorf("on a narrow terminal %q", got)
	}
	if got := colours.Replace(onTerminal(t, 200, "ps", "--config", c.config)); !strings.Contains(got, "long to say\n") {
		t.Errorf("on a wide terminal %q", got)
	}
	t.Setenv("NO_COLOR", "1")
	if got := onTerminal(t, 93, "ps", "--config", c.config); got != plainTable {
		t.Errorf("without colours %q", got)
	}
	if got := c.run(t.Context(), "", "ps"); strings.Contains(got.stdout, "\x1b") || !strings.Contains(got.stdout, "long to say\n") {
		t.Errorf("in a pipe %q", got.stdout)
	}
}

func TestMistypedFlagsAndCommands(t *testing.T) {
	t.Setenv(client.ConfigEnv, filepath.Join(t.TempDir(), "none"))
	for line, want := range map[string]string{
		"run x --nmae web":        "there is no flag --nmae; did you mean --name?",
		"run x --unheard-of":      "there is no flag --unheard-of",
		"run x -Z":                "there is no flag -Z",
		"run x --name":            "--name needs a value: --name name",
		"run x --replicas many":   `--replicas "many" is not a whole number`,
		"run x --update=perhaps":  `--update "perhaps" is neither true nor false`,
		"history web":             "did you mean cloudless rollout history or cloudless workload history?",
		"inspect web":             "did you mean cloudless describe?",
		"help lgos":               `there is no command "lgos" under cloudless: did you mean logs?`,
		"help workload lst":       "did you mean ls?",
		"completion tcsh":         `shell "tcsh" is not known: use bash, zsh or fish`,
		"cp a b":                  "neither a nor b is inside a replica: write NAME:/PATH",
		"cp a:/x b:/y":            "both a:/x and b:/y are inside replicas",
		"cp web:x y":              "write web:/x",
		"cp web:/x":               "TO is missing",
		"join somewhere -o table": "such as 192.0.2.1:7700",
	} {
		got := runCLI(t.Context(), Options{}, strings.Fields(line)...)
		if got.code != 2 || got.stdout != "" || !strings.Contains(got.stderr, want) || strings.Count(got.stderr, "\n") != 2 {
			t.Errorf("%s: %+v, want %q", line, got, want)
		}
	}
}

func TestCompletion(t *testing.T) {
	defer func(was time.Duration) { completionTime = was }(completionTime)
	completionTime = time.Minute // more than the test needs
	c := described(t)
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if got := runCLI(t.Context(), Options{}, "completion", shell); got.code != 0 || !strings.Contains(got.stdout, "cloudless") || got.stderr != "" {
			t.Errorf("%s: exit code %d, %s", shell, got.code, got.stderr)
		}
	}
	for line, want := range map[string]string{
		"logs |":               "web",
		"describe w|":          "web",
		"describe no|":         "node/",
		"describe node/|":      "node/box",
		"get rev|":             "revision",
		"get replica |":        "web-a web-c web-z",
		"exec x|":              "",
		"cp w|":                "web:/",
		"workload scale |":     "web",
		"workload rm web |":    "",
		"rollout pause |":      "web",
		"rollout undo w|":      "web",
		"node get |":           "box",
		"token rm c|":          "ci",
		"context use |":        "test",
		"ps --node |":          "box",
		"ps --namespace |":     "default",
		"--context |":          "test",
		"events --for |":       "web",
		"exec web --replica |": "web-a web-c web-z",
		"ps -o |":              "json table yaml",
		"workload h|":          "history\tList the revisions of a workload and their changes",
		"help workload hi|":    "autoscale describe edit get history ls restart rm rollback run scale",
	} {
		words := strings.Split(line, " ")
		last := len(words) - 1
		words[last] = strings.TrimSuffix(words[last], "|")
		got := runCLI(t.Context(), Options{}, append([]string{"__complete", "--config", c.config}, words...)...)
		offered := strings.Split(strings.TrimSpace(got.stdout), "\n")
		offered = offered[:len(offered)-1] // the directive
		slices.Sort(offered)
		if got.code != 0 || strings.Join(offered, " ") != want {
			t.Errorf("%s: offered %q, want %q", line, offered, want)
		}
	}
	// Without a cluster, completion offers nothing and prints no error.
	for _, config := range []string{filepath.Join(t.TempDir(), "none"), "/dev/null/x"} {
		got := runCLI(t.Context(), Options{}, "__complete", "--config", config, "logs", "")
		if got.code != 0 || got.stdout != ":4\n" || strings.Contains(got.stderr, "cluster") {
			t.Errorf("%+v", got)
		}
	}
}

func TestEventsAreFollowedOverABrokenConnection(t *testing.T) {
	c := newCluster(t)
	c.events = []*cloudlessv1.Event{event("e1", "Created", "first")}
	watches := 0
	c.watchEvents = func(s grpc.ServerStreamingServer[cloudlessv1.Event]) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if watches++; watches == 1 {
			if err := s.SendHeader(nil); err != nil {
				return err
			}
			if err := s.Send(event("e2", "Started", "second")); err != nil {
				return err
			}
			// Events from before the watch are only in the list, newest first.
			c.events = []*cloudlessv1.Event{event("e3", "Exited", "third"), event("e2", "Started", "second"), c.events[0]}
			return status.Error(codes.Unavailable, "gone for a moment")
		}
		return errors.Join(s.Send(event("e3", "Exited", "third")), s.Send(event("e4", "Started", "fourth")))
	}
	got := c.run(t.Context(), "", "events", "-f", "-o", "json")
	var order []string
	for _, word := range []string{"first", "second", "third", "fourth"} {
		if strings.Count(got.stdout, word) != 1 {
			t.Errorf("%q is shown %d times", word, strings.Count(got.stdout, word))
		}
		order = append(order, word)
	}
	slices.SortStableFunc(order, func(a, b string) int { return strings.Index(got.stdout, a) - strings.Index(got.stdout, b) })
	if got.code != 0 || strings.Join(order, " ") != "first second third fourth" {
		t.Errorf("%v, %+v", order, got)
	}
}

func TestContextsCanBeForgotten(t *testing.T) {
	c := newCluster(t)
	c.run(t.Context(), "", "context", "rm", "tset").expect(t, 1, "", "cloudless: context \"tset\" does not exist; did you mean test?\n")
	c.run(t.Context(), "", "context", "rm", "test").expect(t, 0, "context test removed\n", "")
	c.run(t.Context(), "", "ps").expect(t, 1, "", "cloudless: no cluster is known yet: start one with: cloudless up, or log in to one with: cloudless login\n")
}

func sendArchive(s copyServer, archive []byte, failure string) error {
	if err := s.Send(&cloudlessv1.CopyResponse{Message: &cloudlessv1.CopyResponse_Started{Started: &cloudlessv1.CopyStarted{Replica: "web-a", TotalBytes: 5}}}); err != nil {
		return err
	}
	if err := s.Send(&cloudlessv1.CopyResponse{Message: &cloudlessv1.CopyResponse_Data{Data: archive}}); err != nil {
		return err
	}
	return s.Send(&cloudlessv1.CopyResponse{Message: &cloudlessv1.CopyResponse_Done{Done: &cloudlessv1.CopyDone{Error: failure}}})
}

func tarOf(t *testing.T, headers ...*tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg {
			h.Size = 5
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, "hello"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestCopyOutOfAReplica(t *testing.T) {
	c := newCluster(t)
	here := t.TempDir()
	file := tarOf(t, &tar.Header{Typeflag: tar.TypeReg, Name: "log", Mode: 0o600})
	var asked *cloudlessv1.CopyStart
	var failure string
	archive := file
	c.copy = func(s copyServer) error {
		first, err := s.Recv()
		if err != nil {
			return err
		}
		asked = first.GetStart()
		return sendArchive(s, archive, failure)
	}
	c.run(t.Context(), "", "cp", "web:/var/log", here, "--replica", "web-a").expect(t, 0, "web:/var/log copied to "+here+": 5 B\n", "")
	if asked.GetPath() != "/var/log" || asked.GetReplica() != "web-a" || asked.GetInto() {
		t.Errorf("asked for %v", asked)
	}
	if text, err := os.ReadFile(filepath.Join(here, "log")); err != nil || string(text) != "hello" {
		t.Errorf("%q, %v", text, err)
	}

	// An incomplete copy leaves nothing behind.
	archive, failure = file[:600], "replica web-a: the disk is gone"
	target := filepath.Join(t.TempDir(), "new")
	c.run(t.Context(), "", "cp", "web:/x", target).expect(t, 1, "", "cloudless: replica web-a: the disk is gone\n")
	if left, err := os.ReadDir(filepath.Dir(target)); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}

	// A replica cannot choose where its files land, nor make devices here.
	failure = ""
	archive = tarOf(t, &tar.Header{Typeflag: tar.TypeDir, Name: "d/"}, &tar.Header{Typeflag: tar.TypeReg, Name: "d/../../out"})
	if got := c.run(t.Context(), "", "cp", "web:/d", target); got.code != 1 || !strings.Contains(got.stderr, "lies outside of what is copied") {
		t.Errorf("%+v", got)
	}
	archive = tarOf(t, &tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o755}, &tar.Header{Typeflag: tar.TypeFifo, Name: "d/null"})
	c.run(t.Context(), "", "cp", "web:/d", target).expect(t, 0, "web:/d copied to "+target+": 5 B\n", "left out d/null: it is a device, pipe or socket\n")
	if left, err := os.ReadDir(target); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestInterruptedCopyLeavesNoFiles(t *testing.T) {
	c := newCluster(t)
	ctx, interrupt := context.WithCancel(t.Context())
	c.copy = func(s copyServer) error {
		half := tarOf(t, &tar.Header{Typeflag: tar.TypeReg, Name: "x", Mode: 0o600})[:514]
		if err := s.Send(&cloudlessv1.CopyResponse{Message: &cloudlessv1.CopyResponse_Data{Data: half}}); err != nil {
			return err
		}
		interrupt()
		<-s.Context().Done()
		return s.Context().Err()
	}
	here := t.TempDir()
	c.run(ctx, "", "cp", "web:/x", here).expect(t, 130, "", "cloudless: interrupted\n")
	if left, err := os.ReadDir(here); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestCopyIntoAReplica(t *testing.T) {
	c := newCluster(t)
	here := t.TempDir()
	if err := os.MkdirAll(filepath.Join(here, "conf", "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(here, "conf", "sub", "a"), []byte("hello"), 0o640); err != nil {
		t.Fatal(err)
	}
	var asked *cloudlessv1.CopyStart
	var archive bytes.Buffer
	failure := ""
	c.copy = func(s copyServer) error {
		archive.Reset()
		for {
			request, err := s.Recv()
			if err != nil {
				return err
			}
			if request.GetStart() != nil {
				asked = request.GetStart()
			}
			archive.Write(request.GetData())
			if request.GetEnd() || failure != "" {
				return s.Send(&cloudlessv1.CopyResponse{Message: &cloudlessv1.CopyResponse_Done{Done: &cloudlessv1.CopyDone{Error: failure}}})
			}
		}
	}
	names := func() (all []string) {
		for in := tar.NewReader(&archive); ; {
			h, err := in.Next()
			if err != nil {
				return all
			}
			all = append(all, h.Name)
		}
	}
	c.run(t.Context(), "", "cp", here+"/conf", "web:/etc/").expect(t, 0, here+"/conf copied to web:/etc/: 5 B\n", "")
	if got := names(); !asked.GetInto() || asked.GetPath() != "/etc/" || !slices.Equal(got, []string{"conf/", "conf/sub/", "conf/sub/a"}) {
		t.Errorf("%v got %q", asked, got)
	}
	c.run(t.Context(), "", "cp", here+"/conf/.", "web:/etc", "-o", "json").expect(t, 0, "", "")
	if got := names(); !slices.Equal(got, []string{"./", "./sub/", "./sub/a"}) {
		t.Errorf("the content is sent as %q", got)
	}
	c.run(t.Context(), "", "cp", here+"/none", "web:/").expect(t, 1, "", "cloudless: "+here+"/none does not exist\n")
	failure = "replica web-a: its root is read-only"
	c.run(t.Context(), "", "cp", here+"/conf", "web:/").expect(t, 1, "", "cloudless: replica web-a: its root is read-only\n")
}
