package resolvconf

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cloudless/cloudless/internal/must"
)

// Replicas get only the name servers that they can reach.
func TestResolvFile(t *testing.T) {
	const stub, upstream, none = "nameserver 127.0.0.53\noptions edns0\n", "# made by a cache\nnameserver 192.0.2.53\nsearch example.com\n", "search example.com\n"
	for _, c := range []struct {
		files []string
		want  string
		told  bool
	}{
		{[]string{upstream}, upstream, false},
		{[]string{stub, upstream}, upstream, false},
		{[]string{stub, "", upstream}, upstream, false},
		{[]string{"nameserver ::1\n" + upstream}, upstream, false},
		{[]string{stub}, "options edns0\n", true},
		{[]string{stub, stub}, "options edns0\n", true},
		{[]string{none, upstream}, none, false},
		{nil, "", false},
	} {
		dir := t.TempDir()
		paths := []string{filepath.Join(dir, "absent")}
		for i, text := range c.files {
			path := filepath.Join(dir, string(rune('a'+i)))
			if text != "" {
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			paths = append(paths, path)
		}
		if len(c.files) > 0 {
			paths = paths[1:]
		}
		text, sentence := Text(paths)
		if text != c.want || (sentence != "") != c.told {
			t.Errorf("of %q came %q, %q", c.files, text, sentence)
		}
	}
}

func FuzzWithoutLoopback(f *testing.F) {
	f.Add("nameserver 127.0.0.53\nnameserver fe80::1%eth0\n")
	f.Fuzz(func(t *testing.T, text string) {
		out, servers, _ := withoutLoopback([]byte(text))
		again, same, local := withoutLoopback([]byte(out))
		if again != out || same != servers || local {
			t.Errorf("of %q came %q, and of that %q", text, out, again)
		}
	})
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// A local cache is asked only if the servers behind it are unknown: it might forward to the caller.
func TestServersOutsideTheMachineComeFirst(t *testing.T) {
	const stub, upstream = "nameserver 127.0.0.53\nsearch a.example\n", "nameserver 192.0.2.53\nnameserver ::1\nnameserver fe80::1%eth0\nsearch b.example c.example\n"
	for _, c := range []struct {
		files           []string
		servers, search string
	}{
		{[]string{upstream}, "192.0.2.53 fe80::1%eth0", "b.example c.example"},
		{[]string{stub, upstream}, "192.0.2.53 fe80::1%eth0", "b.example c.example"},
		{[]string{stub}, "127.0.0.53", "a.example"},
		{[]string{"nameserver 0.0.0.0\nnameserver nonsense\nnameserver\n", stub}, "127.0.0.53", "a.example"},
		{[]string{"nameserver ::ffff:192.0.2.1\ndomain d.example\n"}, "192.0.2.1", "d.example"},
		{[]string{"nameserver 10.64.0.1\nsearch e.example\n", upstream}, "192.0.2.53 fe80::1%eth0", "b.example c.example"},
		{[]string{"nameserver 10.64.0.1\n" + stub}, "127.0.0.53", "a.example"},
		{nil, "", ""},
	} {
		paths := []string{filepath.Join(t.TempDir(), "absent")}
		for _, text := range c.files {
			paths = append(paths, write(t, filepath.Join(t.TempDir(), "resolv.conf"), text))
		}
		got := Read(paths, netip.MustParseAddr("10.64.0.1"))
		var servers []string
		for _, s := range got.Servers {
			servers = append(servers, s.String())
		}
		if strings.Join(servers, " ") != c.servers || strings.Join(got.Search, " ") != c.search {
			t.Errorf("of %q came %v", c.files, got)
		}
	}
}

func TestReplicaSearchesTheClusterFirst(t *testing.T) {
	bridge := []netip.Addr{netip.MustParseAddr("10.64.0.1")}
	domains := []string{"shop.cloudless.internal", "cloudless.internal"}
	machine := Config{Search: []string{"corp.example", ".", "cloudless.internal", "c.example", "d.example", "e.example", "f.example"}}
	const want = "nameserver 10.64.0.1\n" +
		"search shop.cloudless.internal cloudless.internal corp.example c.example d.example e.example\n" +
		"options ndots:2\n"
	if got := ForReplica(bridge, domains, machine); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := parse([]byte(want)); !slices.Equal(got.Servers, bridge) {
		t.Errorf("read back as %v", got)
	}
}

// Programs replace the file, write to it, and make it a link to another one.
func TestEveryChangeIsSeen(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "resolv.conf"), filepath.Join(t.TempDir(), "stub-resolv.conf")
	changed := make(chan struct{}, 1)
	ended := make(chan error)
	go func() {
		ended <- Watch(t.Context(), []string{path}, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	t.Cleanup(func() { must.Succeed(t, <-ended) })
	until := func(server string) {
		t.Helper()
		for {
			if got := Read([]string{path}).Servers; len(got) == 1 && got[0].String() == server {
				return
			}
			<-changed
		}
	}
	<-changed // the first call: from now on changes are seen
	write(t, path, "nameserver 192.0.2.1\n")
	until("192.0.2.1")
	must.Succeed(t, os.Rename(write(t, path+".new", "nameserver 192.0.2.2\n"), path))
	until("192.0.2.2")
	write(t, other, "nameserver 192.0.2.3\n")
	must.Succeed(t, os.Symlink(other, filepath.Join(dir, "link")))
	must.Succeed(t, os.Rename(filepath.Join(dir, "link"), path))
	until("192.0.2.3")
	write(t, other, "nameserver 192.0.2.4\n")
	until("192.0.2.4")
}
