package table

import (
	"strings"
	"testing"
)

func TestRoutesAreFoundByHostAndPath(t *testing.T) {
	var routes Table[string]
	for _, at := range []string{
		"shop.example.org/", "shop.example.org/v2", "shop.example.org/v2/admin", "*.example.org/", "*.example.org/v2", "other.org/only", "deep.a.example.org/", "Upper.Example.Org/x/",
	} {
		host, path, _ := strings.Cut(at, "/")
		routes.Add(host, "/"+path, at)
	}
	routes.Add("shop.example.org", "/v2", "a second route of the same path")
	for request, want := range map[string]string{
		"shop.example.org/":                    "shop.example.org/",
		"SHOP.example.org.:8443/x":             "shop.example.org/",
		"shop.example.org/v2":                  "shop.example.org/v2",
		"shop.example.org/v2/":                 "shop.example.org/v2",
		"shop.example.org/v2/x":                "shop.example.org/v2",
		"shop.example.org/v22":                 "shop.example.org/",
		"shop.example.org/v2/admin":            "shop.example.org/v2/admin",
		"shop.example.org/v2/administration":   "shop.example.org/v2",
		"shop.example.org/v2/../":              "shop.example.org/",
		"shop.example.org/v2/admin/../x":       "shop.example.org/v2",
		"shop.example.org/x/%2e%2e/v2/%61dmin": "shop.example.org/v2/admin",
		"shop.example.org//v2//admin//x":       "shop.example.org/v2/admin",
		"shop.example.org/./v2/./admin":        "shop.example.org/v2/admin",
		"shop.example.org/v2%2fadmin":          "shop.example.org/v2/admin",
		"shop.example.org/../../v2":            "shop.example.org/v2",
		"shop.example.org/v2;a=b/admin;c":      "shop.example.org/v2/admin",
		"any.example.org/":                     "*.example.org/",
		"any.example.org/v2/x":                 "*.example.org/v2",
		"two.labels.example.org/":              "",
		"example.org/":                         "",
		"deep.a.example.org/":                  "deep.a.example.org/",
		"other.org/":                           "",
		"other.org/only":                       "other.org/only",
		"upper.example.org/x/y":                "Upper.Example.Org/x/",
		"upper.example.org/x":                  "Upper.Example.Org/x/",
		"upper.example.org/y":                  "",
		"[::1]:80/":                            "",
	} {
		host, path, _ := strings.Cut(request, "/")
		got, found, known := routes.Find(Host(host), "/"+path)
		if got != want || found != (want != "") {
			t.Errorf("%s leads to %q, want %q", request, got, want)
		}
		if wantKnown := want != "" || host == "other.org" || host == "upper.example.org"; known != wantKnown {
			t.Errorf("the host of %s is known: %v", request, known)
		}
	}
}

func TestAmbiguousPaths(t *testing.T) {
	for path, want := range map[string]bool{
		"/": false, "/a/../b": false, "/a/./b": false, "/../a": false, "/a//b": false, "/a%2Fb": false, "/a%2fb/c": false, "/a%20b": false,
		"/a..b": false, "/a%2e%2eb": false, "/a;b=c/d": false, "/a/...": false, "/%": false, "/a%2fb/c/../d": false, "/a;b/../c": false, "/.well-known/x": false,
		"/a/%2e%2e/b": true, "/a/.%2E/b": true, "/a/..%2fb": true, "/a%2f..%2fb": true, "/a%2f../b": true, "/a/%2e/b": true, "/a/..;/b": true, "/a/..;x=y/b": true,
		"/a/..%3b/b": true, "/a/..%5cb": true, `/a/..\b`: true, "/a%2fb/../c": true, "/a//../b": true, "/a;%2f/b": true, "/a/%2e%2e": true,
	} {
		if got := Ambiguous(path); got != want {
			t.Errorf("%s is ambiguous: %v", path, got)
		}
	}
}

func TestHosts(t *testing.T) {
	for field, want := range map[string]string{
		"a.org": "a.org", "A.org:80": "a.org", "a.org.": "a.org", "a.org:": "a.org", "[::1]:80": "::1", "192.0.2.1:80": "192.0.2.1", "": "",
		"a.org:80:80": "", "a.org:x": "", "a.org:808080": "", "a/b": "", "a b": "", "a.org@evil": "", "[::1": "", "[x]": "", "a.org,b": "", "a\x00b": "", "ä.org": "",
	} {
		if got := Host(field); got != want {
			t.Errorf("the host of %q is %q, want %q", field, got, want)
		}
	}
}

// FuzzFind: a path and its clean form have the same route, and nothing crashes.
func FuzzFind(f *testing.F) {
	f.Add("shop.example.org:80", "/v2/%2e%2e/x//y/./")
	f.Fuzz(func(t *testing.T, host, path string) {
		var routes Table[string]
		routes.Add("a.org", "/", "all")
		routes.Add("a.org", "/x", "x")
		routes.Add("*.a.org", "/x/y", "y")
		clean := Clean(path)
		if !strings.HasPrefix(clean, "/") || strings.Contains(clean, "//") || strings.Contains(clean+"/", "/../") || strings.Contains(clean+"/", "/./") {
			t.Errorf("%q becomes %q", path, clean)
		}
		if strings.Contains(path, "%") {
			return // an escape is removed once, as backends do
		}
		for _, host := range []string{Host(host), "a.org", "b.a.org"} {
			one, _, _ := routes.Find(host, path)
			other, _, _ := routes.Find(host, clean)
			if one != other {
				t.Errorf("%q leads to %q, and %q to %q", path, one, clean, other)
			}
		}
	})
}
