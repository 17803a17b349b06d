package tarcopy_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/tarcopy"
)

// world makes files: "dir/" is a folder, "a -> b" a link, "name=text" a file.
func world(t *testing.T, what ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, one := range what {
		name, target, link := strings.Cut(one, " -> ")
		file, text, _ := strings.Cut(one, "=")
		var err error
		switch {
		case link:
			err = os.Symlink(target, filepath.Join(dir, name))
		case strings.HasSuffix(one, "/"):
			err = os.MkdirAll(filepath.Join(dir, one), 0o755)
		default:
			err = os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644)
		}
		must.Succeed(t, err)
	}
	return dir
}

// inside is a container's tree: its root is the folder.
func inside(t *testing.T, dir string) *tarcopy.Tree {
	t.Helper()
	f, err := os.Open(dir)
	must.Succeed(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return tarcopy.Inside(f)
}

// list shows a folder the way world makes it.
func list(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	must.Succeed(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		switch {
		case d.IsDir():
			all = append(all, rel+"/")
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			all = append(all, rel+" -> "+target)
			return err
		case d.Type().IsRegular():
			text, err := os.ReadFile(path)
			all = append(all, rel+"="+string(text))
			return err
		default:
			all = append(all, rel+" "+d.Type().String())
		}
		return nil
	}))
	slices.Sort(all)
	return all
}

func wantFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := list(t, dir); !slices.Equal(got, want) {
		t.Errorf("there is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func pack(t *testing.T, tree *tarcopy.Tree, path string) []byte {
	t.Helper()
	var archive bytes.Buffer
	must.Succeed(t, tree.Pack(t.Context(), &archive, path, tarcopy.PackOptions{As: tarcopy.Base(path)}))
	return archive.Bytes()
}

// transfer copies like the command does.
func transfer(t *testing.T, from *tarcopy.Tree, path string, to *tarcopy.Tree, o tarcopy.UnpackOptions) error {
	t.Helper()
	return to.Unpack(t.Context(), bytes.NewReader(pack(t, from, path)), o)
}

func TestCopyIsTheSameTree(t *testing.T) {
	from := world(t, "data/", "data/a=one", "data/sub/", "data/sub/b=two", "data/empty/", "data/up -> ../../x", "data/abs -> /etc/passwd", "data/near -> a")
	must.Succeed(t, os.Chmod(filepath.Join(from, "data/a"), 0o751))
	must.Succeed(t, os.Chmod(filepath.Join(from, "data/sub"), 0o500))
	then := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	must.Succeed(t, os.Chtimes(filepath.Join(from, "data/a"), then, then))
	must.Succeed(t, os.Chtimes(filepath.Join(from, "data/sub"), then, then))
	to := t.TempDir()
	var total int64
	var archive bytes.Buffer
	must.Succeed(t, inside(t, from).Pack(t.Context(), &archive, "/data", tarcopy.PackOptions{As: "data", Total: func(n int64) { total = n }}))
	must.Succeed(t, tarcopy.Local().Unpack(t.Context(), &archive, tarcopy.UnpackOptions{Path: to}))
	wantFiles(t, to, "data/", "data/a=one", "data/sub/", "data/sub/b=two", "data/empty/", "data/up -> ../../x", "data/abs -> /etc/passwd", "data/near -> a")
	if total != 6 {
		t.Errorf("%d bytes announced", total)
	}
	for name, mode := range map[string]fs.FileMode{"data/a": 0o751, "data/sub": 0o500 | fs.ModeDir} {
		info, err := os.Stat(filepath.Join(to, name))
		must.Succeed(t, err)
		if info.Mode() != mode || !info.ModTime().Equal(then) {
			t.Errorf("%s: %v %v", name, info.Mode(), info.ModTime())
		}
	}
}

func TestTargetsFollowTheRulesOfCp(t *testing.T) {
	for _, c := range []struct {
		name, from, to string
		there          []string
		want           []string
		refusal        string
	}{
		{name: "a file under a new name", from: "/f", to: "/new", want: []string{"new=file"}},
		{name: "a file into a folder", from: "/f", to: "/d", there: []string{"d/"}, want: []string{"d/", "d/f=file"}},
		{name: "a file into a folder with a slash", from: "/f", to: "/d/", there: []string{"d/"}, want: []string{"d/", "d/f=file"}},
		{name: "a file over a file", from: "/f", to: "/old", there: []string{"old=before"}, want: []string{"old=file"}},
		{name: "a file through a link", from: "/f", to: "/l", there: []string{"d/", "d/old=before", "l -> /d/old"}, want: []string{"d/", "d/old=file", "l -> /d/old"}},
		{name: "a file through a link to nothing", from: "/f", to: "/l", there: []string{"d/", "l -> d/new"}, want: []string{"d/", "d/new=file", "l -> d/new"}},
		{name: "a folder under a new name", from: "/t", to: "/new", want: []string{"new/", "new/x=1"}},
		{name: "a folder under a new name with a slash", from: "/t", to: "/new/", want: []string{"new/", "new/x=1"}},
		{name: "a folder into a folder", from: "/t", to: "/d", there: []string{"d/"}, want: []string{"d/", "d/t/", "d/t/x=1"}},
		{name: "a folder over its like", from: "/t", to: "/d", there: []string{"d/", "d/t/", "d/t/x=0", "d/t/y=2"}, want: []string{"d/", "d/t/", "d/t/x=1", "d/t/y=2"}},
		{name: "what is in a folder", from: "/t/.", to: "/d", there: []string{"d/", "d/y=2"}, want: []string{"d/", "d/y=2", "d/x=1"}},
		{name: "what is in a folder under a new name", from: "/t/.", to: "/new", want: []string{"new/", "new/x=1"}},
		{name: "a link that was named", from: "/l", to: "/new", want: []string{"new=file"}},
		{name: "a file into no folder", from: "/f", to: "/none/", refusal: "folder /none/ does not exist: make it first"},
		{name: "no folder to put it in", from: "/f", to: "/none/deep", refusal: "folder /none does not exist: make it first"},
		{name: "a folder over a file", from: "/t", to: "/old", there: []string{"old=1"}, want: []string{"old=1"}, refusal: "/old is a file"},
		{name: "a file over a folder", from: "/f", to: "/d", there: []string{"d/", "d/f/"}, want: []string{"d/", "d/f/"}, refusal: "is a folder: a file cannot be put in its place"},
		{name: "a folder over a file inside", from: "/t", to: "/d", there: []string{"d/", "d/t=1"}, want: []string{"d/", "d/t=1"}, refusal: "is a file: a folder cannot"},
		{name: "through a file", from: "/f", to: "/old/x", there: []string{"old=1"}, want: []string{"old=1"}, refusal: "not a folder"},
		{name: "links in a circle", from: "/f", to: "/a", there: []string{"a -> b", "b -> a"}, want: []string{"a -> b", "b -> a"}, refusal: "a link that cannot be followed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			from := world(t, "f=file", "t/", "t/x=1", "l -> /f")
			to := world(t, c.there...)
			err := transfer(t, inside(t, from), c.from, inside(t, to), tarcopy.UnpackOptions{Path: c.to, Content: strings.HasSuffix(c.from, "/.")})
			if (c.refusal == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.refusal)) {
				t.Errorf("error %v, want %q", err, c.refusal)
			}
			wantFiles(t, to, c.want...)
		})
	}
}

// A container's links mean places in the container, never on the machine.
func TestLinksDoNotLeadOutOfATree(t *testing.T) {
	secret := world(t, "key=secret", "etc/")
	up := strings.Repeat("../", 30)
	root := world(
		t, "etc/", "etc/key=mine",
		"abs -> "+secret, "up -> "+up+secret, "file -> "+secret+"/key", "here -> /etc/key", "proc -> /proc/self/root"+secret,
	)
	tree := inside(t, root)
	for _, path := range []string{"/abs/key", "/up/key", "/file", up + secret + "/key", "/etc/../" + up + secret + "/key", "/proc/key"} {
		var got bytes.Buffer
		if err := tree.Pack(t.Context(), &got, path, tarcopy.PackOptions{As: "x"}); err == nil || bytes.Contains(got.Bytes(), []byte("secret")) {
			t.Errorf("%s was read: %v", path, err)
		}
	}
	if got := pack(t, tree, "/here"); !bytes.Contains(got, []byte("mine")) {
		t.Error("a link inside does not lead to where it leads inside")
	}
	// A folder is packed with its links as links.
	if got := pack(t, tree, "/"); bytes.Contains(got, []byte("secret\x00")) {
		t.Error("a link inside a folder was followed")
	}
	gift := world(t, "key=overwritten")
	for _, path := range []string{"/abs", "/abs/key", "/up/key", "/file", up + secret + "/key", "/proc/key"} {
		err := transfer(t, tarcopy.Local(), gift+"/key", tree, tarcopy.UnpackOptions{Path: path})
		if err == nil {
			t.Errorf("%s was written", path)
		}
	}
	wantFiles(t, secret, "key=secret", "etc/")
}

