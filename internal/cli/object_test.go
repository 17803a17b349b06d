package cli

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/objecttest"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/objects"
	"github.com/cloudless/cloudless/internal/spec"
)

// objectStore is the real service of objects over nodes in memory, with faults that a test plans.
type objectStore struct {
	cloudlessv1.ObjectServiceServer
	disks   *objecttest.Disks
	buckets map[string]object.Bucket

	mu sync.Mutex
	// part is called before each part of an upload, and may refuse it; parts are those that were stored.
	part  func(number int32) error
	parts []int32
	// sent is called before each message of a download with the bytes that were sent, and may end it; offsets are where
	// downloads began.
	sent    func(bytes int64) error
	offsets []int64
}

// withObjects gives the cluster nodes for objects, and the buckets photos and notes, which keeps versions.
func (c *cluster) withObjects(t *testing.T, nodes ...string) *objectStore {
	t.Helper()
	s := c.objects
	s.disks = objecttest.NewDisks(nodes...)
	store, err := object.New(object.Options{Names: objecttest.NewNames(t), Disks: s.disks, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(store.Close)
	s.buckets = map[string]object.Bucket{
		"photos": {UID: "uid-photos", Name: "photos", Namespace: "default", NamespaceUID: "uid-default"},
		"small":  {UID: "uid-small", Name: "small", Namespace: "default", NamespaceUID: "uid-default", Quota: 100},
		"notes":  {UID: "uid-notes", Name: "notes", Namespace: "default", NamespaceUID: "uid-default", Versioning: "enabled"},
	}
	s.ObjectServiceServer, err = objects.New(objects.Options{Store: store, Disks: s.disks, Directory: s, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	return s
}

// FindBucket implements objects.Directory.
func (s *objectStore) FindBucket(_ context.Context, namespace, name string) (object.Bucket, *cloudlessv1.Bucket, error) {
	b, ok := s.buckets[name]
	if !ok || namespace != "default" {
		return b, nil, object.ErrNoBucket
	}
	return b, &cloudlessv1.Bucket{}, nil
}

// plan sets the faults from now on, and forgets what was stored and sent.
func (s *objectStore) plan(part func(int32) error, sent func(int64) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.part, s.sent, s.parts, s.offsets = part, sent, nil, nil
}

func (s *objectStore) PutObjectPart(stream grpc.ClientStreamingServer[cloudlessv1.PutObjectPartRequest, cloudlessv1.ObjectPart]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	s.mu.Lock()
	before := s.part
	s.mu.Unlock()
	if before != nil {
		if err := before(first.GetHeader().GetNumber()); err != nil {
			return err
		}
	}
	err = s.ObjectServiceServer.PutObjectPart(&withFirst[cloudlessv1.PutObjectPartRequest, cloudlessv1.ObjectPart]{stream, first})
	if err == nil {
		s.mu.Lock()
		s.parts = append(s.parts, first.GetHeader().GetNumber())
		s.mu.Unlock()
	}
	return err
}

// withFirst is a stream whose first message was received already.
type withFirst[Request, Response any] struct {
	grpc.ClientStreamingServer[Request, Response]
	first *Request
}

func (w *withFirst[Request, Response]) Recv() (*Request, error) {
	if first := w.first; first != nil {
		w.first = nil
		return first, nil
	}
	return w.ClientStreamingServer.Recv()
}

func (s *objectStore) GetObject(request *cloudlessv1.GetObjectRequest, stream grpc.ServerStreamingServer[cloudlessv1.GetObjectResponse]) error {
	s.mu.Lock()
	s.offsets = append(s.offsets, request.GetOffset())
	before := s.sent
	s.mu.Unlock()
	return s.ObjectServiceServer.GetObject(request, &counting{stream, before, 0})
}

// counting is a download that may end early.
type counting struct {
	grpc.ServerStreamingServer[cloudlessv1.GetObjectResponse]
	before func(int64) error
	bytes  int64
}

func (c *counting) Send(m *cloudlessv1.GetObjectResponse) error {
	if c.before != nil {
		if err := c.before(c.bytes); err != nil {
			return err
		}
	}
	c.bytes += int64(len(m.GetData()))
	return c.ServerStreamingServer.Send(m)
}

// statusOf maps the errors of the real services as a server does.
func statusOf() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.UnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			answer, err := h(ctx, r)
			return answer, core.StatusOf(err)
		}),
		grpc.StreamInterceptor(func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			return core.StatusOf(h(service, stream))
		}),
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// file writes a file of a test and returns its path.
func file(t *testing.T, path string, content []byte) string {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o777))
	must(t, os.WriteFile(path, content, 0o666))
	return path
}

func wantFile(t *testing.T, path string, content []byte) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%s has %d bytes, want others or %d (%v)", path, len(got), len(content), err)
	}
}

