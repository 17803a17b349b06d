package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory" // storage of the test's registry
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/driver/drivertest"
)

// others is a foreign registry on this machine, with plain HTTP, which gives a token for
// the password.
type others struct {
	host string
	// intercept answers in its place, if it wants to.
	intercept atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
}

const (
	othersUser     = "ann"
	othersPassword = "s3cret-of-ann"
)

func newOthers(t *testing.T) *others {
	t.Helper()
	config := &configuration.Configuration{Storage: configuration.Storage{"inmemory": configuration.Parameters{}}}
	config.HTTP.Secret = "a secret of this test"
	config.Log.Level = "fatal"
	config.Log.AccessLog.Disabled = true
	app := handlers.NewApp(t.Context(), config)
	o := &others{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		switch {
		case r.URL.Path == "/token" && user == othersUser && password == othersPassword:
			fmt.Fprint(w, `{"token":"a-token"}`)
		case r.URL.Path == "/token":
			w.WriteHeader(http.StatusUnauthorized)
		case r.Header.Get("Authorization") != "Bearer a-token":
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+o.host+`/token",service="others",scope="repository:app:pull,push"`)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			if f := o.intercept.Load(); f != nil && (*f)(w, r) {
				return
			}
			app.ServeHTTP(w, r)
		}
	}))
	o.host = strings.TrimPrefix(server.URL, "http://")
	t.Cleanup(server.Close)
	return o
}

