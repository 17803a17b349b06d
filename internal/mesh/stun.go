package mesh

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/pion/stun/v3"
)

// stunClient learns from servers under which address they see this node.
type stunClient struct {
	changed func()

	mu      sync.Mutex
	servers []netip.AddrPort
	pending map[netip.AddrPort][stun.TransactionIDSize]byte
	// answers are our own address, as each server sees it.
	answers map[netip.AddrPort]netip.AddrPort
}

func newSTUNClient(changed func()) *stunClient {
	return &stunClient{
		changed: changed, pending: map[netip.AddrPort][stun.TransactionIDSize]byte{}, answers: map[netip.AddrPort]netip.AddrPort{},
	}
}

// set replaces the servers that are asked, and reports whether they are others than before.
func (c *stunClient) set(servers []netip.AddrPort) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	same := slices.Equal(c.servers, servers)
	c.servers = slices.Clone(servers)
	for s := range c.answers {
		if !slices.Contains(servers, s) {
			delete(c.answers, s)
		}
	}
	return !same
}

// forget drops all answers, also those that are under way: this node has lost an address, perhaps the one that
// servers saw.
func (c *stunClient) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.pending)
	clear(c.answers)
}

// requests are the questions to send now.
func (c *stunClient) requests() map[netip.AddrPort][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[netip.AddrPort][]byte{}
	for _, s := range c.servers {
		message, err := stun.Build(stun.TransactionID, stun.BindingRequest)
		if err != nil {
			continue
		}
		c.pending[s] = message.TransactionID
		all[s] = message.Raw
	}
	return all
}

// received handles an answer to a question of ours. Others are ignored.
func (c *stunClient) received(datagram []byte, from netip.AddrPort) {
	if !stun.IsMessage(datagram) {
		return
	}
	message := &stun.Message{Raw: datagram}
	if message.Decode() != nil || message.Type != stun.BindingSuccess {
		return
	}
	var mapped stun.XORMappedAddress
	if mapped.GetFrom(message) != nil {
		return
	}
	addr, ok := netip.AddrFromSlice(mapped.IP)
	if !ok {
		return
	}
	seen := netip.AddrPortFrom(addr.Unmap(), uint16(mapped.Port))
	c.mu.Lock()
	asked := c.pending[from] == message.TransactionID && message.TransactionID != [stun.TransactionIDSize]byte{}
	changed := asked && c.answers[from] != seen
	if asked {
		delete(c.pending, from)
		c.answers[from] = seen
	}
	c.mu.Unlock()
	if changed {
		c.changed()
	}
}

// seen are our addresses, as servers see them.
func (c *stunClient) seen() (list []netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.servers {
		if a, ok := c.answers[s]; ok && !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	return list
}