// filesIn are the paths of all files in a folder.
func filesIn(t *testing.T, folder string) (paths []string) {
	t.Helper()
	must(t, filepath.WalkDir(folder, func(at string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			paths = append(paths, strings.TrimPrefix(at, folder+"/"))
		}
		return err
	}))
	return paths
}

func random(size int, seed byte) []byte {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(data)
	return data
}

// do runs a command about objects that must succeed.
func (c *cluster) do(t *testing.T, args ...string) result {
	t.Helper()
	got := c.run(t.Context(), "", args...)
	if got.code != 0 {
		t.Fatalf("%q: %+v", args, got)
	}
	return got
}

func TestObjectCommandsSayWhatTheyDid(t *testing.T) {
	c := newCluster(t)
	c.withObjects(t, "one", "two")
	t.Chdir(t.TempDir())
	file(t, "cat.txt", []byte("meow"))
	for _, step := range []struct {
		args []string
		want string
	}{
		{[]string{"put", "cat.txt", "photos"}, "object photos/cat.txt put: 4\n"},
		{[]string{"put", "cat.txt", "photos/2026/", "--metadata", "by=ann"}, "object photos/2026/cat.txt put: 4\n"},
		{[]string{"ls", "photos"}, "2026/"},
		{[]string{"ls", "photos", "-r"}, "2026/cat.txt"},
		{[]string{"head", "photos/2026/cat.txt"}, "by=ann"},
		{[]string{"head", "photos/2026/cat.txt"}, "text/plain"},
		{[]string{"cp", "photos/cat.txt", "notes/"}, "object photos/cat.txt copied to notes/cat.txt: 4\n"},
		{[]string{"cp", "./cat.txt", "photos/dog.txt"}, "object photos/dog.txt put: 4\n"},
		{[]string{"cp", "photos/dog.txt", "./dog.txt"}, "object photos/dog.txt is in ./dog.txt: 4\n"},
		{[]string{"get", "photos/cat.txt", "-"}, "meow"},
		{[]string{"where", "photos/cat.txt"}, "2 of 2"},
		{[]string{"rm", "photos/dog.txt"}, "object photos/dog.txt removed\n"},
		{[]string{"rm", "-r", "photos/"}, "2 objects removed from bucket photos\n"},
		{[]string{"rm", "notes/cat.txt"}, "object notes/cat.txt removed\n"},
		{[]string{"ls", "notes", "--versions"}, "deleted"},
	} {
		if got := c.do(t, append([]string{"object"}, step.args...)...); !strings.Contains(got.stdout, step.want) || got.stderr != "" {
			t.Errorf("%q does not show %q: %+v", step.args, step.want, got)
		}
	}
	wantFile(t, "dog.txt", []byte("meow"))
	c.do(t, "object", "ls", "photos").expect(t, 0, "", "no objects in bucket photos\n")
}

func TestObjectsAsJSON(t *testing.T) {
	c := newCluster(t)
	c.withObjects(t, "one")
	t.Chdir(t.TempDir())
	file(t, "all/a", []byte("aa"))
	file(t, "all/b", []byte("bb"))
	for _, step := range []struct {
		args  []string
		want  []string
		lines int // one for each object; 0 is one whole document
	}{
		{[]string{"put", "all/a", "photos/a"}, []string{`"key": "a"`, `"size": "2"`, `"bucket": "photos"`}, 0},
		{[]string{"put", "-r", "all", "photos/all"}, []string{`"key":"all/a"`, `"key":"all/b"`}, 2},
		{[]string{"head", "photos/a"}, []string{`"etag":`, `"version": "null"`}, 0},
		{[]string{"ls", "photos"}, []string{`"key": "a"`, `"prefixes": [`, `"all/"`}, 0},
		{[]string{"where", "photos/a"}, []string{`"nodes": [`, `"one"`, `"copies": 1`}, 0},
		{[]string{"cp", "photos/a", "photos/c"}, []string{`"key": "c"`}, 0},
		{[]string{"get", "photos/a", "a"}, []string{`"key": "a"`}, 0},
		{[]string{"get", "-r", "photos", "back"}, []string{`"key":"a"`, `"key":"all/b"`, `"key":"c"`}, 4},
		{[]string{"rm", "photos/a"}, []string{"{"}, 0},
		{[]string{"rm", "-r", "photos"}, []string{"{"}, 3},
	} {
		got := c.do(t, append([]string{"object", "-o", "json"}, step.args...)...)
		for _, want := range step.want {
			if !strings.Contains(got.stdout, want) || step.lines > 0 && strings.Count(got.stdout, "\n") != step.lines || got.stderr != "" {
				t.Errorf("%q does not show %q in %d lines: %+v", step.args, want, step.lines, got)
			}
		}
	}
}