// header is one entry of an archive that is made by hand.
type header struct {
	kind   byte
	name   string
	target string
	text   string
}

func archive(t *testing.T, headers ...header) io.Reader {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		must.Succeed(t, w.WriteHeader(&tar.Header{Typeflag: h.kind, Name: h.name, Linkname: h.target, Size: int64(len(h.text)), Mode: 0o644}))
		_, err := w.Write([]byte(h.text))
		must.Succeed(t, err)
	}
	must.Succeed(t, w.Close())
	return &out
}

func TestAnArchiveCannotWriteOutsideOfItsFolder(t *testing.T) {
	outside := world(t, "key=secret")
	folder := header{kind: tar.TypeDir, name: "t/"}
	for name, headers := range map[string][]header{
		"dots":                {folder, {kind: tar.TypeReg, name: "t/../../x", text: "x"}},
		"dots that come back": {folder, {kind: tar.TypeReg, name: "t/../t2", text: "x"}},
		"absolute":            {folder, {kind: tar.TypeReg, name: "/x", text: "x"}},
		"absolute behind top": {folder, {kind: tar.TypeReg, name: "t//x", text: "x"}},
		"beside":              {folder, {kind: tar.TypeReg, name: "other/x", text: "x"}},
		"top is dots":         {{kind: tar.TypeDir, name: "../"}},
		"top is a path":       {{kind: tar.TypeReg, name: "a/b", text: "x"}},
		"top is empty":        {{kind: tar.TypeReg, name: "", text: "x"}},
		"through a link":      {folder, {kind: tar.TypeSymlink, name: "t/l", target: outside}, {kind: tar.TypeReg, name: "t/l/key", text: "x"}},
		"through dots":        {folder, {kind: tar.TypeSymlink, name: "t/l", target: "../.."}, {kind: tar.TypeReg, name: "t/l/x", text: "x"}},
		"a folder by a link":  {folder, {kind: tar.TypeSymlink, name: "t/l", target: outside}, {kind: tar.TypeDir, name: "t/l/"}, {kind: tar.TypeReg, name: "t/l/x", text: "x"}},
		"hard link":           {folder, {kind: tar.TypeLink, name: "t/l", target: outside + "/key"}},
		"device":              {folder, {kind: tar.TypeChar, name: "t/null"}},
		"two files":           {{kind: tar.TypeReg, name: "a", text: "x"}, {kind: tar.TypeReg, name: "b", text: "x"}},
		"nothing":             {},
	} {
		t.Run(name, func(t *testing.T) {
			to := world(t, "d/")
			err := inside(t, to).Unpack(t.Context(), archive(t, headers...), tarcopy.UnpackOptions{Path: "/d"})
			if err == nil {
				t.Error("it was taken")
			}
			wantFiles(t, to, "d/")
			wantFiles(t, outside, "key=secret")
		})
	}
}

// Whatever a container renames while it is copied, the copy stays inside.
func TestLinksCreatedMeanwhileAreNotFollowed(t *testing.T) {
	secret := world(t, "key=secret", "x/", "x/key=secret")
	root := world(t, "d/", "d/x/", "d/x/key=mine", "spare -> "+secret+"/x")
	tree := inside(t, root)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // swaps the folder with a link to elsewhere, as fast as it can
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, root+"/d/x", unix.AT_FDCWD, root+"/spare", unix.RENAME_EXCHANGE)
			}
		}
	}()
	gift := pack(t, tarcopy.Local(), world(t, "x/", "x/key=overwritten")+"/x")
	for range 500 {
		var got bytes.Buffer
		_ = tree.Pack(t.Context(), &got, "/d", tarcopy.PackOptions{As: "d"})
		_ = tree.Pack(t.Context(), &got, "/d/x/key", tarcopy.PackOptions{As: "key"})
		if bytes.Contains(got.Bytes(), []byte("secret\x00")) {
			t.Fatal("a file outside was read")
		}
		_ = tree.Unpack(t.Context(), bytes.NewReader(gift), tarcopy.UnpackOptions{Path: "/d"})
		_ = tree.Unpack(t.Context(), bytes.NewReader(gift), tarcopy.UnpackOptions{Path: "/d/x"})
	}
	close(stop)
	<-stopped
	wantFiles(t, secret, "key=secret", "x/", "x/key=secret")
}

