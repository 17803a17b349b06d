package nodenet

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/cloudless/cloudless/internal/nodenet/nft"
)

// ruleset is what was written into our table.
type ruleset struct {
	table *nft.Table
	// guarded is whether the kernel has rules for bridges.
	guarded bool

	mu         sync.Mutex        // held while parts are described and written
	parts      map[string]bool   // names of those that apply has written
	opened     map[string]opened // interfaces that forward only because of us, by the suffix of a family
	namespaces map[string]uint32
	remote     map[netip.Addr]string // namespaces of other nodes' replicas
	egress     map[string]*nft.Part  // what describe has made of egress rules the last time, by their key
}

func newRuleset(table string, guarded bool) *ruleset {
	return &ruleset{
		table: nft.New(table, tableSets(guarded)), guarded: guarded, parts: map[string]bool{},
		namespaces: map[string]uint32{}, remote: map[netip.Addr]string{},
	}
}

func (r *ruleset) setOpened(links map[string]opened) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opened = links
}

// written reports whether this process has written the table, which an earlier one may have left.
func (r *ruleset) written() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.parts[basePart]
}

// numberOf gives each name a number of its own, for as long as this process lives.
func numberOf(numbers map[string]uint32, name string) uint32 {
	id, known := numbers[name]
	if !known {
		id = uint32(len(numbers)) + 1
		numbers[name] = id
	}
	return id
}

// apply writes the rules as they should be now. If that fails, the next check tries again.
func (n *Network) apply() error {
	n.rules.mu.Lock()
	defer n.rules.mu.Unlock()
	if !n.subnets().valid() {
		return ErrNotConfigured
	}
	return n.write(n.pending())
}

// pending is what the node itself wants in the table, and nil for the parts that it wants no more. The caller holds
// rules.mu and writes it.
func (n *Network) pending() map[string]*nft.Part {
	parts := n.describe()
	for name := range n.rules.parts {
		if parts[name] == nil {
			parts[name] = nil
			delete(n.rules.parts, name)
		}
	}
	for name, p := range parts {
		if p != nil {
			n.rules.parts[name] = true
		}
	}
	return parts
}

const basePart = "base"

// describe is what the node itself wants in the table; services and other nodes' replicas come on top. The caller holds rules.mu.
func (n *Network) describe() map[string]*nft.Part {
	subnets := n.subnets()
	everything := base{bridge: n.opts.bridge(), mesh: n.opts.Mesh, subnets: subnets, ranges: n.store.ranges(), opened: n.rules.opened}
	if n.rules.guarded {
		everything.links = n.opts.linkPrefix()
	}
	parts := map[string]*nft.Part{basePart: everything.part()}
	egress := map[string]*nft.Part{}
	for uid, e := range n.store.all() {
		link := ""
		if n.rules.guarded {
			link = n.opts.link(e.Place)
		}
		part := endpointPart(link, e.addresses(subnets), e.Namespace, numberOf(n.rules.namespaces, e.Namespace))
		if e.Egress != nil {
			part.Elements = append(part.Elements, e.Egress.elements(e.addresses(subnets))...)
			key := e.Egress.key()
			if egress[key] == nil {
				if egress[key] = n.rules.egress[key]; egress[key] == nil {
					egress[key] = e.Egress.part()
				}
				parts["egress/"+key] = egress[key]
			}
		}
		parts["endpoint/"+uid] = part
	}
	n.rules.egress = egress
	for name, id := range n.rules.namespaces {
		parts["namespace/"+name] = namespacePart(name, id)
	}
	for _, p := range n.published() {
		parts["publish/"+p.key.chain()] = p.part()
	}
	return parts
}

// RulesRestored is the reason of an event that another program has changed the rules. What was learned may be lost.
const RulesRestored = "RulesRestored"

// verifyRules writes the rules again if another program has changed them.
func (n *Network) verifyRules() error {
	tampered, err := n.rules.table.Restore()
	if err != nil {
		return fmt.Errorf("write the rules of table %s: %w", n.opts.table(), err)
	}
	if tampered {
		n.sendEvent(Event{Warning: true, Reason: RulesRestored, Message: fmt.Sprintf(
			"Somebody else changed or removed the rules of table inet %s; they were restored.", n.opts.table())})
	}
	return nil
}