func TestFoldersArePutAndGetWhole(t *testing.T) {
	c := newCluster(t)
	c.withObjects(t, "one")
	t.Chdir(t.TempDir())
	content := map[string][]byte{"a": nil, "b c/ü": random(100_000, 1), "b c/deep/er/..x": random(10, 2), "-": {0}}
	for name, data := range content {
		file(t, "from/"+name, data)
	}
	must(t, os.Symlink("a", "from/link"))
	got := c.do(t, "object", "put", "-r", "from", "photos/to")
	got.expect(t, 0, "4 files put into photos/to/: 97.6Ki\n", "left out from/link: it is not a file\n")
	c.do(t, "object", "get", "-r", "photos/to", "back/deep").expect(t, 0, "4 objects are in back/deep\n", "")
	for name, data := range content {
		wantFile(t, "back/deep/"+name, data)
	}
	if all := filesIn(t, "back"); len(all) != len(content) {
		t.Errorf("beside the objects there is something else: %q", all)
	}
}

func TestStandardInputAndOutput(t *testing.T) {
	c := newCluster(t)
	c.withObjects(t, "one")
	content := string(random(9<<20, 3))
	c.run(t.Context(), content, "object", "put", "-", "photos/in").expect(t, 0, "object photos/in put: 9Mi\n", "")
	if got := c.do(t, "object", "get", "photos/in", "-"); got.stdout != content || got.stderr != "" {
		t.Errorf("%d bytes came back, and %q", len(got.stdout), got.stderr)
	}
	c.run(t.Context(), "", "object", "put", "-", "photos/empty").expect(t, 0, "object photos/empty put: 0\n", "")
	c.do(t, "object", "get", "photos/empty", "-").expect(t, 0, "", "")
}

func TestOddKeys(t *testing.T) {
	c := newCluster(t)
	c.withObjects(t, "one")
	t.Chdir(t.TempDir())
	long := strings.Repeat("d/", 400) + strings.Repeat("k", 224)
	for _, key := range []string{"with space", "/leading", "../up", "a/../b", "a//b", "ключ/鍵/🔑", "'quotes\"", "%2F", "tab\there", "-rf", ".", long} {
		c.run(t.Context(), key, "object", "put", "-", "photos/"+key).expect(t, 0, "object photos/"+strings.ReplaceAll(key, "\t", " ")+" put: "+spec.HumanBytes(int64(len(key)))+"\n", "")
		c.do(t, "object", "get", "photos/"+key, "-").expect(t, 0, key, "")
		c.do(t, "object", "get", "photos/"+key, "got")
		wantFile(t, "got", []byte(key))
		c.do(t, "object", "head", "photos/"+key)
		c.do(t, "object", "where", "photos/"+key)
		c.do(t, "object", "cp", "photos/"+key, "notes/"+key)
	}
	got := c.run(t.Context(), "", "object", "get", "-r", "photos", "here/all")
	for _, want := range []string{"left out /leading: it cannot", "left out ../up: it cannot", "left out a/../b: it cannot", "left out a//b: it cannot", "5 objects could not be written"} {
		if got.code != 1 || !strings.Contains(got.stderr, want) {
			t.Errorf("%+v, want %q", got, want)
		}
	}
	for _, at := range filesIn(t, ".") {
		if at != "got" && !strings.HasPrefix(at, "here/all/") {
			t.Errorf("%s is outside of the folder", at)
		}
	}
	wantFile(t, "here/all/ключ/鍵/🔑", []byte("ключ/鍵/🔑"))
	wantFile(t, "here/all/"+long, []byte(long))
}

func TestNamesThatCannotBeFilesAreLeftOut(t *testing.T) {
	c := newCluster(t)
	c.withObjects(t, "one")
	t.Chdir(t.TempDir())
	long := strings.Repeat("n", 300)
	for _, key := range []string{"a", "a/below", "b", long, strings.Repeat("m", 255), "x"} {
		c.run(t.Context(), key, "object", "put", "-", "photos/"+key)
	}
	must(t, os.MkdirAll("to/b", 0o777))
	got := c.run(t.Context(), "", "object", "get", "-r", "photos", "to")
	for _, want := range []string{"left out a/below: ", "left out b: to/b exists and is not a file", "left out " + long, "3 objects could not be written"} {
		if got.code != 1 || !strings.Contains(got.stderr, want) {
			t.Errorf("%+v, want %q", got, want)
		}
	}
	if all := filesIn(t, "to"); !slices.Equal(all, []string{"a", strings.Repeat("m", 255), "x"}) {
		t.Errorf("there are the files %q", all)
	}
}

