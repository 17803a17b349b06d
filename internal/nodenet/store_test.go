package nodenet

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// However endpoints come and go and processes die, no two share an address, each keeps its
// own, and none is outside the subnet or the gateway's.
func TestAddressesNeverConflict(t *testing.T) {
	dir := t.TempDir()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		path := filepath.Join(dir, fmt.Sprint(run))
		open := func() store {
			s, err := openStore(path)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := open()
		subnets := Subnets{V4: netip.MustParsePrefix("10.0.0.0/28"), V6: netip.MustParsePrefix("fd00::/64")}
		if _, err := s.configure(subnets); err != nil {
			t.Fatal(err)
		}
		given := map[string]netip.Addr{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			uid := fmt.Sprint("r", rapid.IntRange(0, 19).Draw(t, "uid"))
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				s = open()
			case 1:
				if err := s.free(uid); err != nil {
					t.Fatal(err)
				}
				delete(given, uid)
			default:
				e, err := s.allocate(Endpoint{UID: uid})
				if err != nil {
					if len(given) != 13 {
						t.Fatalf("%v, with %d of 13 places in use", err, len(given))
					}
					continue
				}
				check(t, given, uid, e.addresses(subnets))
			}
		}
	})
}

func check(t *rapid.T, given map[string]netip.Addr, uid string, addresses []netip.Addr) {
	v4 := addresses[0]
	if before, known := given[uid]; known && before != v4 {
		t.Fatalf("%s had %v and has %v", uid, before, v4)
	}
	given[uid] = v4
	seen := map[netip.Addr]string{}
	for uid, addr := range given {
		if other, twice := seen[addr]; twice {
			t.Fatalf("%s and %s both have %v", uid, other, addr)
		}
		seen[addr] = uid
	}
	last := v4.As4()[3]
	if !netip.MustParsePrefix("10.0.0.0/28").Contains(v4) || last < 2 || last > 14 || addresses[1].As16()[15] != last {
		t.Fatalf("%s has %v", uid, addresses)
	}
}

// Concurrent allocations share writes and still get different addresses.
func TestConcurrentAllocations(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	s, err := openStore(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.configure(Subnets{V4: netip.MustParsePrefix("10.0.0.0/16")}); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			if _, err := s.allocate(Endpoint{UID: fmt.Sprint("r", i)}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	again, err := openStore(path)
	if err != nil || len(again.all()) != 200 {
		t.Errorf("%d are on disk, %v", len(again.all()), err)
	}
}

func TestDamagedState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	for text, want := range map[string]string{
		"{":              "is damaged",
		`{"format": 99}`: "newer version",
		`{"format": 1, "endpoints": {"a": {"place": 2}, "b": {"place": 2}}}`: "have the same address",
		`{"format": 1, "endpoints": {"../a": {"place": 2}}}`:                 "there is no such thing",
		`{"format": 1, "endpoints": {"a": {"place": 1}}}`:                    "there is no such thing",
		`{"format": 1, "v4": "fd00::/64"}`:                                   "not one of IPv4",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openStore(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestNames(t *testing.T) {
	o := Options{ID: "abcd1234"}
	for _, name := range []string{o.bridge(), o.link(maxPlace)} {
		if len(name) > 15 || !Own(name) {
			t.Errorf("%s cannot be the name of an interface of ours", name)
		}
	}
	for _, name := range []string{"eth0", "cl-", "cl-short", "cv", "cvabcd1234", "docker0"} {
		if Own(name) {
			t.Errorf("%s is not ours", name)
		}
	}
}
