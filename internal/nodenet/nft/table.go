package nft

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Set is a set or a map of the table. Its elements come from parts, or from rules if it is dynamic.
type Set struct {
	Name string
	Key  nftables.SetDatatype
	// Value is the type of a map's values.
	Value nftables.SetDatatype
	IsMap bool
	// Dynamic sets get their elements from rules.
	Dynamic bool
	// Timeout is how long an element of a dynamic set lives, 0 for ever.
	Timeout time.Duration
	// Size limits a dynamic set.
	Size uint32
	// Bridge sets are for Bridge chains. Only fixed sets of a table can be such.
	Bridge bool
	// Shared sets get elements from other programs as well, which Add to them. A table that is written again keeps these
	// elements. Only fixed sets of a table can be such.
	Shared bool
}

// Chain is a chain with its rules.
type Chain struct {
	Name string
	// Hook is nil for a chain that other rules lead to.
	Hook  *Hook
	Rules [][]expr.Any
	// Bridge chains see what passes a bridge, with the port where it came in.
	Bridge bool
}

// Hook is where the kernel calls a chain.
type Hook struct {
	Type     nftables.ChainType
	Hook     *nftables.ChainHook
	Priority *nftables.ChainPriority
}

// Element belongs to a set. Goto is the chain of a verdict map's element, Value that of another map's. Timeout is how long
// an element of a Shared set stays, 0 for as long as the set says.
type Element struct {
	Set, Key, Value, Goto string
	Timeout               time.Duration
}

// Part is a piece of the table that changes as a whole. Parts may share elements: an element stays until the last part
// that has it is gone. If they disagree about its value, the part that comes first by name wins.
type Part struct {
	Sets     []Set
	Chains   []Chain
	Elements []Element
}

// Table is the owner's view of one table of family inet, and of the one of family bridge with the same name, which has
// the Bridge sets and chains. Both change in one transaction. It is safe for concurrent use.
type Table struct {
	name    string
	sets    []Set
	bridged map[string]bool // names of the Bridge sets; without any, there is no table of family bridge
	shared  map[string]bool // names of the Shared sets

	mu       sync.Mutex
	parts    map[string]Part
	elements map[elementKey]*held
	// clean means that the kernel has the parts, unless another program changed them after generation at.
	clean bool
	// Generations from the first to the last of these were made here, or touched only other tables. The last is 0 if
	// that is not known.
	from, at uint32
	tampered bool // another program has changed the table
	replaced int
	open     connections
	// moved is closed when a Listener has heard of another generation; nil without a Listener.
	moved chan struct{}
}

type elementKey struct{ set, key string }

// held is an element as the first part by name has it, and as other parts have it.
type held struct {
	claim
	others []claim
}

type claim struct {
	part    string
	element Element
}

// New describes a table with its fixed sets and without parts. The kernel gets it with the first Update or Restore.
func New(name string, sets []Set) *Table {
	bridged, shared := map[string]bool{}, map[string]bool{}
	for _, s := range sets {
		if s.Bridge {
			bridged[s.Name] = true
		}
		if s.Shared {
			shared[s.Name] = true
		}
	}
	return &Table{name: name, sets: sets, bridged: bridged, shared: shared, parts: map[string]Part{}, elements: map[elementKey]*held{}}
}

// Update sets parts, or removes those that are nil. The table has them even if the kernel refuses: the next Restore
// tries again.
func (t *Table) Update(parts map[string]*Part) error {
	t.catchUp()
	t.mu.Lock()
	defer t.mu.Unlock()
	change := t.merge(parts)
	if t.clean && change.empty() {
		return nil
	}
	if intact, err := t.intact(); err == nil && intact && t.commit(t.at, func(b *batch) error { return b.change(change) }) == nil {
		return nil
	}
	return t.replace()
}

// catchUpTime is how long a change waits for the Listener at most.
const catchUpTime = 100 * time.Millisecond

// catchUp waits until the Listener has heard of transactions that have just been made. Otherwise one that added to a
// Shared set would look like a change by another program, and the whole table would be written again.
func (t *Table) catchUp() {
	timeout := time.NewTimer(catchUpTime)
	defer timeout.Stop()
	for {
		t.mu.Lock()
		now, err := t.generation()
		moved := t.moved
		behind := moved != nil && err == nil && t.clean && !t.tampered && t.at != 0 && t.at < now
		t.mu.Unlock()
		if !behind {
			return
		}
		select {
		case <-moved:
		case <-timeout.C:
			return
		}
	}
}