func TestWrongObjectsAreRefusedWithAWayOut(t *testing.T) {
	c := newCluster(t)
	c.withObjects(t, "one")
	t.Chdir(t.TempDir())
	file(t, "cat", []byte("meow"))
	file(t, "large", random(200, 1))
	file(t, "folder/cat", []byte("meow"))
	c.do(t, "object", "put", "cat", "photos/cat")
	c.do(t, "object", "put", "cat", "photos/folder/dog")
	must(t, os.MkdirAll("target/cat", 0o777))
	for _, test := range []struct {
		line, want string
		code       int
	}{
		{"put cat nowhere", "bucket nowhere does not exist in namespace default; see: cloudless bucket ls, or create it with: cloudless bucket create nowhere", 1},
		{"get nowhere/cat .", "bucket nowhere does not exist", 1},
		{"ls nowhere", "bucket nowhere does not exist", 1},
		{"get photos/dog .", "see those that exist with: cloudless object ls photos", 1},
		{"head photos/dog", "see those that exist with: cloudless object ls photos", 1},
		{"rm photos/dog", "see those that exist with: cloudless object ls photos", 1},
		{"where photos/dog", "see those that exist with: cloudless object ls photos", 1},
		{"cp photos/dog photos/dog2", "see those that exist with: cloudless object ls photos", 1},
		{"head photos/cat --version 00000000000000000000000000000000", "cloudless object ls photos/cat --versions", 1},
		{"put lost photos", "lost does not exist", 1},
		{"put -r lost photos", "lost does not exist", 1},
		{"put folder photos", "folder is a folder: add -r", 2},
		{"cp ./folder photos", "./folder is a folder: add -r", 2},
		{"get photos .", `"photos" is a bucket: add -r`, 2},
		{"get photos/cat target", "target/cat exists and is not a file", 1},
		{"get photos/folder/ target/", "", 1},
		{"get -r photos -", "name a folder", 1},
		{"put - photos", "standard input has no name: write BUCKET/KEY", 2},
		{"put /dev/null photos", "/dev/null is not a file: put its content with", 1},
		{"put cat photos/cat --if-absent", "cloudless object head photos/cat", 1},
		{"put cat photos/x --metadata by", "--metadata", 1},
		{"put large small", "bucket small would have 200 bytes and may have 100", 1},
		{"head photos", "write BUCKET/KEY", 2},
		{"rm photos", "write BUCKET/KEY", 2},
		{"rm ./cat", `"./cat" is not an object`, 2},
		{"rm -r photos/ --version null", "--version is that of one object", 2},
		{"cp photos films", "cp copies one object", 2},
		{"cp -r photos/folder films", "cp copies one object", 2},
		{"put cat photos/" + strings.Repeat("k", 1025), "1 to 1,024 bytes", 1},
	} {
		got := c.run(t.Context(), "", append([]string{"object"}, strings.Fields(test.line)...)...)
		if got.code != test.code || got.stdout != "" || !strings.HasPrefix(got.stderr, "cloudless: ") || !strings.Contains(got.stderr, test.want) {
			t.Errorf("%s: %+v, want exit code %d and %q", test.line, got, test.code, test.want)
		}
	}
	token, _ := c.token(t)
	if got := c.run(t.Context(), token+"\n", "object", "put", "-", "photos/x", "--token-file", "-"); got.code != 2 || !strings.Contains(got.stderr, "cannot be both") {
		t.Errorf("%+v", got)
	}
	if all := filesIn(t, "target"); len(all) > 0 {
		t.Errorf("refused commands have left %q", all)
	}
}

func TestFilesWhoseNamesAreNoKeysAreLeftOut(t *testing.T) {
	c := newCluster(t)
	c.withObjects(t, "one")
	t.Chdir(t.TempDir())
	file(t, "from/good", []byte("x"))
	file(t, "from/bad\xff", []byte("x"))
	got := c.run(t.Context(), "", "object", "put", "-r", "from", "photos")
	if got.code != 1 || !strings.Contains(got.stderr, "a key is 1 to 1,024 bytes of UTF-8") || !strings.Contains(got.stderr, "1 file could not be put") {
		t.Errorf("%+v", got)
	}
	c.do(t, "object", "head", "photos/good")
	if got := c.run(t.Context(), "", "object", "put", "from/bad\xff", "photos"); got.code != 1 || !strings.Contains(got.stderr, "UTF-8") {
		t.Errorf("%+v", got)
	}
}

func TestOldVersionsAreGotByTheirIDs(t *testing.T) {
	c := newCluster(t)
	s := c.withObjects(t, "one")
	photos := s.buckets["photos"]
	c.run(t.Context(), "first", "object", "put", "-", "photos/cat")
	photos.Versioning = "enabled"
	s.buckets["photos"] = photos
	c.run(t.Context(), "second", "object", "put", "-", "photos/cat")
	c.do(t, "object", "get", "photos/cat", "-").expect(t, 0, "second", "")
	c.do(t, "object", "get", "photos/cat", "-", "--version", "null").expect(t, 0, "first", "")
}
