package portmap

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// PCP (RFC 6887) and its predecessor NAT-PMP (RFC 6886) are spoken on the same port. A message has a version, an
// operation (an answer's has the highest bit set) and a fixed size.
const (
	pmpPort    = 5351
	pmpVersion = 0
	pcpVersion = 2
	answered   = 0x80

	pmpAddress, pmpMapUDP = 0, 1
	pcpMap                = 1

	pcpSize    = 24 + 36
	maxMessage = 1100 // of PCP

	udp = 17
)

// resends are the pauses after which a question is repeated.
var resends = []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second}

var errForeign = errors.New("not an answer to the question")

// ask sends a question to the router until it is answered. understand returns errForeign for datagrams that are no answer.
func ask(ctx context.Context, r router, question []byte, understand func([]byte) error) error {
	dialer := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(r.local, 0))}
	// A connected socket receives only from the router, and learns at once that nobody listens there.
	conn, err := dialer.DialContext(ctx, "udp4", netip.AddrPortFrom(r.gateway, pmpPort).String())
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	buffer := make([]byte, maxMessage)
	for _, pause := range resends {
		if _, err := conn.Write(question); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(pause)); err != nil {
			return err
		}
		for ctx.Err() == nil {
			n, err := conn.Read(buffer)
			if netErr, ok := errors.AsType[net.Error](err); ok && netErr.Timeout() {
				break
			}
			if err != nil {
				return err
			}
			if err := understand(buffer[:n]); !errors.Is(err, errForeign) {
				return err
			}
		}
	}
	return errors.New("the router does not answer")
}

// pcpQuestion asks for a mapping, or for its end if seconds is 0.
func pcpQuestion(r router, port uint16, old mapping, seconds uint32) []byte {
	b := make([]byte, 0, pcpSize)
	b = append(b, pcpVersion, pcpMap, 0, 0)
	b = binary.BigEndian.AppendUint32(b, seconds)
	local := r.local.As16()
	b = append(b, local[:]...)
	b = append(b, old.nonce[:]...)
	b = append(b, udp, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, port)
	external := netip.AddrFrom4([4]byte{}).As16()
	if old.external.IsValid() {
		external = old.external.Addr().As16()
		port = old.external.Port()
	}
	b = binary.BigEndian.AppendUint16(b, port) // the one that we would like
	return append(b, external[:]...)
}

// readPCP reads the answer to a question about a port.
func readPCP(b []byte, port uint16, nonce [12]byte) (mapping, error) {
	switch {
	case len(b) >= 4 && b[0] == pmpVersion && b[1]&answered != 0:
		return mapping{}, errors.New("the router speaks only NAT-PMP")
	case len(b) < 24 || b[0] != pcpVersion || b[1] != pcpMap|answered:
		return mapping{}, errForeign
	case b[3] != 0:
		return mapping{}, fmt.Errorf("the router refuses with code %d", b[3])
	case len(b) < pcpSize:
		return mapping{}, errForeign
	}
	content := b[24:]
	if [12]byte(content) != nonce || content[12] != udp || binary.BigEndian.Uint16(content[16:]) != port {
		return mapping{}, errForeign
	}
	external := netip.AddrPortFrom(netip.AddrFrom16([16]byte(content[20:])).Unmap(), binary.BigEndian.Uint16(content[18:]))
	return mapping{external: external, lifetime: lifetimeOf(binary.BigEndian.Uint32(b[4:])), nonce: nonce}, nil
}

func addPCP(ctx context.Context, r router, port uint16, old mapping) (made mapping, err error) {
	if old.nonce == [12]byte{} {
		_, _ = rand.Read(old.nonce[:]) // never fails
	}
	err = ask(ctx, r, pcpQuestion(r, port, old, uint32(wanted/time.Second)), func(b []byte) (err error) {
		made, err = readPCP(b, port, old.nonce)
		return err
	})
	return made, err
}

func removePCP(ctx context.Context, r router, port uint16, old mapping) error {
	return ask(ctx, r, pcpQuestion(r, port, old, 0), func(b []byte) error {
		_, err := readPCP(b, port, old.nonce)
		return err
	})
}

// pmpQuestion asks for a mapping, or for its end if seconds is 0.
func pmpQuestion(port, external uint16, seconds uint32) []byte {
	b := []byte{pmpVersion, pmpMapUDP, 0, 0}
	b = binary.BigEndian.AppendUint16(b, port)
	b = binary.BigEndian.AppendUint16(b, external)
	return binary.BigEndian.AppendUint32(b, seconds)
}

// checkPMP checks the beginning of an answer.
func checkPMP(b []byte, operation byte, size int) error {
	if len(b) < 8 || b[0] != pmpVersion || b[1] != operation|answered {
		return errForeign
	}
	if code := binary.BigEndian.Uint16(b[2:]); code != 0 {
		return fmt.Errorf("the router refuses with code %d", code)
	}
	if len(b) < size {
		return errForeign
	}
	return nil
}

// readPMPAddress reads the router's public address.
func readPMPAddress(b []byte) (netip.Addr, error) {
	if err := checkPMP(b, pmpAddress, 12); err != nil {
		return netip.Addr{}, err
	}
	return netip.AddrFrom4([4]byte(b[8:])), nil
}

// readPMPMapping reads the public port, and how long it is mapped.
func readPMPMapping(b []byte, port uint16) (external uint16, lifetime time.Duration, err error) {
	if err := checkPMP(b, pmpMapUDP, 16); err != nil {
		return 0, 0, err
	}
	if binary.BigEndian.Uint16(b[8:]) != port {
		return 0, 0, errForeign
	}
	return binary.BigEndian.Uint16(b[10:]), lifetimeOf(binary.BigEndian.Uint32(b[12:])), nil
}

func addNATPMP(ctx context.Context, r router, port uint16, old mapping) (made mapping, err error) {
	var address netip.Addr
	if err := ask(ctx, r, []byte{pmpVersion, pmpAddress}, func(b []byte) (err error) {
		address, err = readPMPAddress(b)
		return err
	}); err != nil {
		return made, err
	}
	suggested := port
	if old.external.IsValid() {
		suggested = old.external.Port()
	}
	err = ask(ctx, r, pmpQuestion(port, suggested, uint32(wanted/time.Second)), func(b []byte) error {
		external, lifetime, err := readPMPMapping(b, port)
		made = mapping{external: netip.AddrPortFrom(address, external), lifetime: lifetime}
		return err
	})
	return made, err
}

func removeNATPMP(ctx context.Context, r router, port uint16, _ mapping) error {
	return ask(ctx, r, pmpQuestion(port, 0, 0), func(b []byte) error {
		_, _, err := readPMPMapping(b, port)
		return err
	})
}
