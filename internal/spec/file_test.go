package spec_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

const app = `# Two workloads.
apiVersion: cloudless/v1
kind: Workload
metadata: {name: web, labels: {app: web}}
spec:
  image: hello:1
  args: [--greeting, hi]
  env: {LOG_LEVEL: info, DEBUG: true, PORT: 8080}
  replicas: 3
  resources: {requests: {cpu: 250m, memory: 128Mi}, limits: {cpu: 1, memory: 256Mi}}
  ports: [{name: http, port: 8080, publish: 8080}]
  restart: {policy: always}
  placement: {labels: {disk: ssd}}
---
# Nothing here.
---
kind: Workload
metadata:
  name: job
spec:
  image: job:1
  restart:
    policy: never
    max_backoff: 5m
  stop:
...
`

func TestDecodeYAML(t *testing.T) {
	docs, err := spec.Decode("app.yaml", []byte(app))
	if err != nil {
		t.Fatal(err)
	}
	if len(docs) != 2 || docs[0].Line != 2 || docs[1].Line != 17 || docs[1].Kind != "Workload" {
		t.Fatalf("documents %+v", docs)
	}
	web := docs[0].Message.(*v1.Workload)
	want := &v1.Workload{
		ApiVersion: "cloudless/v1", Kind: "Workload",
		Metadata: &v1.Metadata{Name: "web", Labels: map[string]string{"app": "web"}},
		Spec: &v1.WorkloadSpec{
			Image: "hello:1", Args: []string{"--greeting", "hi"},
			Env:      map[string]string{"LOG_LEVEL": "info", "DEBUG": "true", "PORT": "8080"},
			Replicas: proto.Int32(3),
			Resources: &v1.Resources{
				Requests: &v1.ResourceAmounts{Cpu: "250m", Memory: "128Mi"},
				Limits:   &v1.ResourceAmounts{Cpu: "1", Memory: "256Mi"},
			},
			Ports:     []*v1.Port{{Name: "http", Port: 8080, Publish: 8080}},
			Restart:   &v1.Restart{Policy: "always"},
			Placement: &v1.Placement{Labels: map[string]string{"disk": "ssd"}},
		},
	}
	if !proto.Equal(web, want) {
		t.Errorf("got  %v\nwant %v", web, want)
	}
	if job := docs[1].Message.(*v1.Workload); job.GetSpec().GetRestart().GetMaxBackoff() != "5m" {
		t.Errorf("the job is %v", job)
	}
}

func TestDecodeJSON(t *testing.T) {
	docs, err := spec.Decode("app.json", []byte("\n{\t\"kind\": \"Workload\", \"metadata\": {\"name\": \"a\", \"version\": \"7\", \"annotations\": {\"n\": \"\\ud83d\\ude00\\/\"}}, \"spec\": {\"image\": \"a\", \"stop\": null}}\n"+
		`{"kind": "Workload", "metadata": {"name": "b", "createTime": "2026-01-02T03:04:05Z"}, "spec": {"image": "b", "replicas": 0}}`))
	if err != nil {
		t.Fatal(err)
	}
	a, b := docs[0].Message.(*v1.Workload), docs[1].Message.(*v1.Workload)
	if a.GetMetadata().GetAnnotations()["n"] != "\U0001F600/" || a.GetMetadata().GetVersion() != 7 || a.GetSpec().GetStop() != nil || docs[0].Line != 2 {
		t.Errorf("the first is %v", a)
	}
	if b.GetSpec().Replicas == nil || b.GetMetadata().GetCreateTime().AsTime().Year() != 2026 || docs[1].Line != 3 {
		t.Errorf("the second is %v", b)
	}
}

// Mistakes in a file come with their position.
// fileKinds are the kinds that a file may hold, as an error lists them: the usual one first.
func fileKinds() string {
	var kinds []string
	fields := (&v1.Manifest{}).ProtoReflect().Descriptor().Oneofs().ByName("object").Fields()
	for i := range fields.Len() {
		if kind := string(fields.Get(i).Message().Name()); kind != spec.KindWorkload {
			kinds = append(kinds, kind)
		}
	}
	last := len(kinds) - 1
	return spec.KindWorkload + ", " + strings.Join(kinds[:last], ", ") + " and " + kinds[last]
}

