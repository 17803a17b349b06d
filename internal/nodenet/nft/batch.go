package nft

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// batchBuffer holds a transaction of some thousand rules; with the machine's defaults, large ones fail.
const batchBuffer = 32 << 20

// Connect opens a connection to nftables with buffers for large transactions.
func Connect(options ...nftables.ConnOption) (*nftables.Conn, error) {
	return nftables.New(append(options, nftables.WithSockOptions(func(c *mdnetlink.Conn) error {
		// More than the machine's limit if we may, as much as allowed otherwise.
		_ = c.SetWriteBuffer(batchBuffer)
		_ = c.SetReadBuffer(batchBuffer)
		return nil
	}))...)
}

// Delete removes a table, and its part for bridges. It is no error if there is none.
func Delete(name string) error {
	c, err := Connect()
	if err != nil {
		return err
	}
	for _, bridge := range []bool{false, true} {
		table := tableOf(name, bridge)
		c.AddTable(table) // so that there is one to delete
		c.DelTable(table)
		if err := c.Flush(); err != nil && !(bridge && withoutBridges(err)) {
			return fmt.Errorf("remove table %s: %w", name, err)
		}
	}
	return nil
}

// HasBridges reports whether the kernel has rules for what passes a bridge. It tries one in a transaction that leaves
// nothing behind.
func HasBridges(probe string) (bool, error) {
	c, err := Connect()
	if err != nil {
		return false, err
	}
	table := tableOf(probe, true)
	c.AddTable(table)
	c.AddChain(&nftables.Chain{
		Table: table, Name: "probe", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
	})
	c.DelTable(table)
	if err := c.Flush(); withoutBridges(err) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("try rules for bridges: %w", err)
	}
	return true, nil
}

// withoutBridges reports whether an error says that the kernel has no rules for bridges.
func withoutBridges(err error) bool {
	return slices.ContainsFunc([]error{unix.EAFNOSUPPORT, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.ENOENT},
		func(one error) bool { return errors.Is(err, one) })
}

// tableOf is a table of family inet, or the one of family bridge with the same name.
func tableOf(name string, bridge bool) *nftables.Table {
	if bridge {
		return &nftables.Table{Name: name, Family: nftables.TableFamilyBridge}
	}
	return &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
}

// batch collects the messages of one transaction.
type batch struct {
	conn    *nftables.Conn
	name    string
	bridged map[string]bool // names of the sets for bridges
	ids     uint32
}

func newBatch(c *nftables.Conn, t *Table) *batch {
	return &batch{conn: c, name: t.name, bridged: t.bridged}
}

// replace writes a table from scratch, with the elements that its Shared sets had.
func (b *batch) replace(t *Table, kept []Element) error {
	for _, bridge := range []bool{false, true} {
		if bridge && len(b.bridged) == 0 {
			break
		}
		table := tableOf(b.name, bridge)
		b.conn.AddTable(table) // so that there is one to delete
		b.conn.DelTable(table)
		b.conn.AddTable(table)
	}
	all := &change{addSets: slices.Clone(t.sets)}
	for _, p := range t.parts {
		all.addSets = append(all.addSets, p.Sets...)
		all.addChains = append(all.addChains, p.Chains...)
	}
	for _, h := range t.elements {
		all.add = append(all.add, h.element)
	}
	all.add = append(all.add, kept...)
	return b.change(all)
}

// change writes a difference, in an order in which everything exists before something else refers to it.
func (b *batch) change(c *change) error {
	for _, s := range c.addSets {
		if err := b.addSet(s); err != nil {
			return err
		}
	}
	for _, chain := range c.addChains {
		b.conn.AddChain(b.chain(chain))
	}
	for _, chain := range c.flushChains {
		b.conn.FlushChain(b.chain(chain))
	}
	for _, chain := range slices.Concat(c.addChains, c.flushChains) {
		for _, rule := range chain.Rules {
			b.conn.AddRule(&nftables.Rule{Table: tableOf(b.name, chain.Bridge), Chain: b.chain(chain), Exprs: rule})
		}
	}
	gone := map[string]bool{}
	for _, s := range c.removeSets {
		gone[s.Name] = true
	}
	remove := slices.DeleteFunc(c.remove, func(e Element) bool { return gone[e.Set] }) // they go with their sets
	if err := b.each(remove, b.conn.SetDeleteElements); err != nil {
		return err
	}
	if err := b.each(c.add, b.conn.SetAddElements); err != nil {
		return err
	}
	for _, chain := range c.removeChains {
		b.conn.FlushChain(b.chain(chain))
	}
	for _, chain := range c.removeChains {
		b.conn.DelChain(b.chain(chain))
	}
	for _, s := range c.removeSets {
		b.conn.DelSet(b.set(s.Name))
	}
	return nil
}

func (b *batch) chain(c Chain) *nftables.Chain {
	chain := &nftables.Chain{Table: tableOf(b.name, c.Bridge), Name: c.Name}
	if c.Hook != nil {
		accept := nftables.ChainPolicyAccept
		chain.Type, chain.Hooknum, chain.Priority, chain.Policy = c.Hook.Type, c.Hook.Hook, c.Hook.Priority, &accept
	}
	return chain
}

func (b *batch) set(name string) *nftables.Set {
	return &nftables.Set{Table: tableOf(b.name, b.bridged[name]), Name: name}
}

func (b *batch) addSet(s Set) error {
	b.ids++
	set := &nftables.Set{
		Table: tableOf(b.name, s.Bridge), ID: b.ids, Name: s.Name, KeyType: s.Key, IsMap: s.IsMap, DataType: s.Value,
		Dynamic: s.Dynamic, HasTimeout: s.Timeout > 0, Timeout: s.Timeout, Size: s.Size,
		Concatenation: len(nftables.ConcatSetTypeElements(s.Key)) > 1,
	}
	if err := b.conn.AddSet(set, nil); err != nil {
		return fmt.Errorf("describe set %s: %w", s.Name, err)
	}
	return nil
}

// elementsPerMessage keeps a list below the 64 KiB of a netlink attribute.
const elementsPerMessage = 400

// each passes elements to f, in lists of one set that fit into a message.
func (b *batch) each(elements []Element, f func(*nftables.Set, []nftables.SetElement) error) error {
	for _, list := range bySet(elements) {
		for some := range slices.Chunk(list, elementsPerMessage) {
			var encoded []nftables.SetElement
			set := b.set(some[0].Set)
			for _, e := range some {
				encoded = append(encoded, encode(e))
				set.HasTimeout = set.HasTimeout || e.Timeout > 0
			}
			if err := f(set, encoded); err != nil {
				return fmt.Errorf("describe elements of set %s: %w", some[0].Set, err)
			}
		}
	}
	return nil
}

func encode(e Element) nftables.SetElement {
	element := nftables.SetElement{Key: []byte(e.Key), Val: []byte(e.Value), Timeout: e.Timeout}
	if e.Goto != "" {
		element.VerdictData = &expr.Verdict{Kind: expr.VerdictGoto, Chain: e.Goto}
	}
	return element
}
