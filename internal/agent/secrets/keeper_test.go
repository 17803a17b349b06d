package secrets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// tester is what helpers need of a test, of a fuzz test and of a property.
type tester interface {
	Helper()
	Fatal(args ...any)
}

func open(t tester, dir string) (*Keeper, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	k, err := Open(Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	return k, &log
}

func of(uid string, version uint64, value string, replicas ...string) *v1.NodeSecret {
	return &v1.NodeSecret{Uid: uid, Namespace: "shop", Name: "name-" + uid, Version: version, Value: []byte(value), Replicas: replicas}
}

func wants(replica string, refs ...*v1.SecretRef) Wanted {
	return Wanted{Replica: replica, Namespace: "shop", Refs: refs}
}

func delta(secrets ...*v1.NodeSecret) *v1.SecretsDown { return &v1.SecretsDown{Secrets: secrets} }

var file = &v1.SecretRef{Name: "name-a", Path: "/run/secrets/a"}

func must(t tester, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run gives a replica its secrets as for the start of a program of a user.
func run(t tester, k *Keeper, w Wanted, user User) Placed {
	t.Helper()
	placed, err := k.Prepare(w)
	must(t, err)
	must(t, k.Own(w.Replica, w.Refs, user))
	_, err = k.Refresh(w)
	must(t, err)
	return placed
}

func content(placed Placed, path string) string {
	data, err := os.ReadFile(filepath.Join(placed.Folders[filepath.Dir(path)], filepath.Base(path)))
	if err != nil {
		return err.Error()
	}
	return string(data)
}

func TestOnlyReplicasOfTheAudienceGetASecret(t *testing.T) {
	k, _ := open(t, t.TempDir())
	k.Apply(delta(of("a", 1, "value", "mine")))
	run(t, k, wants("mine", file), User{})
	var missing *MissingError
	if _, err := k.Prepare(wants("other", file)); !errors.As(err, &missing) {
		t.Errorf("another replica: %v", err)
	}
	elsewhere := wants("mine", file)
	elsewhere.Namespace = "bank"
	if _, err := k.Prepare(elsewhere); !errors.As(err, &missing) {
		t.Errorf("another namespace: %v", err)
	}
	k.Apply(delta(of("a", 1, "", "other"))) // the audience has changed
	change, err := k.Refresh(wants("mine", file))
	must(t, err)
	if !slices.Equal(change.Lost, []string{"name-a"}) {
		t.Errorf("the replica keeps it: %+v", change)
	}
}

func TestModeAndOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away; make test runs it")
	}
	k, _ := open(t, t.TempDir())
	refs := []*v1.SecretRef{
		{Name: "name-a", Path: "/run/secrets/default"},
		{Name: "name-a", Path: "/run/secrets/mode", Mode: "0640", Owner: "33"},
		{Name: "name-a", Path: "/etc/app/owner", Mode: "444", Owner: "1000:2000"},
	}
	k.Apply(delta(of("a", 1, "value", "r")))
	placed := run(t, k, wants("r", refs...), User{UID: 7, GID: 8, Shift: 100_000})
	check := func() {
		t.Helper()
		for path, want := range map[string]string{
			"/run/secrets/default": "400 100007:100008", "/run/secrets/mode": "640 100033:100008", "/etc/app/owner": "444 101000:102000",
		} {
			var st unix.Stat_t
			must(t, unix.Stat(filepath.Join(placed.Folders[filepath.Dir(path)], filepath.Base(path)), &st))
			if got := fmt.Sprintf("%o %d:%d", st.Mode&0o7777, st.Uid, st.Gid); got != want {
				t.Errorf("%s: %s, want %s", path, got, want)
			}
		}
	}
	check()
	for _, folder := range placed.Folders {
		if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("the folder cannot be searched by the program: %v, %v", info, err)
		}
	}
	k.Apply(delta(of("a", 2, "newer", "r")))
	again, _ := open(t, k.dir) // another process knows the user, too
	_, err := again.Refresh(wants("r", refs...))
	must(t, err)
	check()
	if got := content(placed, "/etc/app/owner"); got != "newer" {
		t.Errorf("content %q", got)
	}
}