func TestDecodeRefusals(t *testing.T) {
	const head = "kind: Workload\nmetadata: {name: web}\nspec:\n  image: hello\n"
	for _, c := range []struct{ file, want string }{
		{head + "  replcas: 3\n", `f:5:3: spec.replcas: is not a known field; did you mean replicas?`},
		{head + "  stop: {zzz: 1}\n", `f:5:10: spec.stop.zzz: is not a known field; there are grace, signal`},
		{head + "  replicas: three\n", `f:5:13: spec.replicas: must be a whole number between 0 and 100000`},
		{head + "  replicas: 99999999999\n", `f:5:13: spec.replicas: must be a whole number between 0 and 100000`},
		{head + "  readOnlyRoot: 1\n", `f:5:17: spec.readOnlyRoot: must be true or false`},
		{head + "  replicas: -1\n", `f:5:13: spec.replicas: must be between 0 and 100000`},
		{head + "  args: hello\n", `f:5:9: spec.args: must be a list, not a single value`},
		{head + "  args: [a: b]\n", `f:5:10: spec.args[0]: must be a single value, not fields`},
		{head + "  args:\n    - a\n    -\n", `f:7:6: spec.args[1]: is empty; write "" for an empty text`},
		{head + "  restart: always\n", `f:5:12: spec.restart: must have fields, not be a single value`},
		{head + "  env:\n    A: 1\n    A: 2\n", `f:7:5: spec.env: "A" is given twice, first in line 6`},
		{head + "  workingDir: /\n  working_dir: /\n", `f:6:3: spec.workingDir: is given twice, as workingDir and as working_dir`},
		{head + "  network: host\n  ports:\n  - name: http\n    port: 80\n    publish: 90\n", `f:9:14: spec.ports[0].publish: must be 80 like port, or left out: with network host ports are not translated`},
		{head + "  ports:\n  - name: http\n", `f:6:5: spec.ports[0].port: must be between 1 and 65535`},
		{"kind: Workload\nmetadata:\n  labels: {}\nspec: {image: a}\n", `f:2:1: metadata.name: is missing`},
		{"kind: Workload\nspec: {image: a}\n", `f:1:1: metadata: is missing`},
		{"kind: workload\n", `f:1:7: kind: "workload" is not known; did you mean Workload?`},
		{"kind: Pod\n", `f:1:7: kind: "Pod" cannot be in a file; a file may hold ` + fileKinds()},
		{"kind: Server\n", `f:1:7: kind: "Server" cannot be in a file; a file may hold ` + fileKinds()},
		{"kind: services\n", `f:1:7: kind: "services" is not known; did you mean Service?`},
		{"kind: job\n", `f:1:7: kind: "job" is a kind of workload; write kind: Workload with spec.kind: job`},
		{"kind: Daemon\n", `f:1:7: kind: "Daemon" is a kind of workload; write kind: Workload with spec.kind: daemon`},
		{head + "---\nkind: Workload\nmetadata: {name: app}\nspec: {image: app@sha256:0123456789ab}\n", `f:8:15: spec.image: has a digest that is not whole: write all 64 digits, which cloudless image get app@sha256:0123456789ab shows`},
		{"metadata: {name: web}\n", `f:1:1: kind: is missing: write kind: Workload`},
		{"apiVersion: v1\nkind: Workload\n", `f:1:13: apiVersion: "v1" is not known; this version of cloudless reads cloudless/v1`},
		{"- a\n", `f:1:1: must be an object with kind, metadata and spec, not a list`},
		{head + "  env: &e {A: b}\n", `f:5:8: spec.env: anchors and aliases are not read; write the value out`},
		{head + "  user: !!binary aGk=\n", `f:5:9: spec.user: the tag !!binary is not read; write a plain value`},
		{"kind: Workload\n  a: b\n", `f:2:1: is not YAML: mapping values are not allowed in this context`},
		{"{\"kind\": \"Workload\",\n \"metadata\": {\"name\": \"web\"},\n \"spec\": {\"image\": \"a\", \"network\": \"x\"}}", `f:3:36: spec.network: must be node, host or none`},
		{
			"kind: Workload\nmetadata: {name: web}\nspec: {}\n---\nkind: Workload\nmetadata: {name: WEB}\nspec: {image: a}\n",
			"f:3:1: spec.image: is missing: name an image such as hello:1\n" +
				"f:6:18: metadata.name: must be 1 to 63 lower-case letters, digits or dashes, and begin and end with a letter or digit",
		},
		{strings.Repeat("---\na\n", 1001), `f:2002:1: has more than 1000 documents; split it into several files`},
		{strings.Repeat("{}\n", 1001), `f:1001:1: has more than 1000 documents; split it into several files`},
		{strings.Repeat("#", spec.MaxFileSize+1), `f: has 4194305 bytes and may have 4194304; split it into several files`},
		{"kind: Workload\nmetadata: {}\nspec: " + strings.Repeat("[", 300) + strings.Repeat("]", 300), `f:3:7: spec: must have fields, not be a list`},
	} {
		_, err := spec.Decode("f", []byte(c.file))
		if _, ok := errors.AsType[*spec.Error](err); !ok || err.Error() != c.want {
			t.Errorf("%.120q is refused with\n%v\nwant\n%s", c.file, err, c.want)
		}
	}
}

