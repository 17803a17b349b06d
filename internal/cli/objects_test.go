package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cloudless/cloudless/api"
)

// Get and rm use a kind's own commands and pass the flags on.
func TestGetAndRemoveUseTheCommandsOfTheKind(t *testing.T) {
	c := newCluster(t)
	for _, same := range [][2]string{
		{"get nodes", "node ls"},
		{"get node box", "node get box"},
		{"get node box -o yaml", "node get box -o yaml"},
		{"get tokens -o json", "token ls -o json"},
		{"get ns", "namespace ls"},
		{"get -o yaml nodes", "node ls -o yaml"},
		{"get nodes -l disk=ssd", "node ls -l disk=ssd"},
		{"rm token ci", "token rm ci"},
		{"get events", "events"},
		{"get replicas -A", "ps -A"},
		{"get workloads -A -o json", "workload ls -A -o json"},
		{"get nodes -A", "node ls"},
	} {
		got, want := c.run(t.Context(), "", strings.Fields(same[0])...), c.run(t.Context(), "", strings.Fields(same[1])...)
		times := regexp.MustCompile(`(?m)^.*(lastSeen|expireTime).*$`)
		if got.stdout, want.stdout = times.ReplaceAllString(got.stdout, ""), times.ReplaceAllString(want.stdout, ""); got != want {
			t.Errorf("%s: %+v\nbut %s: %+v", same[0], got, same[1], want)
		}
	}
}

// Every kind can be listed or shown, even without commands of its own.
func TestGetWorksForEveryKind(t *testing.T) {
	c := newCluster(t)
	c.run(t.Context(), twoDocuments, "apply", "-f", "-", "--wait=false").expect(t, 0, "workload web created\nworkload db created\n", "")
	for _, kind := range api.Kinds() {
		if kind.List == nil && kind.Get == nil {
			t.Errorf("kind %s can neither be listed nor shown", kind.Name)
		}
	}
	if got := c.run(t.Context(), "", "get", "cluster"); got.code != 0 || !strings.Contains(got.stdout, "status:") {
		t.Errorf("the cluster: %+v", got)
	}
	for _, wrong := range []struct{ command, want string }{
		{"get", "KIND is missing"},
		{"get workloda", `there is no kind "workloda"; did you mean workload?`},
		{"get zzzzzz x", "the kinds are accesskey, bucket, certificate, cluster, "},
		{"rm workload", "NAME is missing"},
		{"rm event e1", "an event cannot be removed: the cluster removes old ones itself; change when with: cloudless cluster config set retention.events=DURATION"},
		{"rm cluster", "a cluster cannot be removed: "},
		{"edit workload", "NAME is missing"},
		{"edit image web:1", "an image cannot be edited: its digest stands for its content; push another one with: cloudless image push"},
	} {
		if got := c.run(t.Context(), "", strings.Fields(wrong.command)...); got.code == 0 || !strings.Contains(got.stderr, wrong.want) {
			t.Errorf("%s: %+v, want %q", wrong.command, got, wrong.want)
		}
	}
}

// A kind is edited and removed, or the refusal says why not and what to do instead.
func TestEveryKindIsEditedAndRemovedOrSaysWhyNot(t *testing.T) {
	for _, kind := range api.Kinds() {
		if !editable(kind) && kind.Name != "Cluster" && insteadOf["edited"][kind.Name] == "" {
			t.Errorf("kind %s cannot be edited, and does not say why", kind.Name)
		}
		if kind.Delete == nil && insteadOf["removed"][kind.Name] == "" {
			t.Errorf("kind %s cannot be removed, and does not say why", kind.Name)
		}
	}
}

// editor is a program that runs a script on the file in its argument.
func editor(t *testing.T, script string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "editor")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("VISUAL", "")
	t.Setenv("EDITOR", path)
	t.Setenv("TMPDIR", t.TempDir())
}

func TestEdit(t *testing.T) {
	c := newCluster(t)
	c.run(t.Context(), twoDocuments, "apply", "-f", "-", "--wait=false").expect(t, 0, "workload web created\nworkload db created\n", "")

	editor(t, `grep -q '^status:' "$1" && exit 3; sed -i 's/hello:1/hello:2/' "$1"`)
	got := c.run(t.Context(), "", "edit", "workload", "web")
	if got.code != 0 || !strings.Contains(got.stdout, "spec.image: hello:1 -> hello:2") || !strings.Contains(got.stdout, "workload web updated") || strings.Contains(got.stdout, "--plan") {
		t.Errorf("edited: %+v", got)
	}
	if left, _ := os.ReadDir(os.Getenv("TMPDIR")); len(left) > 0 {
		t.Errorf("an edit leaves %v behind", left)
	}

	editor(t, "true")
	c.run(t.Context(), "", "edit", "workload", "web").expect(t, 0, "", "Nothing was changed.\n")

	editor(t, `sed -i 's/replicas: 3/replicas: many/' "$1"`)
	if got := c.run(t.Context(), "", "edit", "workload", "web"); got.code == 0 || !strings.Contains(got.stderr, "spec.replicas") || !strings.Contains(got.stderr, "cloudless apply -f "+os.Getenv("TMPDIR")) {
		t.Errorf("a text that is wrong: %+v", got)
	}

	editor(t, "exit 7")
	if got := c.run(t.Context(), "", "edit", "workload", "web"); got.code == 0 || !strings.Contains(got.stderr, "exit status 7") {
		t.Errorf("an editor that fails: %+v", got)
	}
	t.Setenv("EDITOR", "no-such-editor")
	if got := c.run(t.Context(), "", "edit", "workload", "web"); got.code == 0 || !strings.Contains(got.stderr, "there is no editor no-such-editor") {
		t.Errorf("no editor: %+v", got)
	}
}
