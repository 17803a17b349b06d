package image_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/image"
)

const digest = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

func TestParseName(t *testing.T) {
	for in, want := range map[string]image.Name{
		"hello":                        {Registry: image.ClusterRegistry, Repository: "hello", Tag: "latest"},
		"hello:1":                      {Registry: image.ClusterRegistry, Repository: "hello", Tag: "1"},
		"x":                            {Registry: image.ClusterRegistry, Repository: "x", Tag: "latest"},
		"library/nginx":                {Registry: image.ClusterRegistry, Repository: "library/nginx", Tag: "latest"},
		"team/web/api:v1.2":            {Registry: image.ClusterRegistry, Repository: "team/web/api", Tag: "v1.2"},
		"hello@" + digest:              {Registry: image.ClusterRegistry, Repository: "hello", Digest: digest},
		"hello:1@" + digest:            {Registry: image.ClusterRegistry, Repository: "hello", Tag: "1", Digest: digest},
		"docker.io/nginx":              {Registry: "docker.io", Repository: "library/nginx", Tag: "latest"},
		"index.docker.io/nginx:1":      {Registry: "docker.io", Repository: "library/nginx", Tag: "1"},
		"ghcr.io/a/b:c":                {Registry: "ghcr.io", Repository: "a/b", Tag: "c"},
		"GHCR.io/a/b:C":                {Registry: "ghcr.io", Repository: "a/b", Tag: "C"},
		"localhost/a":                  {Registry: "localhost", Repository: "a", Tag: "latest"},
		"localhost:5000/a:1":           {Registry: "localhost:5000", Repository: "a", Tag: "1"},
		"[::1]:5000/a":                 {Registry: "[::1]:5000", Repository: "a", Tag: "latest"},
		image.ClusterRegistry + "/a:b": {Registry: image.ClusterRegistry, Repository: "a", Tag: "b"},
	} {
		got, err := image.ParseName(in)
		if err != nil || got != want {
			t.Errorf("ParseName(%q) = %+v, %v, want %+v", in, got, err, want)
		}
	}
}

func TestParseNameRefusesWithReasonAndWayOut(t *testing.T) {
	for in, reason := range map[string]string{
		"":                                  "empty",
		"https://docker.io/nginx":           "no URL scheme",
		"hello world":                       "no spaces",
		"Hello":                             "upper-case",
		"Team/hello":                        "upper-case",
		"docker.io/Nginx":                   "upper-case",
		"hello@sha256:123":                  "not a digest",
		"hello@md5:" + digest[7:39]:         "not a digest",
		"hello:":                            "image names cannot have",
		"hello:a:b":                         "image names cannot have",
		"/hello":                            "image names cannot have",
		"a//b":                              "image names cannot have",
		"docker.io/":                        "image names cannot have",
		"../../etc/passwd":                  "image names cannot have",
		"hello:" + strings.Repeat("t", 129): "image names cannot have",
		strings.Repeat("long/", 60) + "x":   "more than 255 characters",
	} {
		_, err := image.ParseName(in)
		if err == nil {
			t.Errorf("ParseName(%q) did not refuse", in)
			continue
		}
		if msg := err.Error(); !strings.Contains(msg, reason) || !strings.Contains(msg, "write it as [registry/]repository") || strings.Contains(msg, "\n") {
			t.Errorf("ParseName(%q): %q, want one sentence with %q and the way out", in, msg, reason)
		}
	}
}

func TestNameForms(t *testing.T) {
	for _, c := range []struct {
		in, reference, public string
		local                 bool
	}{
		{"nginx:1.27", "1.27", "docker.io/library/nginx:1.27", true},
		{"grafana/loki", "latest", "docker.io/grafana/loki:latest", true},
		{"nginx:1@" + digest, digest, "docker.io/library/nginx:1@" + digest, true},
		{"ghcr.io/a/b:1", "1", "ghcr.io/a/b:1", false},
	} {
		n, err := image.ParseName(c.in)
		if err != nil {
			t.Fatal(err)
		}
		if n.Reference() != c.reference || n.Public() != c.public || n.Local() != c.local {
			t.Errorf("%s: reference %s, public %s, local %v, want %+v", c.in, n.Reference(), n.Public(), n.Local(), c)
		}
		if want := n.Registry + "/" + n.Repository + "@" + digest; n.Pinned(digest) != want {
			t.Errorf("%s: pinned %s, want %s", c.in, n.Pinned(digest), want)
		}
	}
}

func FuzzParseName(f *testing.F) {
	for _, seed := range []string{
		"hello", "hello:1", "docker.io/nginx", "localhost:5000/a:1", "[::1]:5000/a", "Team/x", "a.b/c",
		"hello:1@" + digest, "https://x/y", "index.docker.io/library/library/x", ":", "@", "/",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := image.ParseName(s)
		if err != nil {
			if n != (image.Name{}) {
				t.Errorf("%q is refused and yet gives %+v", s, n)
			}
			return
		}
		if n.Registry == "" || n.Repository == "" || n.Reference() == "" {
			t.Errorf("%q gives an incomplete name: %+v", s, n)
		}
		for _, form := range []string{n.String(), n.Pinned(digest), n.Public()} {
			again, err := image.ParseName(form)
			if err != nil {
				t.Errorf("%q gives %q, which is refused: %v", s, form, err)
			}
			if form == n.String() && again != n {
				t.Errorf("%q gives %+v, which reads back as %+v", s, n, again)
			}
		}
	})
}

// The fast path for common names gives the same results as the general parser.
func TestFastPathParsesLikeTheGeneralParser(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		for range rapid.IntRange(0, 6).Draw(t, "parts") {
			part := rapid.SampledFrom([]string{"a", "b7", "Z", "0", "-", ".", "_", "/", ":", "@", "ä"}).Draw(t, "part")
			b.WriteString(strings.Repeat(part, rapid.SampledFrom([]int{1, 1, 1, 2, 63, 64, 65, 128, 129}).Draw(t, "times")))
		}
		got, err := image.ParseName(b.String())
		want, wantErr := image.ParseAny(b.String())
		if got != want || (err == nil) != (wantErr == nil) {
			t.Fatalf("%q is %v (%v), want %v (%v)", b.String(), got, err, want, wantErr)
		}
	})
}