// Readers see the old content or the new one, never a part of it or nothing.
func TestReadersSeeOneVersionOrTheOther(t *testing.T) {
	k, _ := open(t, t.TempDir())
	value := func(version uint64) string { return strings.Repeat(string(rune('a'+version%26)), int(100_000+version)) }
	k.Apply(delta(of("a", 1, value(1), "r")))
	placed := run(t, k, wants("r", file), User{UID: os.Getuid(), GID: os.Getgid()})
	path := filepath.Join(placed.Folders["/run/secrets"], "a")
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				data, err := os.ReadFile(path)
				if err != nil || len(data) <= 100_000 || string(data) != value(uint64(len(data)-100_000)) {
					t.Errorf("a reader saw %d bytes: %v", len(data), err)
					return
				}
				names, err := os.ReadDir(filepath.Dir(path))
				if err != nil || len(names) != 1 {
					t.Errorf("a reader saw the files %v: %v", names, err)
					return
				}
			}
		})
	}
	for version := uint64(2); version < 200; version++ {
		k.Apply(delta(of("a", version, value(version), "r")))
		_, err := k.Refresh(wants("r", file))
		must(t, err)
	}
	close(done)
	readers.Wait()
}

// A server with much to say names a version first, and sends its value later.
func TestOldVersionStaysUntilTheValueOfTheNextOneArrives(t *testing.T) {
	k, _ := open(t, t.TempDir())
	k.Apply(delta(of("a", 1, "old", "r", "gone")))
	placed := run(t, k, wants("r", file), User{UID: os.Getuid(), GID: os.Getgid()})
	k.Apply(&v1.SecretsDown{Full: true, Secrets: []*v1.NodeSecret{of("a", 2, "", "r")}})
	change, err := k.Refresh(wants("r", file))
	must(t, err)
	if got := content(placed, "/run/secrets/a"); got != "old" || len(change.Lost) > 0 {
		t.Errorf("content %q, %+v", got, change)
	}
	if err := k.Check(wants("gone", file)); err == nil {
		t.Error("a replica that does not get it any more still does")
	}
	k.Apply(delta(of("a", 2, "new", "r")))
	_, err = k.Refresh(wants("r", file))
	must(t, err)
	if got := content(placed, "/run/secrets/a"); got != "new" || len(k.held) != 1 {
		t.Errorf("content %q, %d versions", got, len(k.held))
	}
}

func TestExpiredVersionGoesAtItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, _ := open(t, t.TempDir())
		said := make(chan string, 10)
		ctx, cancel := context.WithCancel(t.Context())
		var runs sync.WaitGroup
		runs.Go(func() { k.Run(ctx, func(message string) { said <- message }) })
		soon, late := of("a", 1, "soon-gone", "r"), of("b", 1, "stays", "r")
		soon.ExpireTime = timestamppb.New(time.Now().Add(90 * time.Minute))
		late.ExpireTime = timestamppb.New(time.Now().Add(48 * time.Hour))
		k.Apply(delta(soon, late))
		news := k.News("r")
		time.Sleep(90*time.Minute - time.Second)
		synctest.Wait()
		if len(said) > 0 || len(news) > 0 {
			t.Fatal("too early")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(said) != 1 || len(news) != 1 {
			t.Fatalf("said %d times", len(said))
		}
		if message := <-said; !strings.Contains(message, "Version 1 of secret name-a in namespace shop has expired") {
			t.Errorf("said %q", message)
		}
		if found := filesWith(t, k.dir, "soon-gone"); len(found) > 0 {
			t.Errorf("left in %q", found)
		}
		if found := filesWith(t, k.dir, "stays"); len(found) != 1 {
			t.Error("another secret is gone")
		}
		if err := k.Check(wants("r", file)); err == nil || !strings.Contains(err.Error(), "version 1 has expired: set one with: cloudless secret set name-a") {
			t.Errorf("got %v", err)
		}
		k.Apply(delta(of("a", 2, "new", "r")))
		if err := k.Check(wants("r", file)); err != nil {
			t.Error(err)
		}
		cancel()
		runs.Wait()
	})
}