// Describe is Update without writing: the next Restore writes the whole table.
func (t *Table) Describe(parts map[string]*Part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.merge(parts)
	t.clean = false
}

// announced takes note that the machine's rules have a new generation, and whether the transaction touched this table.
// It reports whether another program made it.
func (t *Table) announced(generation uint32, touched bool) (foreign bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.moved != nil {
		close(t.moved)
		t.moved = make(chan struct{})
	}
	switch {
	case t.at != 0 && t.from <= generation && generation <= t.at:
		return false
	case generation == t.at+1 && !touched:
		t.at = generation
	case t.at != 0 && generation > t.at && touched:
		t.tampered = true
	}
	return true
}

// Restore writes the table if the kernel's may not be as described. tampered means that another program has certainly
// changed it.
func (t *Table) Restore() (tampered bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	intact, err := t.intact()
	if err != nil || intact {
		return false, err
	}
	tampered = t.tampered
	return tampered, t.replace()
}

// intact reports whether the table is certainly unchanged since it was written.
func (t *Table) intact() (bool, error) {
	if !t.clean || t.tampered {
		return false, nil
	}
	now, err := t.generation()
	return now == t.at, err
}

// connections stay open: the kernel lets a program that closes one wait until it has cleaned up after earlier
// transactions, which takes longer than a change.
type connections struct {
	rules *nftables.Conn
	query *mdnetlink.Conn
}

func (t *Table) transact(write func(*batch) error) (err error) {
	if t.open.rules == nil {
		if t.open.rules, err = Connect(nftables.AsLasting()); err != nil {
			return err
		}
	}
	b := newBatch(t.open.rules, t)
	if err := write(b); err != nil {
		return err
	}
	return b.conn.Flush()
}

func (t *Table) generation() (_ uint32, err error) {
	if t.open.query == nil {
		if t.open.query, err = mdnetlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
			return 0, fmt.Errorf("ask for the generation of rules: %w", err)
		}
	}
	now, err := generation(t.open.query)
	if err != nil {
		t.disconnect()
	}
	return now, err
}

// Close ends connections to the kernel and leaves the table as it is.
func (t *Table) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.disconnect()
}

func (t *Table) disconnect() {
	if t.open.rules != nil {
		_ = t.open.rules.CloseLasting()
	}
	if t.open.query != nil {
		_ = t.open.query.Close()
	}
	t.open = connections{}
}

// replace writes the whole table.
func (t *Table) replace() error {
	t.clean = false
	now, err := t.generation()
	if err != nil {
		return err
	}
	t.replaced++
	kept, err := t.sharedElements()
	if err != nil {
		return err
	}
	err = t.commit(now, func(b *batch) error { return b.replace(t, kept) })
	if err != nil && len(kept) > 0 { // the rules matter more
		err = t.commit(now, func(b *batch) error { return b.replace(t, nil) })
	}
	return err
}

// Replaced is how often the whole table was written. That empties dynamic sets and sets counters to zero.
func (t *Table) Replaced() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.replaced
}

// commit writes in one transaction. Its generation is known to be ours only if it follows the one before.
func (t *Table) commit(before uint32, write func(*batch) error) error {
	if err := t.transact(write); err != nil {
		t.disconnect() // answers may be left
		return err
	}
	t.clean, t.tampered = true, false
	after, err := t.generation()
	switch {
	case err != nil || after != before+1:
		t.at = 0
	case t.at == before:
		t.at = after
	default:
		t.from, t.at = after, after
	}
	return err
}

// change is the difference between two descriptions.
type change struct {
	addSets, removeSets     []Set
	addChains, removeChains []Chain
	flushChains             []Chain // those that get new rules
	add, remove             []Element
}

func (c *change) empty() bool {
	return len(c.addSets)+len(c.removeSets)+len(c.addChains)+len(c.removeChains)+len(c.flushChains)+len(c.add)+len(c.remove) == 0
}

