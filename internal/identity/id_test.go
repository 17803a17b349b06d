package identity

import (
	"crypto/x509"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const testCluster = "0198c5a0-7b1e-7000-8000-000000000001"

func TestIDsAreWrittenAsSPIFFEIDs(t *testing.T) {
	for _, c := range []struct {
		kind  Kind
		parts []string
		want  string
	}{
		{KindNode, []string{"n-1"}, "spiffe://" + testCluster + "/node/n-1"},
		{KindServer, []string{"s-1"}, "spiffe://" + testCluster + "/server/s-1"},
		{KindUser, []string{"ada"}, "spiffe://" + testCluster + "/user/ada"},
		{KindWorkload, []string{"shop", "web"}, "spiffe://" + testCluster + "/workload/shop/web"},
	} {
		id, err := NewID(testCluster, c.kind, c.parts...)
		if err != nil {
			t.Fatalf("NewID(%s, %q): %v", c.kind, c.parts, err)
		}
		if id.String() != c.want {
			t.Errorf("NewID(%s, %q) = %s, want %s", c.kind, c.parts, id, c.want)
		}
		parts := []string{id.Namespace(), id.Name()}
		if c.kind != KindWorkload {
			parts = parts[1:]
		}
		if id.Cluster() != testCluster || id.Kind() != c.kind || strings.Join(parts, "/") != strings.Join(c.parts, "/") {
			t.Errorf("%s reads back as %s, %s, %q", id, id.Cluster(), id.Kind(), parts)
		}
	}
}

func TestInvalidIDsAreRefused(t *testing.T) {
	for _, s := range []string{
		"",
		"node/n-1",
		"http://c/node/n-1",
		"spiffe://c",
		"spiffe://c/node",
		"spiffe://c/node/",
		"spiffe://c/node/a/b",
		"spiffe://c/node/..",
		"spiffe://c/node/a%62",
		"spiffe://c/node/a?b",
		"spiffe://c/robot/r2",
		"spiffe://c/workload/web",
		"spiffe:///node/n-1",
		"spiffe://C/node/n-1",
		"spiffe://c:443/node/n-1",
		"spiffe://user@c/node/n-1",
		"SPIFFE://c/node/n-1",
		"spiffe://c/node/" + strings.Repeat("n", maxIDLength),
	} {
		if id, err := ParseID(s); err == nil {
			t.Errorf("ParseID(%q) = %s, want an error", s, id)
		}
	}
}

func TestAnyIDSurvivesItsString(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		segment := rapid.StringMatching(`[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,20}`)
		kind := rapid.SampledFrom([]Kind{KindNode, KindServer, KindUser, KindWorkload}).Draw(t, "kind")
		parts := []string{segment.Draw(t, "part")}
		if kind == KindWorkload {
			parts = append(parts, segment.Draw(t, "name"))
		}
		id, err := NewID(rapid.StringMatching(`[a-z0-9._-]{1,40}`).Draw(t, "cluster"), kind, parts...)
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseID(id.String())
		if err != nil || back != id {
			t.Fatalf("ParseID(%s) = %s, %v", id, back, err)
		}
	})
}

func FuzzParseID(f *testing.F) {
	f.Add("spiffe://c/node/n-1")
	f.Add("spiffe://c/workload/shop/web")
	f.Add("spiffe://c/user/../server/s")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(s)
		if err == nil && id.String() != s {
			t.Errorf("ParseID accepted %q and wrote %q", s, id)
		}
		if err != nil && !id.IsZero() {
			t.Errorf("ParseID refused %q and returned %q", s, id)
		}
	})
}

func TestACertificateHasExactlyOneIdentity(t *testing.T) {
	uri := func(s string) *url.URL {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	one := uri("spiffe://c/node/n-1")
	if id, err := FromCertificate(&x509.Certificate{URIs: []*url.URL{one}}); err != nil || id.String() != one.String() {
		t.Errorf("FromCertificate = %s, %v", id, err)
	}
	for _, uris := range [][]*url.URL{nil, {one, uri("spiffe://c/server/s-1")}, {uri("https://c/node/n-1")}, {uri("spiffe://c/node/%6e")}} {
		if id, err := FromCertificate(&x509.Certificate{URIs: uris}); err == nil {
			t.Errorf("FromCertificate with %v = %s, want an error", uris, id)
		}
	}
}
