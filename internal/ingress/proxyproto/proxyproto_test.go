package proxyproto

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
)

func TestHeadersAreReadAsTheyWereWritten(t *testing.T) {
	for _, version := range []string{"v1", "v2"} {
		for _, c := range []struct{ from, to string }{
			{"192.0.2.1:1234", "198.51.100.7:443"}, {"[2001:db8::1]:1234", "[2001:db8::2]:443"}, {"192.0.2.1:1234", "[2001:db8::2]:443"},
		} {
			from, to := netip.MustParseAddrPort(c.from), netip.MustParseAddrPort(c.to)
			r := bufio.NewReader(bytes.NewReader(append(Append(nil, version, from, to), "rest"...)))
			gotFrom, gotTo, err := Read(r)
			if err != nil || gotFrom.Addr().Unmap() != from.Addr() || gotTo.Addr().Unmap() != to.Addr() || gotFrom.Port() != from.Port() || gotTo.Port() != to.Port() {
				t.Errorf("%s: read %v to %v, %v, want %v to %v", version, gotFrom, gotTo, err, from, to)
			}
			if rest, _ := io.ReadAll(r); string(rest) != "rest" {
				t.Errorf("%s: what follows is %q", version, rest)
			}
		}
	}
}

// Lists of addresses have IPv4 addresses as such.
func TestMappedAddressesAreIPv4(t *testing.T) {
	mapped := netip.MustParseAddr("::ffff:203.0.113.9").As16()
	binary := signature + "\x21\x21\x00\x24" + string(mapped[:]) + string(mapped[:]) + "\x00\x05\x00\x50"
	for _, text := range []string{"PROXY TCP6 ::ffff:203.0.113.9 ::ffff:203.0.113.9 5 80\r\n", binary} {
		from, to, err := Read(bufio.NewReader(strings.NewReader(text)))
		if err != nil || from != netip.MustParseAddrPort("203.0.113.9:5") || to != netip.MustParseAddrPort("203.0.113.9:80") {
			t.Errorf("%q: %v to %v, %v", text, from, to, err)
		}
	}
	if _, _, err := Read(bufio.NewReader(strings.NewReader("PROXY TCP4 ::ffff:203.0.113.9 203.0.113.9 5 80\r\n"))); !errors.Is(err, ErrMalformed) {
		t.Errorf("a mapped address of the family TCP4: %v", err)
	}
}

func TestOtherProtocolsStayAsTheyAre(t *testing.T) {
	for _, text := range []string{"GET / HTTP/1.1\r\n", "POST / HTTP/1.1\r\n", "PRI * HTTP/2.0", "\x16\x03\x01", "\r\nGET /", "P\x00"} {
		r := bufio.NewReader(strings.NewReader(text))
		from, _, err := Read(r)
		if rest, _ := io.ReadAll(r); err != nil || from.IsValid() || string(rest) != text {
			t.Errorf("%q: %v, %v, and then %q", text, from, err, rest)
		}
	}
}

func TestMalformedHeadersAreRefused(t *testing.T) {
	for _, text := range []string{
		"PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n", "PROXY TCP4 192.0.2.1 192.0.2.2 1 99999\r\n", "PROXY TCP4 ::1 ::1 1 2\r\n", "PROXY TCP6 192.0.2.1 ::1 1 2\r\n",
		"PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n", "PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n", "PROXY " + strings.Repeat("x", 200), "PROXY TCP6 fe80::1%x ::1 1 2\r\n",
		signature + "\x31\x11\x00\x0c123456789012", signature + "\x21\x11\x00\x04abcd", signature + "\x21\x41\x00\x0c123456789012", signature + "\x21\x11\xff\xff",
	} {
		if from, _, err := Read(bufio.NewReader(strings.NewReader(text))); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q: %v, %v", text, from, err)
		}
	}
	for _, text := range []string{"PROXY UNKNOWN\r\n", "PROXY UNKNOWN a b\r\n", signature + "\x20\x00\x00\x00", signature + "\x21\x00\x00\x00"} {
		if from, _, err := Read(bufio.NewReader(strings.NewReader(text))); err != nil || from.IsValid() {
			t.Errorf("%q names %v, %v", text, from, err)
		}
	}
}

// FuzzRead: nothing crashes, and what is read can be written and read again.
func FuzzRead(f *testing.F) {
	f.Add([]byte("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"))
	f.Add([]byte(signature + "\x21\x11\x00\x0c123456789012"))
	f.Fuzz(func(t *testing.T, b []byte) {
		from, to, err := Read(bufio.NewReader(bytes.NewReader(b)))
		if err != nil || !from.IsValid() {
			return
		}
		again, _, err := Read(bufio.NewReader(bytes.NewReader(Append(nil, "v2", from, to))))
		if err != nil || again.Addr().Unmap() != from.Addr().Unmap() || again.Port() != from.Port() {
			t.Errorf("%v becomes %v, %v", from, again, err)
		}
	})
}
