// Package proxyproto reads and writes the headers of the PROXY protocol, versions 1 and 2, by which a load balancer says
// whose connection it passes on.
//
// It must not know who may be believed.
package proxyproto

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

const (
	signature = "\r\n\r\n\x00\r\nQUIT\n"
	// maxText is how long a header of version 1 is at most, and maxBinary the addresses of version 2 with what follows them.
	maxText, maxBinary = 107, 4096
)

// ErrMalformed says that something begins like a header and is none.
var ErrMalformed = errors.New("the header of the PROXY protocol is malformed")

// Read reads a header if there is one. Without it, or if the header says nothing of a client, the addresses are not
// valid. It waits only while what has come may become a header.
func Read(r *bufio.Reader) (from, to netip.AddrPort, err error) {
	for n := 1; ; n++ {
		b, err := r.Peek(n)
		if err != nil {
			return from, to, err
		}
		switch text := string(b); {
		case text == signature:
			return readBinary(r)
		case text == "PROXY ":
			return readText(r)
		case !strings.HasPrefix(signature, text) && !strings.HasPrefix("PROXY ", text):
			return from, to, nil
		}
	}
}

func readText(r *bufio.Reader) (from, to netip.AddrPort, err error) {
	var line []byte
	for !strings.HasSuffix(string(line), "\r\n") {
		c, err := r.ReadByte()
		if err != nil {
			return from, to, err
		}
		if line = append(line, c); len(line) > maxText {
			return from, to, ErrMalformed
		}
	}
	words := strings.Split(strings.TrimSuffix(string(line), "\r\n"), " ")
	if len(words) >= 2 && words[1] == "UNKNOWN" {
		return from, to, nil
	}
	if len(words) != 6 || words[1] != "TCP4" && words[1] != "TCP6" {
		return from, to, ErrMalformed
	}
	if from, err = address(words[2], words[4]); err == nil {
		to, err = address(words[3], words[5])
	}
	if err != nil || from.Addr().Is4() != (words[1] == "TCP4") || to.Addr().Is4() != (words[1] == "TCP4") {
		return netip.AddrPort{}, netip.AddrPort{}, ErrMalformed
	}
	return unmap(from), unmap(to), nil
}

// unmap turns an IPv4 address that is written as an IPv6 address into what lists of addresses have.
func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

func address(host, port string) (netip.AddrPort, error) {
	a, err := netip.ParseAddr(host)
	if err != nil || a.Zone() != "" {
		return netip.AddrPort{}, ErrMalformed
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || len(port) > 1 && port[0] == '0' {
		return netip.AddrPort{}, ErrMalformed
	}
	return netip.AddrPortFrom(a, uint16(n)), nil
}

func readBinary(r *bufio.Reader) (from, to netip.AddrPort, err error) {
	var head [16]byte
	if _, err := readFull(r, head[:]); err != nil {
		return from, to, err
	}
	length := int(binary.BigEndian.Uint16(head[14:]))
	if head[12]>>4 != 2 || head[12]&0xf > 1 || length > maxBinary {
		return from, to, ErrMalformed
	}
	body := make([]byte, length)
	if _, err := readFull(r, body); err != nil {
		return from, to, err
	}
	if head[12]&0xf == 0 { // the balancer itself, such as for a health check
		return from, to, nil
	}
	size := 0
	switch head[13] >> 4 {
	case 0: // unspecified
		return from, to, nil
	case 1:
		size = 4
	case 2:
		size = 16
	case 3: // a unix socket
		return from, to, nil
	default:
		return from, to, ErrMalformed
	}
	if len(body) < 2*size+4 {
		return from, to, ErrMalformed
	}
	source, _ := netip.AddrFromSlice(body[:size])
	target, _ := netip.AddrFromSlice(body[size : 2*size])
	ports := body[2*size:]
	return unmap(netip.AddrPortFrom(source, binary.BigEndian.Uint16(ports))), unmap(netip.AddrPortFrom(target, binary.BigEndian.Uint16(ports[2:]))), nil
}

func readFull(r *bufio.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var more int
		more, err = r.Read(p[n:])
		n += more
	}
	if n == len(p) {
		err = nil
	}
	return n, err
}

// Append appends a header of version "v1" or "v2".
func Append(b []byte, version string, from, to netip.AddrPort) []byte {
	source, target := from.Addr().Unmap(), to.Addr().Unmap()
	v4 := source.Is4() && target.Is4()
	if !v4 {
		source, target = netip.AddrFrom16(source.As16()), netip.AddrFrom16(target.As16())
	}
	if version == "v1" {
		family := "TCP6"
		if v4 {
			family = "TCP4"
		}
		// A mapped IPv4 address beside an IPv6 address must look like one.
		return fmt.Appendf(b, "PROXY %s %s %s %d %d\r\n", family, source, target, from.Port(), to.Port())
	}
	b = append(b, signature...)
	b = append(b, 0x21)
	if v4 {
		b = append(b, 0x11, 0, 12)
	} else {
		b = append(b, 0x21, 0, 36)
	}
	b = append(b, source.AsSlice()...)
	b = append(b, target.AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, from.Port())
	return binary.BigEndian.AppendUint16(b, to.Port())
}
