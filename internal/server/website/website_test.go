package website

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/ingress/origin"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/objecttest"
	"github.com/cloudless/cloudless/internal/state"
)

// world is a server of sites over a store in memory, with the buckets site and hidden. Route "www" serves bucket site with a
// page for what does not exist, "bare" without, and "api" serves S3.
type world struct {
	t       *testing.T
	o       Options
	disks   *objecttest.Disks
	store   *object.Store
	address string
	buckets map[string]object.Bucket
}

func newWorld(t *testing.T, change ...func(*Options)) *world {
	w := &world{t: t, disks: objecttest.NewDisks("a"), buckets: map[string]object.Bucket{
		"site":   {UID: "uid-site", Name: "site", Namespace: "default", NamespaceUID: "ns"},
		"hidden": {UID: "uid-hidden", Name: "hidden", Namespace: "default", NamespaceUID: "ns"},
	}}
	var err error
	if w.store, err = object.New(object.Options{Names: objecttest.NewNames(t), Disks: w.disks, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.store.Close)
	w.o = Options{
		State: state.New(), Objects: w.store, Logger: slog.New(slog.DiscardHandler),
		Bucket: func(_ context.Context, _, name string) (object.Bucket, error) {
			b, exists := w.buckets[name]
			if !exists {
				return b, object.ErrNoBucket
			}
			return b, nil
		},
	}
	var b state.Batch
	for _, r := range []*v1.Route{
		routed("www", &v1.RouteBackend{Bucket: &v1.RouteBucket{Name: "site", Index: "index.html", NotFound: "404.html"}}),
		routed("bare", &v1.RouteBackend{Bucket: &v1.RouteBucket{Name: "site"}}, &v1.RouteBackend{Bucket: &v1.RouteBucket{Name: "gone"}}),
		routed("api", &v1.RouteBackend{S3: true}),
	} {
		b.Put(r)
	}
	if _, err := w.o.State.Apply(1, b.Transaction(time.Unix(1e9, 0))); err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(&w.o)
	}
	w.serve()
	return w
}

func routed(uid string, backends ...*v1.RouteBackend) *v1.Route {
	return &v1.Route{Metadata: &v1.Metadata{Uid: uid, Name: uid, Namespace: "default"}, Spec: &v1.RouteSpec{Host: uid + ".test", Backends: backends}}
}

func (w *world) serve() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.address = listener.Addr().String()
	s := New(w.t.Context(), w.o)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(listener)
	}()
	w.t.Cleanup(func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		s.Shutdown(now)
		<-ended
	})
}

// put stores an object.
func (w *world) put(bucket, key, content string, headers *objectv1.Headers) {
	w.t.Helper()
	if _, err := w.store.Put(w.t.Context(), w.buckets[bucket], object.PutRequest{
		Key: key, Body: strings.NewReader(content), Size: int64(len(content)), Headers: headers,
	}); err != nil {
		w.t.Fatal(err)
	}
}

// answer is what a client gets.
type answer struct {
	*http.Response
	body string
}

// ask makes a request on a connection with a greeting. The target is sent as it is.
func (w *world) ask(g origin.Greeting, method, target string, fields ...string) answer {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	head := g.String() + method + " " + target + " HTTP/1.1\r\nHost: www.test\r\nConnection: close\r\n"
	for _, f := range fields {
		head += f + "\r\n"
	}
	if _, err := io.WriteString(conn, head+"\r\n"); err != nil {
		w.t.Fatal(err)
	}
	return readAnswer(w.t, conn, method, target)
}

func (w *world) get(target string, fields ...string) answer {
	w.t.Helper()
	return w.ask(origin.Greeting{Route: "www", Bucket: "site"}, http.MethodGet, target, fields...)
}

func (a answer) want(t *testing.T, status int, body string) {
	t.Helper()
	if a.StatusCode != status || a.body != body {
		t.Errorf("%s: %d %q instead of %d %q", a.Request.URL, a.StatusCode, a.body, status, body)
	}
}

