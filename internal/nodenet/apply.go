package nodenet

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/nftables"
	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// applier makes the rules what they should be, for many changes at a time.
type applier struct {
	wanted atomic.Uint64 // counts the requested changes

	mu      sync.Mutex // held while rules are written
	applied uint64     // the change that the rules include
	print   string     // fingerprint of the rules when they were written
	at      uint32     // the ruleset generation of that fingerprint
}

// apply writes the rules as they should be now.
func (n *Network) apply() error {
	mine := n.rules.wanted.Add(1)
	n.rules.mu.Lock()
	defer n.rules.mu.Unlock()
	if n.rules.applied >= mine {
		return nil
	}
	err := n.putRules()
	if err != nil {
		// There may be no further change for a long time: the next check writes them.
		n.rules.print = ""
		n.poke()
	}
	return err
}

// putRules replaces our table. The caller holds rules.mu.
func (n *Network) putRules() error {
	newest := n.rules.wanted.Load()
	rules := ruleset{table: n.opts.table(), bridge: n.opts.bridge(), subnets: n.subnets(), published: n.published()}
	if !rules.subnets.valid() {
		return ErrNotConfigured
	}
	// The fingerprint is valid only if no other program changed anything in between.
	for range 20 {
		before, err := generation()
		if err != nil {
			return err
		}
		if err := putTable(rules); err != nil {
			return fmt.Errorf("put the rules of table %s: %w", rules.table, err)
		}
		print, err := fingerprint(rules.table)
		if err != nil {
			return err
		}
		after, err := generation()
		if err != nil {
			return err
		}
		n.rules.print, n.rules.at, n.rules.applied = print, after, newest
		if after == before+1 {
			return nil
		}
	}
	n.rules.at = 0 // the next check compares again
	return nil
}

// batchBuffer holds a transaction of some thousand rules.
const batchBuffer = 8 << 20

func connect() (*nftables.Conn, error) {
	return nftables.New(nftables.WithSockOptions(func(c *mdnetlink.Conn) error {
		// More than the machine's limit if we may, as much as allowed otherwise.
		_ = c.SetWriteBuffer(batchBuffer)
		_ = c.SetReadBuffer(batchBuffer)
		return nil
	}))
}

func putTable(r ruleset) error {
	c, err := connect()
	if err != nil {
		return err
	}
	if err := r.put(c); err != nil {
		return err
	}
	return c.Flush()
}

func deleteTable(name string) error {
	c, err := connect()
	if err != nil {
		return err
	}
	t := &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
	c.AddTable(t) // so that there is one to delete
	c.DelTable(t)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove table %s: %w", name, err)
	}
	return nil
}

// verifyRules writes the rules again if another program has changed them.
func (n *Network) verifyRules() error {
	n.rules.mu.Lock()
	defer n.rules.mu.Unlock()
	now, err := generation()
	if err != nil {
		return err
	}
	if n.rules.print != "" && n.rules.at == now {
		return nil
	}
	print, err := fingerprint(n.opts.table())
	if err != nil {
		return err
	}
	if n.rules.print != "" && print == n.rules.print {
		n.rules.at = now
		return nil
	}
	first := n.rules.print == ""
	if err := n.putRules(); err != nil {
		return err
	}
	if !first {
		n.sendEvent(Event{Warning: true, Reason: "RulesRestored", Message: fmt.Sprintf(
			"Somebody else changed or removed the rules of table inet %s; they were restored.", n.opts.table())})
	}
	return nil
}

// generation counts the transactions of the machine's rules.
func generation() (uint32, error) {
	c, err := mdnetlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of rules: %w", err)
	}
	defer func() { _ = c.Close() }()
	answers, err := c.Execute(mdnetlink.Message{
		Header: mdnetlink.Header{
			Type:  mdnetlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN),
			Flags: mdnetlink.Request,
		},
		Data: make([]byte, 4),
	})
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of rules: %w", err)
	}
	for _, a := range answers {
		if id, ok := generationOf(a); ok {
			return id, nil
		}
	}
	return 0, errors.New("the kernel does not tell the generation of its rules")
}

