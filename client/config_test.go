package client_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cloudless/cloudless/client"
)

func TestConfigSurvivesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "config.yaml")
	want := newAuthority(t, "one").context("127.0.0.1:7700", "[::1]:7700")
	err := client.UpdateConfig(path, func(c *client.Config) error {
		c.Set(want)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	config, err := client.LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := config.Context(""); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Context = %v, %v; want %v, which as the first one is current", got, err, want)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600: it holds tokens", info.Mode())
	}
}

func TestConcurrentUpdatesLoseNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	const clouds = 16
	var all sync.WaitGroup
	for i := range clouds {
		all.Go(func() {
			err := client.UpdateConfig(path, func(c *client.Config) error {
				c.Set(client.Context{Name: fmt.Sprintf("cloud-%d", i)})
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	config, err := client.LoadConfig(path)
	if err != nil || len(config.Contexts) != clouds {
		t.Errorf("%d contexts are left of %d: %v", len(config.Contexts), clouds, err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 2 { // the file and its lock
		t.Errorf("left behind: %v", entries)
	}
}

func TestFailedUpdateChangesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	refused := errors.New("refused")
	err := client.UpdateConfig(path, func(c *client.Config) error {
		c.Set(client.Context{Name: "new"})
		return refused
	})
	if !errors.Is(err, refused) {
		t.Errorf("UpdateConfig = %v", err)
	}
	if config, err := client.LoadConfig(path); err != nil || len(config.Contexts) != 0 {
		t.Errorf("the file holds %v, %v", config, err)
	}
}

func TestUpdateFollowsALink(t *testing.T) {
	dir := t.TempDir()
	kept, link := filepath.Join(dir, "kept.yaml"), filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(kept, link); err != nil {
		t.Fatal(err)
	}
	if err := client.UpdateConfig(link, func(c *client.Config) error { c.Set(client.Context{Name: "a"}); return nil }); err != nil {
		t.Fatal(err)
	}
	if config, err := client.LoadConfig(kept); err != nil || len(config.Contexts) != 1 {
		t.Errorf("the file behind the link holds %v, %v", config, err)
	}
}

func TestLoadConfigRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"open to others":   {"current: a\n", 0o644, "chmod 600"},
		"unknown fields":   {"contexts: [{name: a, adress: x}]\n", 0o600, "adress"},
		"the same twice":   {"contexts: [{name: a}, {name: a}]\n", 0o600, `context "a" is there twice`},
		"a nameless one":   {"contexts: [{token: t}]\n", 0o600, "has no name"},
		"what is no YAML":  {"{", 0o600, "config.yaml"},
		"the wrong shapes": {"contexts: 7\n", 0o600, "line 1"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(path, []byte(test.text), test.mode); err != nil {
				t.Fatal(err)
			}
			if _, err := client.LoadConfig(path); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("LoadConfig = %v, want something about %q", err, test.want)
			}
		})
	}
}

func TestConfigReadsJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(`{"current": "a", "contexts": [{"name": "a", "addresses": ["h:1"]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := client.LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := config.Context(""); err != nil || !slices.Equal(got.Addresses, []string{"h:1"}) {
		t.Errorf("Context = %v, %v", got, err)
	}
}

func TestChoosingAContext(t *testing.T) {
	var config client.Config
	if _, err := config.Context(""); err == nil || !strings.Contains(err.Error(), "cloudless up") {
		t.Errorf("of an empty configuration: %v", err)
	}
	config.Set(client.Context{Name: "home", Cluster: "h"})
	config.Set(client.Context{Name: "work", Cluster: "w"})
	for name, want := range map[string]string{"": "home", "home": "home", "work": "work"} {
		if got, err := config.Context(name); err != nil || got.Name != want {
			t.Errorf("Context(%q) = %v, %v; want %s", name, got, err, want)
		}
	}
	if _, err := config.Context("wrok"); err == nil || !strings.Contains(err.Error(), "did you mean work?") {
		t.Errorf("of an unknown name: %v", err)
	}
	for _, test := range []struct{ cluster, wanted, want string }{{"w", "work", "work"}, {"x", "work", "work-2"}, {"x", "local", "local"}} {
		if got := config.FreeName(test.cluster, test.wanted); got != test.want {
			t.Errorf("FreeName(%s, %s) = %q, want %q", test.cluster, test.wanted, got, test.want)
		}
	}
	many := client.Config{Current: "one", Contexts: []client.Context{
		{Name: "one", Cluster: "h", Addresses: []string{"a:1"}}, {Name: "two", Cluster: "h", Addresses: []string{"a:1", "b:1"}}, {Name: "other", Cluster: "o", Addresses: []string{"a:1"}},
	}}
	if removed := many.RemoveServer("h", "a:1"); !slices.Equal(removed, []string{"one"}) || len(many.Contexts) != 2 ||
		!slices.Equal(many.Contexts[0].Addresses, []string{"b:1"}) || len(many.Contexts[1].Addresses) != 1 {
		t.Errorf("without one of two servers: removed %v, left %+v", removed, many)
	}
	if removed := config.RemoveCluster("h"); !slices.Equal(removed, []string{"home"}) || config.Current != "work" {
		t.Errorf("removed %v, now current %q; want the only one left", removed, config.Current)
	}
}

func TestContextHidesItsToken(t *testing.T) {
	where := client.Context{Name: "a", Token: "clapi_secret"}
	for _, text := range []string{
		fmt.Sprint(where), fmt.Sprintf("%v %+v %#v %s", where, where, where, where),
		fmt.Sprintf("%v", []client.Context{where}), where.LogValue().String(),
	} {
		if strings.Contains(text, "secret") {
			t.Errorf("printed %q", text)
		}
	}
}

func TestInvalidContextSaysWhy(t *testing.T) {
	good := newAuthority(t, "one").context("127.0.0.1:7700")
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*client.Context){
		"has no name":      func(c *client.Context) { c.Name = "" },
		"no addresses":     func(c *client.Context) { c.Addresses = nil },
		"form host:port":   func(c *client.Context) { c.Addresses = []string{"localhost"} },
		"has no token":     func(c *client.Context) { c.Token = "" },
		"characters":       func(c *client.Context) { c.Token = "a\nb" },
		"CA certificate":   func(c *client.Context) { c.CA = "" },
		"is of cluster on": func(c *client.Context) { c.Cluster = "two" },
	} {
		bad := good
		spoil(&bad)
		if _, err := client.Dial(t.Context(), bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Dial = %v, want something about %q", err, want)
		}
	}
}

func TestConfigPath(t *testing.T) {
	t.Setenv(client.ConfigEnv, "/elsewhere/c.yaml")
	if got, err := client.ConfigPath(); err != nil || got != "/elsewhere/c.yaml" {
		t.Errorf("ConfigPath = %q, %v", got, err)
	}
	t.Setenv(client.ConfigEnv, "")
	t.Setenv("XDG_CONFIG_HOME", "/home/me/.config")
	if got, err := client.ConfigPath(); err != nil || !strings.HasSuffix(got, filepath.Join("cloudless", "config.yaml")) {
		t.Errorf("ConfigPath = %q, %v", got, err)
	}
}

func FuzzLoadConfig(f *testing.F) {
	f.Add([]byte("current: a\ncontexts:\n- {name: a, addresses: [h:1], cluster: c, ca: x, token: t}\n"))
	f.Add([]byte(`{"contexts": [{"name": "a"}]}`))
	f.Add([]byte("contexts: &x [*x]"))
	f.Add([]byte(""))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(dir, "config.yaml")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		first, err := client.LoadConfig(path)
		if err != nil {
			return
		}
		// Writing what was read does not change its meaning.
		if err := client.UpdateConfig(path, func(*client.Config) error { return nil }); err != nil {
			t.Fatalf("write back: %v", err)
		}
		second, err := client.LoadConfig(path)
		if err != nil {
			t.Fatalf("read back: %v", err)
		}
		if a, b := normal(first), normal(second); !reflect.DeepEqual(a, b) {
			t.Errorf("read %#v, then %#v", a, b)
		}
	})
}

// normal removes the difference between nil and an empty list.
func normal(c *client.Config) client.Config {
	out := client.Config{Current: c.Current}
	for _, context := range c.Contexts {
		if len(context.Addresses) == 0 {
			context.Addresses = nil
		}
		out.Contexts = append(out.Contexts, context)
	}
	return out
}

func TestCheckConfigWritesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := client.CheckConfig(path); err != nil {
		t.Errorf("a configuration that can be made: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the configuration was written (%v)", err)
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := client.CheckConfig(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a configuration that is open to others: %v", err)
	}
	if err := client.CheckConfig("/dev/null/x/config.yaml"); err == nil || !strings.Contains(err.Error(), client.ConfigEnv) {
		t.Errorf("a configuration that cannot be made: %v", err)
	}
}