func TestObjectsArePages(t *testing.T) {
	w := newWorld(t)
	w.put("site", "a/b.css", "body{}", &objectv1.Headers{ContentType: "text/css", CacheControl: "max-age=60", ContentLanguage: "en"})
	w.put("site", "plain.svg", "<svg/>", nil)
	a := w.get("/a/b.css?v=2")
	a.want(t, 200, "body{}")
	for name, want := range map[string]string{
		"Content-Type": "text/css", "Cache-Control": "max-age=60", "Content-Language": "en", "Accept-Ranges": "bytes", "Content-Length": "6",
	} {
		if got := a.Header.Get(name); got != want {
			t.Errorf("%s is %q instead of %q", name, got, want)
		}
	}
	if a.Header.Get("ETag") == "" || a.Header.Get("Last-Modified") == "" {
		t.Errorf("nothing to ask again by: %v", a.Header)
	}
	if got := w.get("/plain.svg").Header.Get("Content-Type"); got != "image/svg+xml" {
		t.Errorf("without a type of its own it is %q", got)
	}
	head := w.ask(origin.Greeting{Route: "www", Bucket: "site"}, http.MethodHead, "/a/b.css")
	if head.want(t, 200, ""); head.ContentLength != 6 {
		t.Errorf("HEAD says %d bytes", head.ContentLength)
	}
}

func TestFoldersShowTheirIndex(t *testing.T) {
	w := newWorld(t)
	w.put("site", "index.html", "home", nil)
	w.put("site", "docs/index.html", "docs", nil)
	w.put("site", "docs/index.htm", "old", nil)
	w.get("/").want(t, 200, "home")
	w.get("/docs/").want(t, 200, "docs")
	a := w.get("/docs?a=b&c")
	if a.StatusCode != 302 || a.Header.Get("Location") != "/docs/?a=b&c" {
		t.Errorf("without a slash: %d to %q", a.StatusCode, a.Header.Get("Location"))
	}
	w.put("site", "d ä/index.html", "odd", nil)
	if got := w.get("/d%20%C3%A4").Header.Get("Location"); got != "/d%20%C3%A4/" {
		t.Errorf("an odd folder is at %q", got)
	}
	// It would lead to the host evil.test.
	w.put("site", "/evil.test/index.html", "evil", nil)
	if a := w.get("//evil.test"); a.StatusCode != 404 {
		t.Errorf("two slashes: %d to %q", a.StatusCode, a.Header.Get("Location"))
	}
	w.put("site", "docs", "an object", nil) // comes before the folder
	w.get("/docs").want(t, 200, "an object")
}

func TestMissingPages(t *testing.T) {
	w := newWorld(t)
	w.get("/none").want(t, 404, "There is no such page.\n")
	w.put("site", "404.html", "<h1>Nothing here</h1>", &objectv1.Headers{ContentType: "text/html"})
	a := w.get("/none", "Range: bytes=0-3", "If-None-Match: *")
	if a.want(t, 404, "<h1>Nothing here</h1>"); a.Header.Get("Content-Type") != "text/html" {
		t.Errorf("its type is %q", a.Header.Get("Content-Type"))
	}
	w.get("/").want(t, 404, "<h1>Nothing here</h1>")
	w.get("/404.html").want(t, 200, "<h1>Nothing here</h1>")
	w.ask(origin.Greeting{Route: "www", Bucket: "site"}, http.MethodHead, "/none").want(t, 404, "")
	w.ask(origin.Greeting{Route: "bare", Bucket: "site"}, http.MethodGet, "/none").want(t, 404, "There is no such page.\n")
}

func TestConditionsAndRanges(t *testing.T) {
	w := newWorld(t)
	content := strings.Repeat("0123456789", 1_000_000)
	w.put("site", "large.bin", content, nil)
	first := w.get("/large.bin")
	if first.body != content {
		t.Errorf("%d bytes arrive", len(first.body))
	}
	tag, date := first.Header.Get("ETag"), first.Header.Get("Last-Modified")
	w.get("/large.bin", "If-None-Match: "+tag).want(t, 304, "")
	w.get("/large.bin", `If-None-Match: "other", W/`+tag).want(t, 304, "")
	w.get("/large.bin", "If-Modified-Since: "+date).want(t, 304, "")
	if a := w.get("/large.bin", `If-Match: "other"`); a.StatusCode != 412 {
		t.Errorf("another tag: %d", a.StatusCode)
	}
	a := w.get("/large.bin", "Range: bytes=4194303-4194306")
	if a.want(t, 206, content[4194303:4194307]); a.Header.Get("Content-Range") != "bytes 4194303-4194306/10000000" {
		t.Errorf("the range is %q", a.Header.Get("Content-Range"))
	}
	w.get("/large.bin", "Range: bytes=-3").want(t, 206, "789")
	w.get("/large.bin", "Range: bytes=9999998-").want(t, 206, "89")
	w.get("/large.bin", "Range: bytes=9999998-20000000").want(t, 206, "89")
	if a := w.get("/large.bin", "Range: bytes=10000000-"); a.StatusCode != 416 || a.Header.Get("Content-Range") != "bytes */10000000" {
		t.Errorf("behind the end: %d %v", a.StatusCode, a.Header)
	}
	if a := w.get("/large.bin", "Range: bytes=1-2,5-7"); a.StatusCode != 206 || !strings.Contains(a.body, "\r\n\r\n12\r\n") || !strings.Contains(a.body, "\r\n\r\n567\r\n") {
		t.Errorf("two ranges: %d %q", a.StatusCode, a.body)
	}
	if a := w.get("/large.bin", "Range: bytes=0-1", `If-Range: "other"`); a.StatusCode != 200 || len(a.body) != len(content) {
		t.Errorf("a range of another version: %d, %d bytes", a.StatusCode, len(a.body))
	}
	w.put("site", "empty", "", nil)
	w.get("/empty").want(t, 200, "")
}

