package resolver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// ednsSize is the largest UDP message that crosses any network in one piece.
const ednsSize = 1232

// maxForeign is how many messages that do not match arrive before a query is repeated by TCP: somebody may be
// guessing.
const maxForeign = 8

// query is what is asked of upstreams.
type query struct {
	name         string // in lower case
	qtype        uint16
	dnssec       bool // the client wants signatures
	unchecked    bool // and answers that failed validation
	authenticity bool // and to know whether they were validated
}

// key identifies equal queries.
func (q *query) key(to []byte) []byte {
	flags := byte(0)
	for i, set := range []bool{q.dnssec, q.unchecked, q.authenticity} {
		if set {
			flags |= 1 << i
		}
	}
	return append(binary.BigEndian.AppendUint16(append(to, flags), q.qtype), q.name...)
}

func (q *query) message(edns bool) *dns.Msg {
	m := new(dns.Msg)
	m.Id = dns.Id()
	m.RecursionDesired, m.CheckingDisabled, m.AuthenticatedData = true, q.unchecked, q.authenticity
	m.Question = []dns.Question{{Name: q.name, Qtype: q.qtype, Qclass: dns.ClassINET}}
	if edns {
		m.SetEdns0(ednsSize, q.dnssec)
	}
	return m
}

// answeredBy reports whether a message answers the query.
func (q *query) answeredBy(asked, m *dns.Msg) bool {
	return m.Response && m.Opcode == dns.OpcodeQuery && m.Id == asked.Id && len(m.Question) == 1 && m.Question[0].Qtype == q.qtype &&
		m.Question[0].Qclass == dns.ClassINET && strings.EqualFold(m.Question[0].Name, q.name)
}

// ask asks one upstream, by UDP and if necessary by TCP. Old servers refuse EDNS: they are asked again without.
func ask(ctx context.Context, to netip.AddrPort, q *query) (*dns.Msg, error) {
	m, err := askOnce(ctx, to, q, true)
	if err == nil && (m.Rcode == dns.RcodeFormatError || m.Rcode == dns.RcodeNotImplemented) && m.IsEdns0() == nil {
		m, err = askOnce(ctx, to, q, false)
	}
	if err != nil {
		return nil, fmt.Errorf("ask name server %v: %w", to, err)
	}
	return m, nil
}

func askOnce(ctx context.Context, to netip.AddrPort, q *query, edns bool) (*dns.Msg, error) {
	asked := q.message(edns)
	m, err := exchange(ctx, "udp", to, q, asked)
	if errors.Is(err, errForeign) || err == nil && m.Truncated {
		return exchange(ctx, "tcp", to, q, asked)
	}
	return m, err
}

var errForeign = errors.New("it sends answers to other questions")

// exchange uses a socket of its own, whose port the kernel chooses at random.
func exchange(ctx context.Context, network string, to netip.AddrPort, q *query, asked *dns.Msg) (*dns.Msg, error) {
	wire, err := asked.Pack()
	if err != nil {
		return nil, err
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, to.String())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if network == "tcp" {
		wire = append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))), wire...)
	}
	if _, err := conn.Write(wire); err != nil {
		return nil, err
	}
	if network == "tcp" {
		return readStream(conn, q, asked)
	}
	return readPackets(conn, q, asked)
}

func readStream(conn net.Conn, q *query, asked *dns.Msg) (*dns.Msg, error) {
	wire, err := readMessage(conn)
	if err != nil {
		return nil, err
	}
	m := new(dns.Msg)
	if err := m.Unpack(wire); err != nil {
		return nil, err
	}
	if !q.answeredBy(asked, m) {
		return nil, errForeign
	}
	return m, nil
}

// readMessage reads a message with its length before it.
func readMessage(from io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, err
	}
	wire := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(from, wire)
	return wire, err
}

// readPackets waits for the answer and ignores everything else, which may be forged.
func readPackets(conn net.Conn, q *query, asked *dns.Msg) (*dns.Msg, error) {
	buffer := make([]byte, 4096)
	for range maxForeign {
		n, err := conn.Read(buffer)
		if err != nil {
			return nil, err
		}
		m := new(dns.Msg)
		err = m.Unpack(buffer[:n])
		if q.answeredBy(asked, m) && (err == nil || m.Truncated) {
			return m, nil
		}
	}
	return nil, errForeign
}