// merge takes the parts over and returns what that changes.
func (t *Table) merge(parts map[string]*Part) *change {
	c := &change{}
	before := map[elementKey]*Element{}
	for name, p := range parts {
		old := t.parts[name]
		t.drop(name, old.Elements, before)
		if p == nil {
			delete(t.parts, name)
			p = &Part{}
		} else {
			t.parts[name] = *p
		}
		c.chains(old.Chains, p.Chains)
		c.sets(old.Sets, p.Sets)
	}
	for name, p := range parts {
		if p != nil {
			t.hold(name, p.Elements, before)
		}
	}
	c.elements(before, t.elements)
	return c
}

// drop removes the claims of a part to elements; before gets their first state.
func (t *Table) drop(part string, elements []Element, before map[elementKey]*Element) {
	for _, e := range elements {
		key := elementKey{e.Set, e.Key}
		t.note(key, before)
		h := t.elements[key]
		if h == nil {
			continue // the part has it twice
		}
		if h.part != part {
			h.others = slices.DeleteFunc(h.others, func(c claim) bool { return c.part == part })
			continue
		}
		if len(h.others) == 0 {
			delete(t.elements, key)
			continue
		}
		h.claim = slices.MinFunc(h.others, func(a, b claim) int { return cmp.Compare(a.part, b.part) })
		h.others = slices.DeleteFunc(h.others, func(c claim) bool { return c.part == h.part })
	}
}

// hold adds the claims of a part to elements. A part that has an element twice means the later one.
func (t *Table) hold(part string, elements []Element, before map[elementKey]*Element) {
	for _, e := range elements {
		key := elementKey{e.Set, e.Key}
		t.note(key, before)
		h, c := t.elements[key], claim{part, e}
		switch {
		case h == nil:
			t.elements[key] = &held{claim: c}
		case part == h.part:
			h.element = e
		case part < h.part:
			h.claim, h.others = c, append(h.others, h.claim)
		default:
			h.others = append(slices.DeleteFunc(h.others, func(o claim) bool { return o.part == part }), c)
		}
	}
}

func (t *Table) note(key elementKey, before map[elementKey]*Element) {
	if _, noted := before[key]; noted {
		return
	}
	before[key] = nil
	if h := t.elements[key]; h != nil {
		e := h.element
		before[key] = &e
	}
}

func (c *change) elements(before map[elementKey]*Element, now map[elementKey]*held) {
	for key, old := range before {
		h := now[key]
		if old != nil && h != nil && *old == h.element {
			continue
		}
		if old != nil {
			c.remove = append(c.remove, *old)
		}
		if h != nil {
			c.add = append(c.add, h.element)
		}
	}
}

func (c *change) chains(old, now []Chain) {
	for _, o := range old {
		if !slices.ContainsFunc(now, func(n Chain) bool { return n.Name == o.Name }) {
			c.removeChains = append(c.removeChains, o)
		}
	}
	for _, n := range now {
		i := slices.IndexFunc(old, func(o Chain) bool { return n.Name == o.Name })
		switch {
		case i < 0:
			c.addChains = append(c.addChains, n)
		case !reflect.DeepEqual(old[i].Rules, n.Rules):
			c.flushChains = append(c.flushChains, n)
		}
	}
}

// sets finds the sets to add and to remove. It compares only names: a set that changes gets a new name.
func (c *change) sets(old, now []Set) {
	for _, o := range old {
		if !slices.ContainsFunc(now, func(n Set) bool { return n.Name == o.Name }) {
			c.removeSets = append(c.removeSets, o)
		}
	}
	for _, n := range now {
		if !slices.ContainsFunc(old, func(o Set) bool { return n.Name == o.Name }) {
			c.addSets = append(c.addSets, n)
		}
	}
}

// bySet sorts elements into lists of one set each.
func bySet(elements []Element) [][]Element {
	slices.SortFunc(elements, func(a, b Element) int { return cmp.Or(cmp.Compare(a.Set, b.Set), cmp.Compare(a.Key, b.Key)) })
	var lists [][]Element
	for start := 0; start < len(elements); {
		end := start
		for end < len(elements) && elements[end].Set == elements[start].Set {
			end++
		}
		lists = append(lists, elements[start:end])
		start = end
	}
	return lists
}
