package nft

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	mdnetlink "github.com/mdlayher/netlink"
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

// Delete removes a table. It is no error if there is none.
func Delete(name string) error {
	c, err := Connect()
	if err != nil {
		return err
	}
	b := newBatch(c, name)
	b.conn.AddTable(b.table) // so that there is one to delete
	b.conn.DelTable(b.table)
	if err := b.conn.Flush(); err != nil {
		return fmt.Errorf("remove table %s: %w", name, err)
	}
	return nil
}

// batch collects the messages of one transaction.
type batch struct {
	conn  *nftables.Conn
	table *nftables.Table
	ids   uint32
}

func newBatch(c *nftables.Conn, table string) *batch {
	return &batch{conn: c, table: &nftables.Table{Name: table, Family: nftables.TableFamilyINet}}
}

// replace writes a table from scratch.
func (b *batch) replace(t *Table) error {
	b.conn.AddTable(b.table) // so that there is one to delete
	b.conn.DelTable(b.table)
	b.conn.AddTable(b.table)
	all := &change{addSets: slices.Clone(t.sets)}
	for _, p := range t.parts {
		all.addSets = append(all.addSets, p.Sets...)
		all.addChains = append(all.addChains, p.Chains...)
	}
	for _, h := range t.elements {
		all.add = append(all.add, h.element)
	}
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
			b.conn.AddRule(&nftables.Rule{Table: b.table, Chain: b.chain(chain), Exprs: rule})
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
	chain := &nftables.Chain{Table: b.table, Name: c.Name}
	if c.Hook != nil {
		accept := nftables.ChainPolicyAccept
		chain.Type, chain.Hooknum, chain.Priority, chain.Policy = c.Hook.Type, c.Hook.Hook, c.Hook.Priority, &accept
	}
	return chain
}

func (b *batch) set(name string) *nftables.Set { return &nftables.Set{Table: b.table, Name: name} }

func (b *batch) addSet(s Set) error {
	b.ids++
	set := &nftables.Set{
		Table: b.table, ID: b.ids, Name: s.Name, KeyType: s.Key, IsMap: s.IsMap, DataType: s.Value,
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
			for _, e := range some {
				encoded = append(encoded, encode(e))
			}
			if err := f(b.set(some[0].Set), encoded); err != nil {
				return fmt.Errorf("describe elements of set %s: %w", some[0].Set, err)
			}
		}
	}
	return nil
}

func encode(e Element) nftables.SetElement {
	element := nftables.SetElement{Key: []byte(e.Key), Val: []byte(e.Value)}
	if e.Goto != "" {
		element.VerdictData = &expr.Verdict{Kind: expr.VerdictGoto, Chain: e.Goto}
	}
	return element
}