func TestAbortedCopyLeavesNothing(t *testing.T) {
	from := world(t, "big="+strings.Repeat("x", 1<<20), "t/", "t/a="+strings.Repeat("a", 1<<18), "t/b="+strings.Repeat("b", 1<<18))
	for _, c := range []struct {
		path, to string
		there    []string
		want     []string
	}{
		{path: "/big", to: "/new"},
		{path: "/big", to: "/old", there: []string{"old=before"}, want: []string{"old=before"}},
		{path: "/t", to: "/new"},
		{path: "/t", to: "/", there: []string{"t/", "t/b=before"}, want: []string{"t/", "t/b=before", "t/a=" + strings.Repeat("a", 1<<18)}},
	} {
		t.Run(c.path+" to "+c.to, func(t *testing.T) {
			whole := pack(t, inside(t, from), c.path)
			to := world(t, c.there...)
			cut := errors.New("cable cut")
			half := io.MultiReader(bytes.NewReader(whole[:len(whole)*3/4]), failing{cut})
			if err := inside(t, to).Unpack(t.Context(), half, tarcopy.UnpackOptions{Path: c.to}); !errors.Is(err, cut) {
				t.Errorf("error %v", err)
			}
			wantFiles(t, to, c.want...)
		})
	}
	t.Run("at the very end", func(t *testing.T) {
		to := t.TempDir()
		cut := errors.New("cable cut")
		late := io.MultiReader(bytes.NewReader(pack(t, inside(t, from), "/t")), failing{cut})
		if err := inside(t, to).Unpack(t.Context(), late, tarcopy.UnpackOptions{Path: "/new"}); !errors.Is(err, cut) {
			t.Errorf("error %v", err)
		}
		wantFiles(t, to)
	})
	t.Run("by an interrupt", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		to := t.TempDir()
		r := io.MultiReader(bytes.NewReader(pack(t, inside(t, from), "/t")[:300<<10]), onRead(cancel), failing{io.ErrUnexpectedEOF})
		if err := inside(t, to).Unpack(ctx, r, tarcopy.UnpackOptions{Path: "/new"}); err == nil {
			t.Error("no error")
		}
		wantFiles(t, to)
	})
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

type onRead func()

func (f onRead) Read([]byte) (int, error) { f(); return 0, io.EOF }

func TestSpecialFilesAreSkippedOrRefused(t *testing.T) {
	from := world(t, "t/", "t/a=1")
	must.Succeed(t, syscall.Mkfifo(from+"/t/pipe", 0o600))
	tree := inside(t, from)
	if err := tree.Pack(t.Context(), io.Discard, "/t/pipe", tarcopy.PackOptions{As: "pipe"}); err == nil || !strings.Contains(err.Error(), "/t/pipe is a pipe: only files, folders and links can be copied") {
		t.Errorf("a pipe: %v", err)
	}
	var skipped []string
	skip := func(name, what string) { skipped = append(skipped, name+" "+what) }
	to := t.TempDir()
	must.Succeed(t, transfer(t, tree, "/t", inside(t, to), tarcopy.UnpackOptions{Path: "/", Skipped: skip}))
	must.Succeed(t, tree.Pack(t.Context(), io.Discard, "/t", tarcopy.PackOptions{As: "t", Skipped: skip}))
	if !slices.Equal(skipped, []string{"t/pipe device, pipe or socket", "/t/pipe pipe"}) {
		t.Errorf("left out: %q", skipped)
	}
	wantFiles(t, to, "t/", "t/a=1")
	if err := transfer(t, tree, "/t", inside(t, t.TempDir()), tarcopy.UnpackOptions{Path: "/"}); err == nil {
		t.Error("a pipe was taken")
	}
	if err := transfer(t, tree, "/t/a", inside(t, from), tarcopy.UnpackOptions{Path: "/t/pipe"}); err == nil || !strings.Contains(err.Error(), "is a pipe") {
		t.Errorf("a file over a pipe: %v", err)
	}
	machine := inside(t, "/")
	if err := machine.Pack(t.Context(), io.Discard, "/proc/self/status", tarcopy.PackOptions{As: "x"}); err == nil || !strings.Contains(err.Error(), "made up by the kernel") {
		t.Errorf("a file of the kernel: %v", err)
	}
	if err := machine.Pack(t.Context(), io.Discard, "/dev/null", tarcopy.PackOptions{As: "x"}); err == nil || !strings.Contains(err.Error(), "is a device") {
		t.Errorf("a device: %v", err)
	}
}