// filesWith lists the files below a folder that contain a value.
func filesWith(t *testing.T, dir, value string) (found []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(value)) {
			found = append(found, path)
		}
		return err
	}))
	return found
}

// What is on the file system is not trusted: damaged and foreign files are refused, and the rest is used.
func TestDamagedAndForeignFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	k, _ := open(t, dir)
	k.Apply(delta(of("a", 1, "good-value", "r"), of("b", 1, "bad-value", "r"), of("c", 1, "moved-value", "r")))
	run(t, k, wants("r", file), User{UID: os.Getuid(), GID: os.Getgid()})
	values := filepath.Join(dir, valuesName)
	flip(t, filepath.Join(values, "b.1"))
	must(t, os.Rename(filepath.Join(values, "c.1"), filepath.Join(values, "d.1")))
	must(t, os.Symlink("/etc/passwd", filepath.Join(values, "e.1")))
	must(t, unix.Mkfifo(filepath.Join(values, "f.1"), 0o600))
	must(t, os.Mkdir(filepath.Join(values, "g.1"), 0o700))
	must(t, os.WriteFile(filepath.Join(values, "a.01"), []byte("x"), 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "foreign"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, tempName, "interrupted"), []byte("good-value"), 0o600))
	again, log := open(t, dir)
	if len(again.held) != 1 || len(again.states) != 1 {
		t.Errorf("read %d values and %d replicas", len(again.held), len(again.states))
	}
	for _, name := range []string{"b.1", "d.1", "e.1", "f.1", "g.1", "a.01", "foreign", "file"} {
		if !strings.Contains(log.String(), "="+name+" ") {
			t.Errorf("nothing is said of %s:\n%s", name, log)
		}
	}
	if strings.Contains(log.String(), "-value") {
		t.Errorf("the log has a value:\n%s", log)
	}
	if left, err := os.ReadDir(filepath.Join(dir, tempName)); err != nil || len(left) > 0 {
		t.Errorf("interrupted writes are left: %v, %v", left, err)
	}
}

// flip changes a byte in the middle of a file.
func flip(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	data[len(data)/2] ^= 1
	must(t, os.WriteFile(path, data, 0o600))
}

func TestInvalidUidsBecomeNoPaths(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secrets")
	must(t, os.Mkdir(dir, 0o700))
	k, _ := open(t, dir)
	for _, uid := range []string{"../a", "", ".", "a/b", "A", strings.Repeat("a", 65), "a\x00"} {
		s := of("a", 1, "value", uid)
		s.Uid = uid
		k.Apply(delta(s))
		if _, err := k.Prepare(wants(uid, file)); err == nil {
			t.Errorf("uid %q was accepted", uid)
		}
		must(t, k.Release(uid))
	}
	if found := filesWith(t, filepath.Dir(dir), "value"); len(found) > 0 {
		t.Errorf("files %q", found)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}

func TestSecretThatCannotBeGivenIsRefused(t *testing.T) {
	k, _ := open(t, t.TempDir())
	k.Apply(delta(of("a", 1, "not\xfftext", "r"), of("b", 1, strings.Repeat("x", 128<<10), "r")))
	for _, refs := range [][]*v1.SecretRef{
		{{Name: "name-a", Env: "A"}},
		{{Name: "name-b", Env: "B"}},
		{{Name: "name-a", Path: "relative/file"}},
		{{Name: "name-a", Path: "/run/../etc/x"}},
		{{Name: "name-a", Path: "/file"}},
		{{Name: "name-a", Path: "/run/secrets/"}},
		{{Name: "name-a", Path: "/run/secrets/a"}, {Name: "name-b", Path: "/run/secrets/a"}},
	} {
		_, err := k.Prepare(wants("r", refs...))
		if !errors.Is(err, ErrInvalid) || strings.Contains(err.Error(), "xxx") || strings.Contains(err.Error(), "not\xff") {
			t.Errorf("%v: %v", refs, err)
		}
	}
	if entries, err := os.ReadDir(k.dir); err != nil || len(entries) != 2 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestFullMemoryIsSaidAndLeavesNothing(t *testing.T) {
	dir := mount(t, 1<<20)
	k, _ := open(t, dir)
	big := of("a", 1, strings.Repeat("x", 700<<10), "r")
	k.Apply(delta(big))
	_, err := k.Prepare(wants("r", file))
	if err == nil || errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "the memory that this node has for secrets is full") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "r")); err == nil {
		t.Error("a part of the replica's files is left")
	}
}

