package nodenet

import (
	"cmp"
	"errors"
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
	by     func(ipFamily) expr.Any // loads the address of the replica, nil if it is not known
}

var (
	bySource      = func(f ipFamily) expr.Any { return f.loadSource(1) }
	byDestination = func(f ipFamily) expr.Any { return f.loadDestination(1) }

	dropNamespace   = dropRule{1, "namespace", "It belongs to another namespace, and no service there is exported to it.", bySource}
	dropHost        = dropRule{2, "host", "Replicas cannot use the machine's own services.", bySource}
	dropLinkLocal   = dropRule{3, "link-local", "Link-local addresses, such as those of metadata services, are closed.", bySource}
	dropNoPath      = dropRule{4, "no-path", "There is no encrypted path to that address now.", bySource}
	dropUnpublished = dropRule{5, "unpublished", "The port is not published.", byDestination}
	dropSpoofed     = dropRule{6, "spoofed", "A replica used an address that is not its own.", nil}

	dropRules = []dropRule{dropNamespace, dropHost, dropLinkLocal, dropNoPath, dropUnpublished, dropSpoofed}
)

func (r dropRule) chain() string { return "drop_" + strings.ReplaceAll(r.name, "-", "_") }

// dropChains count and drop. Counting is a rule of its own: it fails when the set is full.
func dropChains() []nft.Chain {
	var chains []nft.Chain
	for _, r := range dropRules {
		c := nft.Chain{Name: r.chain()}
		for _, f := range families {
			address := expr.Any(&expr.Immediate{Register: 1, Data: make([]byte, f.size)})
			if r.by != nil {
				address = r.by(f)
			}
			c.Rules = append(c.Rules, join(f.is(), []expr.Any{
				address,
				&expr.Immediate{Register: register1 + f.words(), Data: binaryutil.NativeEndian.PutUint32(r.id)},
				&expr.Dynset{SrcRegKey: 1, SetName: setDrops + f.suffix, Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{&expr.Counter{}}},
			}))
		}
		c.Rules = append(c.Rules, drop)
		chains = append(chains, c)
	}
	return chains
}

// drops adds up the kernel's counters, which end with the table and stay when an address gets a new owner.
type drops struct {
	mu     sync.Mutex
	last   map[dropKey]expr.Counter
	totals map[dropTotal]*Drop
}

type dropKey struct {
	addr netip.Addr
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
	owners := map[netip.Addr]allocated{}
	for _, e := range n.store.all() {
		for _, addr := range e.addresses(n.subnets()) {
			owners[addr] = e
		}
	}
	table := &nftables.Table{Name: n.opts.table(), Family: nftables.TableFamilyINet}
	for _, f := range families {
		elements, err := c.GetSetElements(&nftables.Set{Table: table, Name: setDrops + f.suffix})
		if errors.Is(err, unix.ENOENT) {
			return nil // nothing was ever dropped
		}
		if err != nil {
			return fmt.Errorf("read the counters of dropped packets: %w", err)
		}
		for _, e := range elements {
			addr, ok := netip.AddrFromSlice(e.Key[:min(int(f.size), len(e.Key))])
			if ok && len(e.Key) == int(f.size)+4 && e.Counter != nil {
				key := dropKey{addr, binaryutil.NativeEndian.Uint32(e.Key[f.size:])}
				n.drops.add(key, *e.Counter, owners[addr])
			}
		}
	}
	return nil
}

func (d *drops) add(key dropKey, now expr.Counter, owner allocated) {
	last := d.last[key]
	if now.Packets < last.Packets {
		last = expr.Counter{} // the table was written again
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