func TestOwnersAndSetuidBitsAreDropped(t *testing.T) {
	if testing.Short() && os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	from := world(t, "t/", "t/su=program", "t/l -> su")
	must.Succeed(t, os.Chown(from+"/t/su", 4711, 4711))
	must.Succeed(t, os.Chmod(from+"/t/su", 0o755|fs.ModeSetuid|fs.ModeSetgid))
	to := t.TempDir()
	must.Succeed(t, transfer(t, inside(t, from), "/t", inside(t, to), tarcopy.UnpackOptions{Path: "/", Owner: &tarcopy.Owner{UID: 1234, GID: 5678}}))
	for _, name := range []string{"t", "t/su", "t/l"} {
		info, err := os.Lstat(filepath.Join(to, name))
		must.Succeed(t, err)
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 1234 || st.Gid != 5678 || info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			t.Errorf("%s: owner %d:%d, %v", name, st.Uid, st.Gid, info.Mode())
		}
	}
}

func TestShrinkingFileIsAnError(t *testing.T) {
	from := world(t, "log="+strings.Repeat("x", 1<<20))
	w := writerFunc(func(b []byte) (int, error) { return len(b), os.Truncate(from+"/log", 10) })
	err := inside(t, from).Pack(t.Context(), w, "/log", tarcopy.PackOptions{As: "log"})
	if err == nil || !strings.Contains(err.Error(), "became shorter while it was read") {
		t.Errorf("error %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestBase(t *testing.T) {
	for path, want := range map[string]string{"/": ".", "": ".", "/a": "a", "/a/b/": "b", "/a/.": "a", "/a/..": ".", "a": "a"} {
		if got := tarcopy.Base(path); got != want {
			t.Errorf("Base(%q) is %q, want %q", path, got, want)
		}
	}
}

// A file with holes takes a few bytes in an archive, and could fill the disk of whoever copies it out of a replica.
func TestFilesWithHolesAreRefused(t *testing.T) {
	dir := world(t, "in/")
	err := inside(t, dir).Unpack(t.Context(), bytes.NewReader(sparse(t)), tarcopy.UnpackOptions{Path: "/in"})
	if err == nil || !strings.Contains(err.Error(), `"t/huge" with holes`) {
		t.Errorf("error %v", err)
	}
}

// sparse is an archive with a file of a terabyte that has one byte.
func sparse(t testing.TB) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	must.Succeed(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "t/", Mode: 0o755}))
	must.Succeed(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "t/huge", Size: 1, Mode: 0o644, PAXRecords: map[string]string{
		"TNU.sparse.major": "0", "TNU.sparse.minor": "1", "TNU.sparse.numblocks": "1", "TNU.sparse.map": "0,1", "TNU.sparse.size": "1099511627776",
	}}))
	_, err := w.Write([]byte("x"))
	must.Succeed(t, errors.Join(err, w.Close()))
	return bytes.ReplaceAll(out.Bytes(), []byte("TNU."), []byte("GNU.")) // which the writer does not write
}

// FuzzUnpack feeds what a hostile replica may send: whatever it is, nothing
// appears outside of the folder that receives it.
func FuzzUnpack(f *testing.F) {
	for _, name := range []string{"t/", "../x", "/x", "t/../../x"} {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "t/"})
		_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 1})
		_, _ = fmt.Fprint(w, "x")
		_ = w.Close()
		f.Add(out.Bytes())
	}
	f.Add(sparse(f))
	f.Fuzz(func(t *testing.T, archive []byte) {
		dir := t.TempDir()
		if err := os.Mkdir(dir+"/in", 0o755); err != nil {
			t.Fatal(err)
		}
		_ = inside(t, dir).Unpack(t.Context(), bytes.NewReader(archive), tarcopy.UnpackOptions{Path: "/in", Skipped: func(string, string) {}})
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 {
			t.Errorf("beside the folder: %v, %v", entries, err)
		}
	})
}
