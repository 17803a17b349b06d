package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/google/nftables"
	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Generation counts the transactions of the machine's rules.
func Generation() (uint32, error) {
	c, err := mdnetlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of rules: %w", err)
	}
	defer func() { _ = c.Close() }()
	answers, err := c.Execute(request(unix.NFT_MSG_GETGEN, 0))
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of rules: %w", err)
	}
	for _, a := range answers {
		if id, ok := GenerationOf(a); ok {
			return id, nil
		}
	}
	return 0, errors.New("the kernel does not tell the generation of its rules")
}

// GenerationOf is the generation that a message of the kernel announces.
func GenerationOf(m mdnetlink.Message) (uint32, bool) {
	if m.Header.Type != mdnetlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN) || len(m.Data) < 4 {
		return 0, false
	}
	attrs := attributes(m.Data[4:])
	if id := attrs[unix.NFTA_GEN_ID]; len(id) == 4 {
		return binary.BigEndian.Uint32(id), true
	}
	return 0, false
}

// request is a question about nftables. The data of attrs is about a table of family inet.
func request(kind uint16, flags mdnetlink.HeaderFlags, attrs ...mdnetlink.Attribute) mdnetlink.Message {
	data, err := mdnetlink.MarshalAttributes(attrs)
	if err != nil {
		panic(fmt.Sprintf("attributes of message %d: %v", kind, err)) // they are constants and names
	}
	return mdnetlink.Message{
		Header: mdnetlink.Header{Type: mdnetlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: mdnetlink.Request | flags},
		Data:   append([]byte{byte(nftables.TableFamilyINet), 0, 0, 0}, data...),
	}
}

// attributes reads a list without nested ones.
func attributes(data []byte) map[uint16][]byte {
	found := map[uint16][]byte{}
	attrs, err := mdnetlink.NewAttributeDecoder(data)
	if err != nil {
		return found
	}
	for attrs.Next() {
		found[attrs.Type()] = attrs.Bytes()
	}
	return found
}

// Attributes that package unix lacks.
const (
	tableHandle = 4
	setHandle   = 16
)

var seed = maphash.MakeSeed()

// fingerprint sums up the kernel's table, 0 if there is none. Handles tell rules apart: the kernel never changes a rule
// without giving it a new handle. Elements of dynamic sets do not count.
func (t *Table) fingerprint() (uint64, error) {
	c, err := mdnetlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, fmt.Errorf("look at table %s: %w", t.name, err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetReadBuffer(batchBuffer)
	p := &printer{conn: c, table: t.name}
	p.hash.SetSeed(seed)
	err = errors.Join(
		p.objects(unix.NFT_MSG_GETTABLE, unix.NFTA_TABLE_NAME, 0, tableHandle, unix.NFTA_TABLE_FLAGS),
		p.objects(unix.NFT_MSG_GETCHAIN, unix.NFTA_CHAIN_TABLE, mdnetlink.Dump,
			unix.NFTA_CHAIN_NAME, unix.NFTA_CHAIN_HANDLE, unix.NFTA_CHAIN_HOOK, unix.NFTA_CHAIN_POLICY, unix.NFTA_CHAIN_TYPE),
		p.objects(unix.NFT_MSG_GETRULE, unix.NFTA_RULE_TABLE, mdnetlink.Dump, unix.NFTA_RULE_CHAIN, unix.NFTA_RULE_HANDLE),
		p.objects(unix.NFT_MSG_GETSET, unix.NFTA_SET_TABLE, mdnetlink.Dump, unix.NFTA_SET_NAME, setHandle),
	)
	for _, s := range t.sets {
		if !s.Dynamic {
			err = errors.Join(err, p.elements(s.Name))
		}
	}
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look at table %s: %w", t.name, err)
	}
	return p.hash.Sum64() + p.sum, nil
}

// printer asks the kernel for the content of a table and sums it up.
type printer struct {
	conn  *mdnetlink.Conn
	table string
	hash  maphash.Hash
	sum   uint64 // of the elements, whose order means nothing
}

func (p *printer) objects(kind, tableAttr uint16, flags mdnetlink.HeaderFlags, matters ...uint16) error {
	name := []byte(p.table + "\x00")
	answers, err := p.conn.Execute(request(kind, flags, mdnetlink.Attribute{Type: tableAttr, Data: name}))
	if err != nil {
		return err
	}
	for _, a := range answers {
		if len(a.Data) < 4 {
			continue
		}
		attrs := attributes(a.Data[4:])
		if !slices.Equal(attrs[tableAttr], name) {
			continue // not every kernel filters
		}
		for _, attr := range matters {
			_, _ = p.hash.Write(attrs[attr]) // it never fails
			_ = p.hash.WriteByte(0)
		}
	}
	return nil
}

func (p *printer) elements(set string) error {
	answers, err := p.conn.Execute(request(unix.NFT_MSG_GETSETELEM, mdnetlink.Dump,
		mdnetlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: []byte(p.table + "\x00")},
		mdnetlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: []byte(set + "\x00")}))
	if err != nil {
		return err
	}
	for _, a := range answers {
		if len(a.Data) < 4 {
			continue
		}
		list, err := mdnetlink.NewAttributeDecoder(attributes(a.Data[4:])[unix.NFTA_SET_ELEM_LIST_ELEMENTS])
		if err != nil {
			return err
		}
		for list.Next() {
			p.sum += maphash.Bytes(seed, append([]byte(set), list.Bytes()...))
		}
	}
	return nil
}