// mount mounts the keeper's own file system.
func mount(t *testing.T, size int64) string {
	t.Helper()
	if testing.Short() {
		t.Skip("mounts a file system, which needs root; make test runs it")
	}
	dir := filepath.Join(t.TempDir(), "secrets")
	must(t, Mount(dir, size))
	t.Cleanup(func() { must(t, Unmount(dir)) })
	return dir
}

func TestMount(t *testing.T) {
	dir := mount(t, 1<<20)
	var st unix.Statfs_t
	must(t, unix.Statfs(dir, &st))
	if flags := int64(unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC); st.Type != unix.TMPFS_MAGIC || st.Flags&flags != flags || int64(st.Blocks)*st.Bsize != 1<<20 {
		t.Errorf("got %+v", st)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("got %v, %v", info, err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "kept"), nil, 0o600))
	must(t, Mount(dir, 1<<20)) // the next process
	if _, err := os.Stat(filepath.Join(dir, "kept")); err != nil {
		t.Error("it was mounted again, over the first one")
	}
	inside, err := os.Open(filepath.Join(dir, "kept")) // as a container that still runs
	must(t, err)
	defer inside.Close()
	must(t, Unmount(dir))
	must(t, Unmount(dir))
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
	t.Run("refuses what is not in memory", func(t *testing.T) {
		must(t, os.WriteFile(dir, nil, 0o600))
		if err := Mount(dir, 1<<20); err == nil {
			t.Error("a file was accepted")
		}
		must(t, os.Remove(dir))
	})
}

func TestDestroyLeavesNothing(t *testing.T) {
	dir := mount(t, 1<<20)
	k, _ := open(t, dir)
	k.Apply(delta(of("a", 1, "value", "r")))
	run(t, k, wants("r", file), User{UID: os.Getuid(), GID: os.Getgid()})
	must(t, k.Destroy())
	k.Apply(delta(of("a", 2, "value", "r"))) // the last message of a session
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}

func TestAcknowledgementsAreRepeatedInEachSession(t *testing.T) {
	k, _ := open(t, t.TempDir())
	k.Apply(delta(of("a", 1, "value", "r", "s")))
	_, err := k.Prepare(wants("r", file))
	must(t, err)
	if up := k.Take(); up != nil {
		t.Errorf("before the program has started: %v", up)
	}
	run(t, k, wants("r", file), User{UID: os.Getuid(), GID: os.Getgid()})
	run(t, k, wants("s", file), User{UID: os.Getuid(), GID: os.Getgid()})
	<-k.Acknowledgements()
	if up := k.Take(); len(up.GetApplied()) != 2 || up.GetApplied()[0].GetReplicaUid() != "r" || up.GetApplied()[0].GetVersion() != 1 {
		t.Errorf("got %v", up)
	}
	if up := k.Take(); up != nil {
		t.Errorf("said twice in one session: %v", up)
	}
	must(t, k.Release("s"))
	again, _ := open(t, k.dir)
	again.Connected()
	<-again.Acknowledgements()
	if up := again.Take(); len(up.GetApplied()) != 1 || up.GetApplied()[0].GetReplicaUid() != "r" {
		t.Errorf("after a restart: %v", up)
	}
}