func TestOddKeys(t *testing.T) {
	w := newWorld(t)
	for target, key := range map[string]string{
		"/a%20b+c.txt": "a b+c.txt", "/%C3%A4%E2%82%AC": "ä€", "/100%25": "100%", "/q%3Fx=1": "q?x=1", "/x%23y": "x#y", "/a%2Fb": "a/b", "/a//b": "a//b",
		"//lead": "/lead", "/;v=1": ";v=1", "/%5Cback": `\back`, "/.hidden": ".hidden", "/new%0Aline": "new\nline", "/" + strings.Repeat("k", 1024): strings.Repeat("k", 1024),
	} {
		w.put("site", key, "content of "+key, nil)
		w.get(target).want(t, 200, "content of "+key)
	}
	for _, target := range []string{"/%FF%FE", "/" + strings.Repeat("k", 1025)} {
		w.get(target).want(t, 404, "There is no such page.\n")
	}
}

// Dots are letters of a key like all others.
func TestNothingLeadsOutOfTheBucket(t *testing.T) {
	w := newWorld(t)
	w.put("hidden", "secret", "hidden", nil)
	w.put("site", "a/secret", "not hidden", nil)
	for _, target := range []string{
		"/../hidden/secret", "/%2e%2e/hidden/secret", "/..%2fhidden%2fsecret", "/a/../../hidden/secret", "/hidden/secret", "/uid-hidden/secret",
		"/a/./secret", "/a/b/../secret", "http://hidden/secret",
	} {
		w.get(target).want(t, 404, "There is no such page.\n")
	}
}

func TestSitesAreOnlyRead(t *testing.T) {
	w := newWorld(t)
	w.put("site", "a", "content", nil)
	for _, method := range []string{"PUT", "POST", "DELETE", "PATCH", "OPTIONS", "PROPFIND"} {
		a := w.ask(origin.Greeting{Route: "www", Bucket: "site"}, method, "/a", "Content-Length: 0")
		if a.want(t, 405, "A web site is only read.\n"); a.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: what is allowed is %q", method, a.Header.Get("Allow"))
		}
	}
	w.get("/a?delete&versionId=null&uploads").want(t, 200, "content")
}

func TestNewestVersionIsShown(t *testing.T) {
	w := newWorld(t)
	b := w.buckets["site"]
	b.Versioning = "enabled"
	w.buckets["site"] = b
	w.put("site", "page", "one", nil)
	w.put("site", "page", "two", nil)
	w.get("/page").want(t, 200, "two")
	if _, err := w.store.Delete(t.Context(), b, "page", "", object.Condition{}); err != nil {
		t.Fatal(err)
	}
	w.get("/page").want(t, 404, "There is no such page.\n")
	w.put("site", "page", "three", nil)
	w.get("/page").want(t, 200, "three")
}

func TestObjectCanLeadElsewhere(t *testing.T) {
	w := newWorld(t)
	w.put("site", "old", "", &objectv1.Headers{WebsiteRedirect: "/new?x"})
	w.put("site", "wrong", "content", &objectv1.Headers{WebsiteRedirect: "javascript:alert(1)"})
	if a := w.get("/old"); a.StatusCode != 301 || a.Header.Get("Location") != "/new?x" {
		t.Errorf("%d to %q", a.StatusCode, a.Header.Get("Location"))
	}
	w.get("/wrong").want(t, 200, "content")
}

