package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

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
	return generation(c)
}

func generation(c *mdnetlink.Conn) (uint32, error) {
	answers, err := c.Execute(mdnetlink.Message{
		Header: mdnetlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: mdnetlink.Request},
		Data:   []byte{byte(nftables.TableFamilyINet), 0, 0, 0},
	})
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

// Listener tells the transactions of other programs from those of a table's owner, by the kernel's messages about them.
type Listener struct {
	table *Table
	// touched is the generation of the last message about the table. Messages contain only 16 bits of it.
	touched uint16
	any     bool
	// shared and other are the generations of the last messages about elements of Shared sets and about anything else.
	shared, other generationMark
}

// generationMark is a generation as messages contain it.
type generationMark struct {
	low uint16
	set bool
}

func (m generationMark) is(generation uint32) bool { return m.set && m.low == uint16(generation) }

// Listener is for one reader of the kernel's messages.
func (t *Table) Listener() *Listener {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.moved == nil {
		t.moved = make(chan struct{})
	}
	return &Listener{table: t}
}

// Message reports whether a message ends a transaction of another program. One that only adds elements to Shared sets
// does not count.
func (l *Listener) Message(m mdnetlink.Message) (foreign bool) {
	if generation, ok := GenerationOf(m); ok {
		foreign = l.table.announced(generation, l.any && l.touched == uint16(generation))
		return foreign && (!l.shared.is(generation) || l.other.is(generation))
	}
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < 4 {
		return false
	}
	mark := generationMark{binary.BigEndian.Uint16(m.Data[2:]), true}
	if l.aboutShared(m) {
		l.shared = mark
		return false
	}
	l.other = mark
	if family := nftables.TableFamily(m.Data[0]); family != nftables.TableFamilyINet && family != nftables.TableFamilyBridge {
		return false
	}
	generation := binary.BigEndian.Uint16(m.Data[2:])
	if l.any && l.touched == generation {
		return false
	}
	// In the messages about tables, chains, rules, sets and elements, the name of the table has the same number.
	if string(bytes.TrimRight(attributes(m.Data[4:])[unix.NFTA_TABLE_NAME], "\x00")) == l.table.name {
		l.touched, l.any = generation, true
	}
	return false
}

// aboutShared reports whether a message is about elements of a Shared set.
func (l *Listener) aboutShared(m mdnetlink.Message) bool {
	if kind := m.Header.Type & 0xff; kind != unix.NFT_MSG_NEWSETELEM && kind != unix.NFT_MSG_DELSETELEM {
		return false
	}
	attrs := attributes(m.Data[4:])
	name := func(of uint16) string { return string(bytes.TrimRight(attrs[of], "\x00")) }
	return name(unix.NFTA_SET_ELEM_LIST_TABLE) == l.table.name && l.table.shared[name(unix.NFTA_SET_ELEM_LIST_SET)]
}