func (o *others) tag(t *testing.T, ref string) name.Tag {
	t.Helper()
	tag, err := name.NewTag(o.host + "/" + ref)
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

func (o *others) auth() remote.Option {
	return remote.WithAuth(&authn.Basic{Username: othersUser, Password: othersPassword})
}

func (o *others) login() *driver.Login {
	return &driver.Login{Username: othersUser, Password: othersPassword}
}

func busybox(t *testing.T) v1.Image {
	t.Helper()
	_, archive := drivertest.Image(t)
	content, err := io.ReadAll(archive)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// A registry that asks for a login gets the task's, through a token, and no other registry
// sees it.
func TestPullWithLogin(t *testing.T) {
	opts := testOptions(t)
	var log bytes.Buffer
	opts.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	t.Cleanup(func() { mustPurge(t, opts) })
	o := newOthers(t)
	tag := o.tag(t, "app:1")
	if err := remote.Write(tag, busybox(t), o.auth()); err != nil {
		t.Fatal(err)
	}
	d := mustOpen(t, opts)
	task := counter(t, tag.Name(), "others")
	err := d.Prepare(t.Context(), task)
	if !errors.Is(err, driver.ErrImage) || !strings.Contains(err.Error(), "cloudless image login "+o.host+" --username USER") {
		t.Errorf("without a login: got %v, want the way out", err)
	}
	task.Login = &driver.Login{Username: othersUser, Password: "wrong"}
	if err := d.Prepare(t.Context(), task); !errors.Is(err, driver.ErrImage) || !strings.Contains(err.Error(), "log in again") || strings.Contains(err.Error(), "wrong") {
		t.Errorf("with a wrong password: got %v", err)
	}
	task.Login = o.login()
	if err := d.Prepare(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Start(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	waitForLine(t, task, "line 3")
	if err := d.Remove(t.Context(), task.ID); err != nil {
		t.Fatal(err)
	}
	missing := task
	missing.Image = o.host + "/app:2"
	if err := d.Prepare(t.Context(), missing); !errors.Is(err, driver.ErrImage) || !strings.Contains(err.Error(), "does not exist in its registry") {
		t.Errorf("what is not there: got %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(log.String(), othersPassword) || strings.Contains(fmt.Sprintf("%v %+v %#v", task, task, *task.Login), othersPassword) {
		t.Error("the password can be read")
	}
}

// The node picks its own platform from an index, and says what there is if that is missing.
func TestPullChoosesByPlatform(t *testing.T) {
	opts := testOptions(t)
	t.Cleanup(func() { mustPurge(t, opts) })
	o := newOthers(t)
	own := busybox(t)
	foreign := func(arch string) mutate.IndexAddendum {
		img, err := random.Image(100, 1)
		if err != nil {
			t.Fatal(err)
		}
		return mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}}
	}
	config, err := own.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	both := mutate.AppendManifests(empty.Index, foreign("s390x"),
		mutate.IndexAddendum{Add: own, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: config.Architecture}}})
	if err := remote.WriteIndex(o.tag(t, "app:both"), both, o.auth()); err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(o.tag(t, "app:none"), mutate.AppendManifests(empty.Index, foreign("s390x"), foreign("riscv64")), o.auth()); err != nil {
		t.Fatal(err)
	}
	d := mustOpen(t, opts)
	defer d.Close()
	task := counter(t, o.tag(t, "app:both").Name(), "both")
	task.Login = o.login()
	if _, err := d.Start(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	waitForLine(t, task, "line 1")
	if err := d.Remove(t.Context(), task.ID); err != nil {
		t.Fatal(err)
	}
	task.Image = o.tag(t, "app:none").Name()
	err = d.Prepare(t.Context(), task)
	if want := "is for linux/riscv64, linux/s390x, but this machine is linux/"; !errors.Is(err, driver.ErrImage) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// A pull whose connection breaks resumes there, and reports its progress.
func TestPullResumesWhereItBroke(t *testing.T) {
	opts := testOptions(t)
	t.Cleanup(func() { mustPurge(t, opts) })
	o := newOthers(t)
	layer, err := random.Layer(8<<20, "application/vnd.oci.image.layer.v1.tar+gzip")
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(busybox(t), layer)
	if err != nil {
		t.Fatal(err)
	}
	tag := o.tag(t, "app:big")
	if err := remote.Write(tag, img, o.auth()); err != nil {
		t.Fatal(err)
	}
	digest, err := layer.Digest()
	if err != nil {
		t.Fatal(err)
	}
	const part = 3 << 20
	reached, goOn := make(chan struct{}), make(chan struct{})
	var broke atomic.Bool
	var resumed atomic.Value
	cut := func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/blobs/"+digest.String()) {
			return false
		}
		if broke.Swap(true) {
			resumed.CompareAndSwap(nil, r.Header.Get("Range"))
			return false
		}
		content, err := layer.Compressed()
		if err != nil {
			t.Error(err)
			return false
		}
		defer content.Close()
		size, _ := layer.Size()
		w.Header().Set("Content-Length", fmt.Sprint(size))
		_, _ = io.CopyN(w, content, part)
		_ = http.NewResponseController(w).Flush()
		close(reached)
		<-goOn
		panic(http.ErrAbortHandler) // breaks the connection
	}
	o.intercept.Store(&cut)

	d := mustOpen(t, opts)
	defer d.Close()
	task := counter(t, tag.Name(), "big")
	task.Login = o.login()
	prepared := make(chan error, 1)
	go func() { prepared <- d.Prepare(t.Context(), task) }()
	<-reached
	at := progressOf(t.Context(), d, task.Image, func(p driver.Progress) bool { return p.Done >= part })
	if size, _ := layer.Size(); at.Done < part || at.Total < size {
		t.Errorf("in the middle: %+v, of a layer of %d bytes", at, size)
	}
	close(goOn)
	if err := <-prepared; err != nil {
		// The library may give up on a broken connection; the agent retries.
		if err := d.Prepare(t.Context(), task); err != nil {
			t.Fatal(err)
		}
	}
	if from, _ := resumed.Load().(string); !strings.HasPrefix(from, "bytes=") || from == "bytes=0-" {
		t.Errorf("the rest was asked for with range %q: it began again", from)
	}
	if _, ok := d.Progress(t.Context(), task.Image); ok {
		t.Error("there is progress of a pull that has ended")
	}
}

// progressOf polls until the progress is as wanted.
func progressOf(ctx context.Context, d *Driver, image string, want func(driver.Progress) bool) (at driver.Progress) {
	for range 2000 {
		if p, ok := d.Progress(ctx, image); ok {
			if at = p; want(p) {
				break
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	return at
}