// A node cannot read what no route serves.
func TestOnlyBucketsOfRoutesAreServed(t *testing.T) {
	w := newWorld(t)
	w.put("hidden", "secret", "hidden", nil)
	for _, g := range []origin.Greeting{{Route: "www", Bucket: "hidden"}, {Route: "none", Bucket: "site"}, {Route: "www"}, {Route: "api", Bucket: "hidden"}} {
		w.ask(g, http.MethodGet, "/secret").want(t, 404, "This is not served any more.\n")
	}
	w.ask(origin.Greeting{Route: "bare", Bucket: "gone"}, http.MethodGet, "/").want(t, 404, "The bucket of this site does not exist.\n")
}

// A server that has not heard of a route yet asks the leader.
func TestLaggingServerCatchesUp(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.CatchUp = func(context.Context) error {
			var b state.Batch
			b.Put(routed("late", &v1.RouteBackend{Bucket: &v1.RouteBucket{Name: "site"}}))
			_, err := o.State.Apply(2, b.Transaction(time.Unix(1e9, 0)))
			return err
		}
	})
	w.put("site", "page", "content", nil)
	w.ask(origin.Greeting{Route: "late", Bucket: "site"}, http.MethodGet, "/page").want(t, 200, "content")

	alone := newWorld(t, func(o *Options) { o.CatchUp = func(context.Context) error { return errors.New("no leader") } })
	a := alone.ask(origin.Greeting{Route: "late", Bucket: "site"}, http.MethodGet, "/page")
	if a.StatusCode != 503 || a.Header.Get("Retry-After") == "" {
		t.Errorf("without a leader: %d %v", a.StatusCode, a.Header)
	}
	alone.put("site", "page", "content", nil)
	alone.get("/page").want(t, 200, "content") // what it knows needs no leader
}

// Visitors see that content cannot be read, and never half of it as a whole.
func TestUnreadableContent(t *testing.T) {
	w := newWorld(t)
	w.put("site", "page", strings.Repeat("content", 1000), &objectv1.Headers{ContentType: "text/css", ContentEncoding: "br"})
	w.disks.Break("uid-a", objecttest.Faults{Gone: true})
	a := w.get("/page")
	if a.want(t, 503, "The content cannot be read now.\n"); a.Header.Get("Retry-After") == "" || a.Header.Get("ETag") != "" || a.Header.Get("Content-Encoding") != "" {
		t.Errorf("the answer has %v", a.Header)
	}
}

func TestS3IsForKeysOfTheNamespace(t *testing.T) {
	var seen []string
	w := newWorld(t, func(o *Options) {
		o.Claims = func(r *http.Request) string { return r.Header.Get("Key") }
		o.KeyNamespace = func(_ context.Context, id string) (string, error) {
			if id == "broken" {
				return "", errors.New("not now")
			}
			return map[string]string{"own": "default", "other": "shop"}[id], nil
		}
		o.S3 = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen = append(seen, r.Header.Get("Key")+" "+r.Method+" "+r.RequestURI+" "+r.RemoteAddr)
			w.WriteHeader(http.StatusAccepted)
		})
	})
	for key, want := range map[string]int{"own": 202, "": 202, "unknown": 202, "other": 403, "broken": 503} {
		a := w.ask(origin.Greeting{Route: "api"}, http.MethodPut, "/b/k%20e?uploads", "Key: "+key, "X-Real-Ip: 192.0.2.7", "Content-Length: 0")
		if a.StatusCode != want {
			t.Errorf("key %q: %d %s", key, a.StatusCode, a.body)
		}
		if want != 202 && !strings.Contains(a.body, "<Error><Code>") {
			t.Errorf("key %q: no S3 client can read %s", key, a.body)
		}
	}
	if len(seen) != 3 || !strings.Contains(strings.Join(seen, ","), "own PUT /b/k%20e?uploads 192.0.2.7:0") {
		t.Errorf("S3 sees %q", seen)
	}
	without := newWorld(t)
	if a := without.ask(origin.Greeting{Route: "api"}, http.MethodGet, "/"); a.StatusCode != 503 {
		t.Errorf("a server without S3: %d", a.StatusCode)
	}
}

func TestConnectionsWithoutAGreetingEnd(t *testing.T) {
	w := newWorld(t)
	conn, err := net.Dial("tcp", w.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.Copy(conn, bytes.NewReader([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))); err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(conn); bytes.Contains(got, []byte("200 OK")) {
		t.Errorf("it is answered: %s", got)
	}
}

func readAnswer(t *testing.T, conn net.Conn, method, target string) answer {
	t.Helper()
	p, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method, URL: &url.URL{Path: target}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Body.Close()
	body, err := io.ReadAll(p.Body)
	if err != nil {
		t.Errorf("the body broke off: %v", err)
	}
	return answer{Response: p, body: string(body)}
}
