package nodenet

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What replicas get to know of name servers is what they can reach.
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
		text, sentence := resolvFile(paths)
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

const sockets = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0
   1: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000000000000000 100 0 0 10 0
   2: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0000000000000000 100 0 0 10 0
`

func TestSocketsAt(t *testing.T) {
	for key, want := range map[portKey][]string{
		{"tcp", 8080}: {"4711"},
		{"udp", 8080}: {"4711", "4712"},
		{"tcp", 80}:   {"4713"},
		{"tcp", 81}:   nil,
	} {
		if got := socketsAt(strings.NewReader(sockets), key); !slices.Equal(got, want) {
			t.Errorf("at %v: %v, want %v", key, got, want)
		}
	}
}

func FuzzSocketsAt(f *testing.F) {
	f.Add(sockets, uint16(80))
	f.Fuzz(func(t *testing.T, table string, port uint16) {
		for _, inode := range socketsAt(strings.NewReader(table), portKey{"tcp", port}) {
			if !strings.Contains(table, inode) {
				t.Errorf("inode %q is not in the table", inode)
			}
		}
	})
}