// The object is refused in the same words by the API and in a file.
func TestFileAndAPIUseTheSameWords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &v1.Workload{Kind: "Workload", Metadata: &v1.Metadata{Name: rapid.SampledFrom([]string{"", "web", "WEB"}).Draw(t, "name")}, Spec: anySpec().Draw(t, "spec")}
		file, err := spec.EncodeYAML(w)
		if err != nil {
			t.Fatal(err)
		}
		docs, fromFile := spec.Decode("", file)
		fromAPI := spec.Validate(w)
		if fromAPI == nil {
			if fromFile != nil || !proto.Equal(docs[0].Message, w) {
				t.Fatalf("%s\ncame back as %v: %v", file, docs, fromFile)
			}
			return
		}
		if got, want := words(fromFile), words(fromAPI); got != want {
			t.Fatalf("%s\nthe file says\n%s\nthe API says\n%s", file, got, want)
		}
	})
}

// words are the violations without positions, sorted by text.
func words(err error) string {
	broken, _ := errors.AsType[*spec.Error](err)
	if broken == nil {
		return ""
	}
	lines := map[string]bool{}
	for _, v := range broken.Violations {
		lines[v.Field+": "+v.Message] = true
	}
	return strings.Join(sortedKeys(lines), "\n")
}

func TestEncodingIsStable(t *testing.T) {
	w := hello()
	w.Metadata.Version = 12
	w.Metadata.CreateTime = timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	w.Spec.Replicas = proto.Int32(0)
	w.Spec.Env = map[string]string{"B": "true", "A": "two\nlines\n", "C": "0644"}
	wantYAML := `metadata:
  name: web
  version: "12"
  createTime: "2026-01-02T03:04:05Z"
spec:
  image: hello:1
  env:
    A: |
      two
      lines
    B: "true"
    C: "0644"
  replicas: 0
`
	wantJSON := `{
  "metadata": {
    "name": "web",
    "version": "12",
    "createTime": "2026-01-02T03:04:05Z"
  },
  "spec": {
    "image": "hello:1",
    "env": {
      "A": "two\nlines\n",
      "B": "true",
      "C": "0644"
    },
    "replicas": 0
  }
}
`
	if got, err := spec.EncodeYAML(w); err != nil || string(got) != wantYAML {
		t.Errorf("YAML is\n%s(%v), want\n%s", got, err, wantYAML)
	}
	if got, err := spec.EncodeJSON(w); err != nil || string(got) != wantJSON {
		t.Errorf("JSON is\n%s(%v), want\n%s", got, err, wantJSON)
	}
}

// Any text in any field survives a file.
func TestTextSurvivesYAMLAndJSON(t *testing.T) {
	difficult := rapid.StringOf(rapid.SampledFrom([]rune("a \t\n\r-:#|>'\"\\&*!%@`{}[],?~0\u0085\u2028\ufeff")))
	rapid.Check(t, func(t *rapid.T) {
		text := strings.ReplaceAll(strings.ToValidUTF8(rapid.OneOf(rapid.String(), difficult).Draw(t, "text"), ""), "\x00", "") // which is refused
		w := hello()
		w.Kind = "Workload"
		w.Spec.Args = []string{text}
		w.Spec.Env = map[string]string{"A": text}
		for _, encode := range []func(proto.Message) ([]byte, error){spec.EncodeYAML, spec.EncodeJSON} {
			file, err := encode(w)
			if err != nil {
				t.Fatal(err)
			}
			docs, err := spec.Decode("f", file)
			if err != nil || !proto.Equal(docs[0].Message, w) {
				t.Fatalf("%q became\n%s\n%v %v", text, file, docs, err)
			}
		}
	})
}

// Decode never fails in another way than by a refusal, and what it accepts is
// valid.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		app, `{"kind":"Workload","metadata":{"name":"a"},"spec":{"image":"a"}}`, "a: &a [*a]", "kind: Workload\rspec: {",
		"kind: Workload\nmetadata: {name: a}\nspec: {image: a, args: [~, !!x y]}", "%YAML 1.1\n---\nkind: Workload", "? [a]\n: b", "{}{}",
		"kind: Namespace\nmetadata: {name: a}\nspec: {quota: {cpu: 1.5, memory: 0, replicas: 3, gpu: 0}}", "<<: {kind: Workload}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		docs, err := spec.Decode("f", data)
		if err != nil {
			if broken, ok := errors.AsType[*spec.Error](err); !ok || len(broken.Violations) == 0 || bytes.Contains([]byte(err.Error()), []byte("%!")) {
				t.Fatalf("a file is refused with %v", err)
			}
			return
		}
		for _, doc := range docs {
			if err := spec.Validate(doc.Message); err != nil {
				t.Fatalf("an accepted document is not valid: %v", err)
			}
			if n, ok := doc.Message.(*v1.Namespace); ok {
				normal := proto.CloneOf(n)
				spec.NormalizeNamespace(normal)
				again := proto.CloneOf(normal)
				spec.NormalizeNamespace(again)
				if err := spec.Validate(normal); err != nil || !proto.Equal(normal, again) {
					t.Fatalf("%v in canonical form is %v and then %v: %v", n, normal, again, err)
				}
			}
		}
	})
}
