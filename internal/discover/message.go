package discover

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// Found is what a server says of itself.
type Found struct {
	// Address is where it is reached, host:port.
	Address string
	// Cluster is the fingerprint of its cluster's authority; while the authority is replaced, those of both, with a comma
	// between.
	Cluster string
}

// Trusts reports whether the server says that its cluster trusts an authority.
func (f Found) Trusts(authority string) bool {
	return slices.Contains(strings.Split(f.Cluster, ","), authority)
}

const (
	service = "_cloudless._tcp.local."
	// ttl of the records in seconds, as RFC 6762 recommends for records that name a host.
	ttl = 120
	// legacyTTL is for clients that do not take part in multicast DNS and would not notice changes.
	legacyTTL = 10
	// mostAnswers bounds what is read of one message.
	mostAnswers = 64
)

// query asks for servers.
func query(id uint16) ([]byte, error) {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: id})
	name, err := dnsmessage.NewName(service)
	if err != nil {
		return nil, err
	}
	if err := b.StartQuestions(); err != nil {
		return nil, err
	}
	if err := b.Question(dnsmessage.Question{Name: name, Type: dnsmessage.TypePTR, Class: dnsmessage.ClassINET}); err != nil {
		return nil, err
	}
	return b.Finish()
}

// asks reports whether the message is a question for servers, and its id.
func asks(message []byte) (id uint16, ok bool) {
	var p dnsmessage.Parser
	header, err := p.Start(message)
	if err != nil || header.Response || header.OpCode != 0 {
		return 0, false
	}
	for range mostAnswers {
		q, err := p.Question()
		if err != nil {
			return 0, false
		}
		// The highest bit of the class only says how to send the answer.
		if strings.EqualFold(q.Name.String(), service) && q.Class&0x7fff == dnsmessage.ClassINET &&
			(q.Type == dnsmessage.TypePTR || q.Type == dnsmessage.TypeALL) {
			return header.ID, true
		}
	}
	return 0, false
}

// answer contains a server's address. A legacy answer repeats the question and its id, by which the asker recognizes
// it.
func answer(id uint16, legacy bool, name string, f Found) ([]byte, error) {
	r, err := newRecords(name, f)
	if err != nil {
		return nil, err
	}
	r.ttl = ttl
	header := dnsmessage.Header{Response: true, Authoritative: true}
	if legacy {
		header.ID, r.ttl = id, legacyTTL
	}
	b := dnsmessage.NewBuilder(nil, header)
	b.EnableCompression()
	if legacy {
		if err := b.StartQuestions(); err != nil {
			return nil, err
		}
		if err := b.Question(dnsmessage.Question{Name: r.service, Type: dnsmessage.TypePTR, Class: dnsmessage.ClassINET}); err != nil {
			return nil, err
		}
	}
	if err := b.StartAnswers(); err != nil {
		return nil, err
	}
	if err := b.PTRResource(r.header(r.service), dnsmessage.PTRResource{PTR: r.instance}); err != nil {
		return nil, err
	}
	if err := b.StartAdditionals(); err != nil {
		return nil, err
	}
	if err := r.details(&b, f); err != nil {
		return nil, err
	}
	return b.Finish()
}

// records are the names and values of an answer.
type records struct {
	service, instance, host dnsmessage.Name
	port                    uint16
	ip                      netip.Addr // unset if the server is known by a name
	ttl                     uint32
}

func newRecords(name string, f Found) (r records, err error) {
	host, port, err := net.SplitHostPort(f.Address)
	if err != nil {
		return r, err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return r, fmt.Errorf("port of %s: %w", f.Address, err)
	}
	r.port = uint16(number)
	target := strings.TrimSuffix(host, ".") + "."
	if r.ip, err = netip.ParseAddr(host); err == nil {
		target = name + ".local."
	}
	for text, into := range map[string]*dnsmessage.Name{
		service: &r.service, name + "." + service: &r.instance, target: &r.host,
	} {
		if *into, err = dnsmessage.NewName(text); err != nil {
			return r, fmt.Errorf("name %q: %w", text, err)
		}
	}
	return r, nil
}

func (r *records) header(name dnsmessage.Name) dnsmessage.ResourceHeader {
	return dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: r.ttl}
}

func (r *records) details(b *dnsmessage.Builder, f Found) error {
	err := errors.Join(
		b.SRVResource(r.header(r.instance), dnsmessage.SRVResource{Port: r.port, Target: r.host}),
		b.TXTResource(r.header(r.instance), dnsmessage.TXTResource{TXT: []string{"addr=" + f.Address, "ca=" + f.Cluster}}),
	)
	switch {
	case err != nil || !r.ip.IsValid():
		return err
	case r.ip.Is4():
		return b.AResource(r.header(r.host), dnsmessage.AResource{A: r.ip.As4()})
	}
	return b.AAAAResource(r.header(r.host), dnsmessage.AAAAResource{AAAA: r.ip.As16()})
}

// heard are the servers that a message names. Incomplete ones are left out.
func heard(message []byte) []Found {
	var p dnsmessage.Parser
	header, err := p.Start(message)
	if err != nil || !header.Response || p.SkipAllQuestions() != nil {
		return nil
	}
	var all []Found
	collect := func(h dnsmessage.ResourceHeader) error {
		if h.Type != dnsmessage.TypeTXT || !strings.HasSuffix(strings.ToLower(h.Name.String()), "."+service) {
			return errSkip
		}
		text, err := p.TXTResource()
		if f, ok := described(text.TXT); err == nil && ok {
			all = append(all, f)
		}
		return err
	}
	for _, section := range []struct {
		next func() (dnsmessage.ResourceHeader, error)
		skip func() error
	}{
		{p.AnswerHeader, p.SkipAnswer}, {p.AuthorityHeader, p.SkipAuthority}, {p.AdditionalHeader, p.SkipAdditional},
	} {
		for range mostAnswers {
			h, err := section.next()
			if errors.Is(err, dnsmessage.ErrSectionDone) {
				break
			}
			if err != nil {
				return all
			}
			if err := collect(h); errors.Is(err, errSkip) {
				err = section.skip()
				if err != nil {
					return all
				}
			} else if err != nil {
				return all
			}
		}
	}
	return all
}

var errSkip = errors.New("of no interest")

// described is the server that the texts of a record describe.
func described(texts []string) (f Found, ok bool) {
	for _, text := range texts {
		key, value, _ := strings.Cut(text, "=")
		switch key {
		case "addr":
			f.Address = value
		case "ca":
			f.Cluster = value
		}
	}
	host, port, err := net.SplitHostPort(f.Address)
	return f, err == nil && host != "" && port != "" && f.Cluster != "" && printable(f.Address) && printable(f.Cluster)
}

// printable makes untrusted text safe for a terminal.
func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}