// Whatever servers say in whatever order, a replica has a file with what it should get, a restart changes nothing, and
// what no replica gets is gone.
func TestKeeperFollowsTheServer(t *testing.T) {
	base := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir := filepath.Join(base, fmt.Sprint(rand.Uint64()))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		k, _ := open(t, dir)
		replicas := []string{"r", "s"}
		model := map[string]uint64{} // the version that a replica gets
		version := uint64(0)
		for _, r := range replicas {
			_ = k.News(r)
		}
		t.Repeat(map[string]func(*rapid.T){
			"new version": func(t *rapid.T) {
				version++
				chosen := rapid.SliceOfNDistinct(rapid.SampledFrom(replicas), 1, 2, rapid.ID).Draw(t, "replicas")
				k.Apply(delta(of("a", version, fmt.Sprint("value-", version, "."), chosen...)))
				for _, r := range chosen {
					model[r] = version
				}
			},
			"removed": func(t *rapid.T) {
				k.Apply(&v1.SecretsDown{Removed: []string{"a"}})
				clear(model)
			},
			"full": func(t *rapid.T) {
				byVersion := map[uint64][]string{}
				for r, v := range model {
					byVersion[v] = append(byVersion[v], r)
				}
				down := &v1.SecretsDown{Full: true}
				for v, rs := range byVersion {
					down.Secrets = append(down.Secrets, of("a", v, "", rs...))
				}
				k.Apply(down)
			},
			"restart": func(t *rapid.T) { k, _ = open(t, dir) },
			"start": func(t *rapid.T) {
				r := rapid.SampledFrom(replicas).Draw(t, "replica")
				if model[r] == 0 {
					if _, err := k.Prepare(wants(r, file)); err == nil {
						t.Fatal("it starts without its secret")
					}
					return
				}
				run(t, k, wants(r, file), User{UID: os.Getuid(), GID: os.Getgid()})
			},
			"": func(t *rapid.T) {
				for _, r := range replicas {
					if _, err := k.Refresh(wants(r, file)); err != nil {
						t.Fatal(err)
					}
					if k.states[r] == nil {
						continue
					}
					data, err := os.ReadFile(filepath.Join(dir, r, "0", "a"))
					if want := fmt.Sprint("value-", model[r], "."); model[r] > 0 && string(data) != want || model[r] == 0 && err == nil {
						t.Fatalf("%s has %q, %v, want version %d", r, data, err, model[r])
					}
				}
				wanted := map[string]bool{}
				for _, v := range model {
					wanted[fmt.Sprint("a.", v)] = true
				}
				files, err := os.ReadDir(filepath.Join(dir, valuesName))
				if err != nil || len(files) != len(wanted) {
					t.Fatalf("values %v, want %v", files, wanted)
				}
			},
		})
	})
}

func FuzzDecodeValue(f *testing.F) {
	good, err := encodeValue(of("a", 1, "value", "r"))
	must(f, err)
	f.Add("a.1", good)
	f.Add("a.1", seal([]byte("\x0a\x01a\x20\x01\x2a\x01v")))
	f.Add("a.18446744073709551615", []byte(header))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		for _, content := range [][]byte{data, seal(data)} {
			secret, err := decodeValue(name, content)
			if err != nil {
				continue
			}
			if idOf(secret).fileName() != name || strings.ContainsAny(name, "/\x00") || len(secret.GetValue()) == 0 {
				t.Errorf("%q was accepted as %q", data, name)
			}
		}
	})
}

func FuzzDecodeState(f *testing.F) {
	good, err := encodeState(&state{Entries: []entry{{Name: "a", UID: "a", Version: 1, File: "/run/a"}, {Name: "b", Env: "B"}}})
	must(f, err)
	f.Add(good[len(seal(nil)):])
	f.Add([]byte(`{"entries":[{"name":"a","file":"/../x"}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := decodeState(seal(body))
		if err != nil {
			return
		}
		for _, e := range s.Entries {
			if path := (&Keeper{dir: "/base"}).filePath("r", e); e.File != "" && !strings.HasPrefix(path, "/base/r/") {
				t.Errorf("%q leads to %s", body, path)
			}
		}
		if _, err := encodeState(s); err != nil {
			t.Error(err)
		}
	})
}
