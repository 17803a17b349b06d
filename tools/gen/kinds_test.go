package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
)

func TestKindsInRepositoryAreCurrent(t *testing.T) {
	want, err := kindsCode(compileState(t, "../../api"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../internal/state/kinds_gen.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("internal/state/kinds_gen.go is out of date: run make generate")
	}
}

func TestNewKindIsOneLine(t *testing.T) {
	code, err := kindsCode(compileState(t, withKind(t, "cloudless.v1.Node storage_proxy = 99 [(named) = true, (namespaced) = true];")))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`Kind = "storage_proxy"`,
		"{kind: KindStorageProxy, named: true},",
		"func (s *Snapshot) StorageProxy(uid string) *v1.Node {",
		"func (s *Snapshot) StorageProxyByName(namespace, name string) *v1.Node {",
		"// StorageProxies lists the storage proxies by namespace and name.",
		"func (s *Snapshot) StorageProxies(namespace, after string) iter.Seq[*v1.Node] {",
	} {
		if !bytes.Contains(code, []byte(line)) {
			t.Errorf("the code lacks %s", line)
		}
	}
}

func TestImpossibleKindIsRefused(t *testing.T) {
	for field, reason := range map[string]string{
		"cloudless.v1.Node volume = 99 [(namespaced) = true];": "volume is namespaced but not named",
		"string volume = 99;":                "volume is not a message with metadata",
		"cloudless.v1.NodeSpec volume = 99;": "volume is not a message with metadata",
	} {
		_, err := kindsCode(compileState(t, withKind(t, field)))
		if err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: got %v, want %q", field, err, reason)
		}
	}
}

// withKind returns a copy of the API whose stored objects have another kind.
func withKind(t *testing.T, field string) string {
	t.Helper()
	root := t.TempDir()
	if err := os.CopyFS(filepath.Join(root, "cloudless"), os.DirFS("../../api/cloudless")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, stateFile)
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	source = bytes.Replace(source, []byte("oneof kind {\n"), []byte("oneof kind {\n"+field+"\n"), 1)
	if err := os.WriteFile(path, source, 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

func compileState(t *testing.T, root string) []protoreflect.FileDescriptor {
	t.Helper()
	files, err := compile(t.Context(), root, []string{stateFile})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
