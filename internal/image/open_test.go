package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/cloudless/cloudless/internal/image"
)

// Every form of the same image can be opened and read completely.
func TestOpenEveryForm(t *testing.T) {
	dir := t.TempDir()
	img := platformed(t, randomImage(t), "amd64")
	path := filepath.Join(dir, "layout")
	l, err := layout.Write(path, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.AppendImage(img); err != nil {
		t.Fatal(err)
	}
	saved := filepath.Join(dir, "saved.tar")
	tag, err := name.NewTag("example.com/saved:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(saved, tag, img); err != nil {
		t.Fatal(err)
	}
	packed := filepath.Join(dir, "oci.tar")
	put(t, packed, tarOf(t, path))
	zipped := filepath.Join(dir, "saved.tar.gz")
	put(t, zipped, gzipped(t, contentOf(t, saved)))

	want, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	for form, kind := range map[string]string{path: "layout", packed: "archive", saved: "archive", zipped: "archive"} {
		s, err := image.Open(form)
		if err != nil {
			t.Errorf("%s: %v", form, err)
			continue
		}
		opened, ok := s.Content.(v1.Image)
		if !ok || s.Kind != kind || !slices.Equal(s.Platforms, []string{"linux/amd64"}) {
			t.Errorf("%s: %T, %s for %v", form, s.Content, s.Kind, s.Platforms)
			continue
		}
		if got, err := opened.ConfigName(); err != nil || got != want {
			t.Errorf("%s has the configuration %v, %v, want %v", form, got, err, want)
		}
		if err := validate.Image(opened); err != nil {
			t.Errorf("%s is not whole: %v", form, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenAProgram(t *testing.T) {
	program := filepath.Join(t.TempDir(), "hello")
	put(t, program, contentOf(t, "/proc/self/exe"))
	s, err := image.Open(program)
	if err != nil && !strings.Contains(err.Error(), "dynamically linked") { // as tests with the race detector are
		t.Fatal(err)
	}
	if err == nil && (s.Kind != "program" || !slices.Equal(s.Platforms, []string{"linux/" + runtime.GOARCH})) {
		t.Errorf("%s for %v", s.Kind, s.Platforms)
	}
}

// An index is pushed with all its platforms.
func TestPushOfAnIndex(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "multi")
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: platformed(t, randomImage(t), "amd64"), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}},
		mutate.IndexAddendum{Add: platformed(t, randomImage(t), "arm64"), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}})
	if _, err := layout.Write(dir, index); err != nil {
		t.Fatal(err)
	}
	s, err := image.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !slices.Equal(s.Platforms, []string{"linux/amd64", "linux/arm64"}) {
		t.Errorf("for %v", s.Platforms)
	}
	host, transport := serve(t, nil)
	got, err := image.Push(t.Context(), s.Content, parse(t, host+"/multi:1"), image.PushOptions{Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	if want, err := index.Digest(); err != nil || got != want.String() {
		t.Errorf("pushed as %s, want %s, %v", got, want, err)
	}
}

func TestOpenRefusesInOneSentence(t *testing.T) {
	dir := t.TempDir()
	for file, content := range map[string][]byte{
		"notes.txt":    []byte("hello"),
		"other.tar":    tarFile(t, map[string]string{"a": "b"}),
		"none.tar":     tarFile(t, map[string]string{"manifest.json": "[]"}),
		"broken.tar":   tarFile(t, map[string]string{"manifest.json": `[{"Config":"c","Layers":["l"]}]`, "c": `{"rootfs":{"diff_ids":[]}}`, "l": ""}),
		"lost.tar":     tarFile(t, map[string]string{"oci-layout": "{}", "index.json": `{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"` + digest + `","size":1}]}`}),
		"empty.tar":    tarFile(t, map[string]string{"oci-layout": "{}", "index.json": `{"manifests":[]}`}),
		"cut.tar.gz":   gzipped(t, tarFile(t, map[string]string{"manifest.json": "[]"}))[:40],
		"escaping.tar": tarFile(t, map[string]string{"manifest.json": `[{"Config":"../../../../etc/passwd","Layers":[]}]`}),
	} {
		put(t, filepath.Join(dir, file), content)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"notes.txt":    "is not an ELF executable",
		"other.tar":    "it is an archive but not of an image",
		"none.tar":     "it holds 0 images",
		"broken.tar":   "it has 1 layers, and its configuration names 0",
		"lost.tar":     "is missing in it",
		"empty.tar":    "it holds no image",
		"cut.tar.gz":   "cannot be read",
		"escaping.tar": "is missing in it",
		"folder":       "is a folder but not an OCI image layout",
		"nothing":      "does not exist",
	} {
		s, err := image.Open(filepath.Join(dir, file))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, %v, want %q", file, s, err, want)
		}
	}
}

// Reading any archive and all its parts ends with an image or an error.
func FuzzOpenArchive(f *testing.F) {
	config := `{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["` + digest + `"]}}`
	f.Add(tarFile(f, map[string]string{"manifest.json": `[{"Config":"c","Layers":["l"]}]`, "c": config, "l": "layer"}))
	f.Add(tarFile(f, map[string]string{"oci-layout": "{}", "index.json": `{"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"` + digest + `"}]}`}))
	f.Fuzz(func(t *testing.T, content []byte) {
		read, err := image.ReadArchive(bytes.NewReader(content))
		if err != nil {
			return
		}
		_ = image.TakeApart(read) // without a registry, which a push asks again and again
	})
}

func platformed(t *testing.T, img v1.Image, arch string) v1.Image {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", arch
	img, err = mutate.ConfigFile(img, config)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func tarFile(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for file, content := range files {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: file, Mode: 0o600, Size: int64(len(content)), Format: tar.FormatPAX}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func tarOf(t *testing.T, dir string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func gzipped(t testing.TB, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func put(t testing.TB, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func contentOf(t testing.TB, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