func generationOf(m mdnetlink.Message) (uint32, bool) {
	if m.Header.Type != mdnetlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN) || len(m.Data) < 4 {
		return 0, false
	}
	attrs, err := mdnetlink.NewAttributeDecoder(m.Data[4:])
	if err != nil {
		return 0, false
	}
	attrs.ByteOrder = binary.BigEndian
	for attrs.Next() {
		if attrs.Type() == unix.NFTA_GEN_ID {
			return attrs.Uint32(), true
		}
	}
	return 0, false
}

// fingerprint is what the kernel shows of a table, "none" if it is missing.
func fingerprint(table string) (string, error) {
	c, err := connect()
	if err != nil {
		return "", err
	}
	t, err := c.ListTableOfFamily(table, nftables.TableFamilyINet)
	if err != nil || t == nil {
		return "none", nil
	}
	lines, err := describe(c, t)
	if errors.Is(err, unix.ENOENT) {
		return "changing", nil // something was removed while we read
	}
	if err != nil {
		return "", fmt.Errorf("look at table %s: %w", table, err)
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:]), nil
}

func describe(c *nftables.Conn, t *nftables.Table) ([]string, error) {
	var lines []string
	add := func(kind string, value any) error {
		text, err := json.Marshal(value)
		lines = append(lines, kind+" "+string(text))
		return err
	}
	if err := add("table", t.Flags); err != nil { // a dormant one does nothing
		return nil, err
	}
	chains, err := c.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return nil, err
	}
	for _, chain := range chains {
		if chain.Table.Name != t.Name {
			continue
		}
		if err := add("chain "+chain.Name, []any{chain.Type, chain.Hooknum, chain.Priority, chain.Policy}); err != nil {
			return nil, err
		}
		rules, err := c.GetRules(t, chain)
		if err != nil {
			return nil, err
		}
		for i, r := range rules {
			if err := add(fmt.Sprintf("rule %s %d %d", chain.Name, i, r.Handle), r.Exprs); err != nil {
				return nil, err
			}
		}
	}
	sets, err := c.GetSets(t)
	if err != nil {
		return nil, err
	}
	for _, set := range sets {
		elements, err := c.GetSetElements(set)
		if err != nil {
			return nil, err
		}
		for _, e := range elements {
			// The library does not decode the verdict of an element: it is in the value.
			if err := add("element "+set.Name, [][]byte{e.Key, e.Val}); err != nil {
				return nil, err
			}
		}
	}
	return lines, nil
}

// forgetFlows drops conntrack entries of datagrams that would go to a backend that no
// longer serves: the kernel sends those of a known flow where it sent the earlier ones.
func (n *Network) forgetFlows(ports []Port) {
	stale := staleFlows{serving: map[uint16]map[netip.Addr]bool{}}
	for _, p := range ports {
		if p.Protocol != "udp" {
			continue
		}
		serving := map[netip.Addr]bool{}
		for _, b := range n.backends(p.key()) {
			serving[b.v4], serving[b.v6] = true, true
		}
		stale.serving[p.Host] = serving
	}
	if len(stale.serving) == 0 {
		return
	}
	addrs, err := retry(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		n.log.Debug("flows of a changed port could not be forgotten; they end by themselves", "error", err)
		return
	}
	stale.local = map[netip.Addr]bool{}
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); ok {
			stale.local[p.Addr()] = true
		}
	}
	for _, f := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, f, stale); err != nil {
			n.log.Debug("flows of a changed port could not be forgotten; they end by themselves", "error", err)
		}
	}
}

// staleFlows are flows to ports of this machine that go to a backend that no longer serves.
// Flows to other machines are not ours.
type staleFlows struct {
	serving map[uint16]map[netip.Addr]bool // serving backends, by UDP port
	local   map[netip.Addr]bool            // the machine's addresses
}

// MatchConntrackFlow reports whether a flow is stale.
func (s staleFlows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	serving, published := s.serving[flow.Forward.DstPort]
	if !published || flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	asked, _ := netip.AddrFromSlice(flow.Forward.DstIP)
	if asked = asked.Unmap(); !asked.IsLoopback() && !s.local[asked] {
		return false
	}
	answers, _ := netip.AddrFromSlice(flow.Reverse.SrcIP)
	return !serving[answers.Unmap()]
}
