package nodenet

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/nodenet/nft"
)

// Drop counts the packets that one rule has dropped for one workload.
type Drop struct {
	// Group and Owner are those of the endpoint; both are empty if no endpoint has the packets' address.
	Group, Owner string
	// Rule is the name of the rule, and Reason says in a sentence what it drops.
	Rule, Reason   string
	Packets, Bytes uint64
}

// dropRule is a reason to drop packets.
type dropRule struct {
	id     uint32
	name   string
	reason string
	// by are the addresses that the rule tries in turn: a packet counts for the first that a replica of this node has,
	// and for no workload if there is none. So nobody fills the set of counters with invented addresses.
	by []loadAddress
	// then ends the rule; nil drops.
	then []expr.Any
}

type loadAddress func(f ipFamily, register uint32) expr.Any

var (
	bySource      = []loadAddress{ipFamily.loadSource}
	byDestination = []loadAddress{ipFamily.loadDestination}
	byEither      = []loadAddress{ipFamily.loadSource, ipFamily.loadDestination} // the source may be on another node

	dropNamespace   = dropRule{id: 1, name: "namespace", reason: "It belongs to another namespace, and no service there is exported to it.", by: byEither}
	dropHost        = dropRule{id: 2, name: "host", reason: "The machine's own services are closed to replicas and other nodes.", by: bySource}
	dropLinkLocal   = dropRule{id: 3, name: "link-local", reason: "Link-local addresses, such as those of metadata services, are closed.", by: bySource}
	dropNoPath      = dropRule{id: 4, name: "no-path", reason: "There is no encrypted path to that address now.", by: bySource}
	dropUnpublished = dropRule{id: 5, name: "unpublished", reason: "The port is not published.", by: byDestination}
	dropSpoofed     = dropRule{id: 6, name: "spoofed", reason: "A replica used an address that is not its own."}
	dropTransit     = dropRule{id: 7, name: "transit", reason: "It is neither from a replica of this node nor for one."}

	dropEgress = dropRule{id: 8, name: "egress", reason: "The egress rules of its workload do not allow it.", by: bySource, then: goTo(chainRefuse)}

	dropRules = []dropRule{dropNamespace, dropHost, dropLinkLocal, dropNoPath, dropUnpublished, dropSpoofed, dropTransit, dropEgress}
)

func (r dropRule) chain() string { return "drop_" + strings.ReplaceAll(r.name, "-", "_") }

// dropChains count and drop. Counting fails when the set is full, so the last rule drops without it.
func dropChains() []nft.Chain {
	var chains []nft.Chain
	for _, r := range dropRules {
		c, end := nft.Chain{Name: r.chain()}, r.then
		if end == nil {
			end = drop
		}
		for _, f := range families {
			for _, load := range r.by {
				c.Rules = append(c.Rules, join(f.is(),
					[]expr.Any{load(f, 1), load(f, register1+f.words()), lookUp(setSelf+f.suffix, 1)}, r.count(f), end))
			}
			c.Rules = append(c.Rules, join(f.is(), []expr.Any{&expr.Immediate{Register: 1, Data: make([]byte, f.size)}}, r.count(f), end))
		}
		c.Rules = append(c.Rules, end)
		chains = append(chains, c)
	}
	return chains
}

// count counts a packet for the address in the first register.
func (r dropRule) count(f ipFamily) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: register1 + f.words(), Data: binaryutil.NativeEndian.PutUint32(r.id)},
		&expr.Dynset{SrcRegKey: 1, SetName: setDrops + f.suffix, Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{&expr.Counter{}}},
	}
}

// drops adds up the kernel's counters, which end with the table and stay when an address gets a new owner.
type drops struct {
	mu       sync.Mutex
	last     map[dropKey]expr.Counter
	replaced int // how often the table had been replaced when last was read
	totals   map[dropTotal]*Drop
}

type dropKey struct {
	addr netip.Addr // or
	link string     // of a replica
	rule uint32
}

type dropTotal struct {
	group string
	rule  uint32
}

// Drops returns the packets that were dropped since the network was opened.
func (n *Network) Drops() ([]Drop, error) {
	n.drops.mu.Lock()
	defer n.drops.mu.Unlock()
	if err := n.collectDrops(); err != nil {
		return nil, err
	}
	var list []Drop
	for _, d := range n.drops.totals {
		list = append(list, *d)
	}
	slices.SortFunc(list, func(a, b Drop) int { return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Rule, b.Rule)) })
	return list, nil
}

// countDrops attributes what was dropped so far, before addresses change their owner or counters end.
func (n *Network) countDrops() {
	n.drops.mu.Lock()
	defer n.drops.mu.Unlock()
	if err := n.collectDrops(); err != nil {
		n.log.Debug("dropped packets could not be counted", "error", err)
	}
}

// collectDrops adds what the kernel has counted since the last time.
func (n *Network) collectDrops() error {
	c, err := nft.Connect()
	if err != nil {
		return err
	}
	if replaced := n.rules.table.Replaced(); replaced != n.drops.replaced {
		n.drops.replaced = replaced
		clear(n.drops.last)
	}
	owners, links := map[netip.Addr]allocated{}, map[string]allocated{}
	for _, e := range n.store.all() {
		links[n.opts.link(e.Place)] = e
		for _, addr := range e.addresses(n.subnets()) {
			owners[addr] = e
		}
	}
	table := &nftables.Table{Name: n.opts.table(), Family: nftables.TableFamilyINet}
	for _, f := range families {
		elements, err := c.GetSetElements(&nftables.Set{Table: table, Name: setDrops + f.suffix})
		if nft.IsMissing(err) {
			return nil // there are no rules yet, or another program has removed them
		}
		if err != nil {
			return fmt.Errorf("read the counters of dropped packets: %w", err)
		}
		for _, e := range elements {
			addr, ok := netip.AddrFromSlice(e.Key[:min(int(f.size), len(e.Key))])
			if ok && len(e.Key) == int(f.size)+4 && e.Counter != nil {
				key := dropKey{addr: addr, rule: binaryutil.NativeEndian.Uint32(e.Key[f.size:])}
				n.drops.add(key, *e.Counter, owners[addr])
			}
		}
	}
	if !n.rules.guarded {
		return nil
	}
	onBridge := &nftables.Table{Name: n.opts.table(), Family: nftables.TableFamilyBridge}
	elements, err := c.GetSetElements(&nftables.Set{Table: onBridge, Name: setSpoofed})
	if err != nil && !nft.IsMissing(err) {
		return fmt.Errorf("read the counters of dropped frames: %w", err)
	}
	for _, e := range elements {
		if link := strings.TrimRight(string(e.Key), "\x00"); e.Counter != nil {
			n.drops.add(dropKey{link: link, rule: dropSpoofed.id}, *e.Counter, links[link])
		}
	}
	return nil
}

func (d *drops) add(key dropKey, now expr.Counter, owner allocated) {
	last := d.last[key]
	if now.Packets < last.Packets {
		last = expr.Counter{} // another program emptied the set
	}
	d.last[key] = now
	i := slices.IndexFunc(dropRules, func(r dropRule) bool { return r.id == key.rule })
	if i < 0 || now.Packets == last.Packets {
		return
	}
	total := d.totals[dropTotal{owner.Group, key.rule}]
	if total == nil {
		total = &Drop{Group: owner.Group, Owner: owner.Owner, Rule: dropRules[i].name, Reason: dropRules[i].reason}
		d.totals[dropTotal{owner.Group, key.rule}] = total
	}
	total.Packets += now.Packets - last.Packets
	total.Bytes += now.Bytes - last.Bytes
}
