package nodenet

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/nodenet/learned"
	"github.com/cloudless/cloudless/internal/nodenet/nft"
)

// Egress is what an endpoint may connect to outside of the cluster, and whether it may connect to anything inside.
// Endpoints with equal rules share chains:
//
//	egress_*   for what leaves the cluster: accepts what a rule allows, and refuses everything else
//	inside_*   for what stays inside, if that is closed: passes services that a rule names on to in_cluster, where the
//	           namespace counts, and refuses everything else
//
// They see only the first packet of a connection. They find the endpoint by its address, which rules of family bridge
// hold to its link; see spoofing.go. Without those, an endpoint with rules is not attached.
//
// A name is allowed by the addresses that the resolver has learned for it; see package learned. For what leaves the
// cluster, the address counts where the packet goes: a service does not lead to an external endpoint that the rules do not
// allow.
type Egress struct {
	// Closed closes the inside of the cluster, too.
	Closed bool         `json:"closed,omitempty"`
	Rules  []EgressRule `json:"rules,omitempty"`

	named sync.Once
	name  string
}

// EgressRule allows one place.
type EgressRule struct {
	// Prefix is a range of addresses, or Name the pattern of a DNS name.
	Prefix netip.Prefix `json:"prefix,omitzero"`
	Name   string       `json:"name,omitempty"`
	// Protocol is "tcp", "udp" or empty for any. Ports are all if there are none.
	Protocol string   `json:"protocol,omitempty"`
	Ports    []uint16 `json:"ports,omitempty"`
}

// ID is the number by which the addresses of the rule's name are learned.
func (r EgressRule) ID() uint32 {
	return learned.RuleID(fmt.Sprintf("%s %s %v", r.Name, r.Protocol, r.Ports))
}

// ErrUnguarded means that a kernel cannot hold endpoints to egress rules.
var ErrUnguarded = errors.New("this node cannot enforce egress rules: " + Unguarded + " Use a kernel with them, or place the workload on other nodes")

const (
	chainRefuse        = "refuse_egress"
	chainAllowedInside = "allowed_inside"
	chainTranslate     = "to_service"

	setEgress       = "egress"        // address of a replica here : verdict, for what leaves the cluster
	setEgressInside = "egress_inside" // the same for what stays inside
	setEgressAsked  = "egress_asked"  // the same for services before translation
	setRefused      = "refused"       // address of a replica here . asked address . protocol . port, with a counter

	// refusedFor is how long a refused place is remembered, and maxRefused how many.
	refusedFor = 10 * time.Minute
	maxRefused = 16384
)

func egressSets() []nft.Set {
	concat := nftables.MustConcatSetType
	sets := learned.Sets()
	for _, f := range families {
		addr := f.addressType()
		sets = append(sets,
			nft.Set{Name: setEgress + f.suffix, Key: addr, IsMap: true, Value: nftables.TypeVerdict},
			nft.Set{Name: setEgressInside + f.suffix, Key: addr, IsMap: true, Value: nftables.TypeVerdict},
			nft.Set{Name: setEgressAsked + f.suffix, Key: addr, IsMap: true, Value: nftables.TypeVerdict},
			nft.Set{
				Name: setRefused + f.suffix, Key: concat(addr, addr, nftables.TypeInetProto, nftables.TypeInetService),
				Dynamic: true, Timeout: refusedFor, Size: maxRefused,
			},
		)
	}
	return sets
}

// key names the chains for these rules.
func (e *Egress) key() string {
	e.named.Do(func() { // rules are not changed, only replaced
		text, _ := json.Marshal(e) // no value in it can fail
		e.name = fmt.Sprintf("%x", sha256.Sum256(text))[:16]
	})
	return e.name
}

func (e *Egress) equal(o *Egress) bool {
	return (e == nil) == (o == nil) && (e == nil || e.key() == o.key())
}

// lookUpSender goes to the chain that a map has for the sender.
func lookUpSender(from []expr.Any, set string) [][]expr.Any {
	var rules [][]expr.Any
	for _, f := range families {
		rules = append(rules, f.lookUpSender(from, set))
	}
	return rules
}

func (f ipFamily) lookUpSender(from []expr.Any, set string) []expr.Any {
	return join(from, f.is(), []expr.Any{f.loadSource(1), lookUpInto(set+f.suffix, 1, 0)})
}

// elements lead from the addresses of an endpoint to its chains.
func (e *Egress) elements(addresses []netip.Addr) (list []nft.Element) {
	for _, a := range addresses {
		suffix, address := familyOfAddr(a).suffix, string(a.AsSlice())
		list = append(list, nft.Element{Set: setEgress + suffix, Key: address, Goto: "egress_" + e.key()})
		if e.Closed {
			list = append(list, nft.Element{Set: setEgressInside + suffix, Key: address, Goto: "inside_" + e.key()},
				nft.Element{Set: setEgressAsked + suffix, Key: address, Goto: "asked_" + e.key()})
		}
	}
	return list
}

// part has the chains of the rules.
func (e *Egress) part() *nft.Part {
	outside := nft.Chain{Name: "egress_" + e.key()}
	inside, asked := nft.Chain{Name: "inside_" + e.key()}, nft.Chain{Name: "asked_" + e.key()}
	for _, r := range e.Rules {
		if r.Name == "" {
			outside.Rules = append(outside.Rules, r.toPrefix()...)
			continue
		}
		outside.Rules = append(outside.Rules, r.toName(accept)...)
		inside.Rules = append(inside.Rules, r.toName(goTo(chainAllowedInside))...)
		asked.Rules = append(asked.Rules, r.toName(goTo(chainTranslate))...)
	}
	outside.Rules = append(outside.Rules, goTo(dropEgress.chain()))
	inside.Rules = append(inside.Rules, goTo(dropEgress.chain()))
	p := &nft.Part{Chains: []nft.Chain{outside}}
	if e.Closed {
		p.Chains = append(p.Chains, inside, asked)
	}
	return p
}

func (r EgressRule) toPrefix() [][]expr.Any {
	var rules [][]expr.Any
	for _, port := range r.ports() {
		rules = append(rules, join(familyOfAddr(r.Prefix.Addr()).to(r.Prefix), port, accept))
	}
	return rules
}

// toName matches addresses that were learned for the rule, and lets them count for longer.
func (r EgressRule) toName(then []expr.Any) [][]expr.Any {
	var rules [][]expr.Any
	for _, f := range families {
		set := learned.SetName(f == ipv4)
		for _, port := range r.ports() {
			rules = append(rules, join(f.is(), port, []expr.Any{
				f.loadSource(1),
				&expr.Immediate{Register: register1 + f.words(), Data: binaryutil.NativeEndian.PutUint32(r.ID())},
				f.loadDestination(register1 + f.words() + 1),
				lookUp(set, 1),
				&expr.Dynset{SrcRegKey: 1, SetName: set, Operation: unix.NFT_DYNSET_OP_UPDATE},
			}, then))
		}
	}
	return rules
}

// ports are the conditions of which one must hold.
func (r EgressRule) ports() (alternatives [][]expr.Any) {
	for _, p := range []struct {
		name   string
		number byte
	}{{"tcp", unix.IPPROTO_TCP}, {"udp", unix.IPPROTO_UDP}} {
		if r.Protocol != "" && r.Protocol != p.name {
			continue
		}
		for _, port := range r.Ports {
			alternatives = append(alternatives, portIs(p.number, port))
		}
		if len(r.Ports) == 0 && r.Protocol != "" {
			alternatives = append(alternatives, protocolIs(p.number))
		}
	}
	if len(alternatives) == 0 {
		return [][]expr.Any{nil}
	}
	return alternatives
}

// refuseEgress notes what an endpoint tried, for people, and answers at once. Noting fails when the set is full.
func refuseEgress() nft.Chain {
	c := nft.Chain{Name: chainRefuse}
	note := func(f ipFamily, protocol []expr.Any, port expr.Any) []expr.Any {
		at := register1 + 2*f.words()
		return join(f.is(), protocol, []expr.Any{
			f.loadSource(1), f.loadDestination(register1 + f.words()), &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: at}, port,
			&expr.Dynset{SrcRegKey: 1, SetName: setRefused + f.suffix, Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{&expr.Counter{}}},
		})
	}
	for _, f := range families {
		at := register1 + 2*f.words() + 1
		for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			c.Rules = append(c.Rules, note(f, protocolIs(protocol), &expr.Payload{DestRegister: at, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}))
		}
		other := []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
		}
		c.Rules = append(c.Rules, note(f, other, &expr.Immediate{Register: at, Data: []byte{0, 0}}))
	}
	c.Rules = append(c.Rules, refuseWith(unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED)...)
	return c
}

// SetEgress changes what an endpoint may connect to; nil is everything that is open to all. Open connections that are no
// longer allowed are cut. Attach does the same. SetEgress reports whether the endpoint had other rules before.
func (n *Network) SetEgress(uid string, to *Egress) (changed bool, err error) {
	n.uids.Lock(uid)
	defer n.uids.Unlock(uid)
	before, changed, err := n.store.setEgress(uid, to)
	if err != nil || !changed {
		return false, err
	}
	if err := n.apply(); err != nil {
		return true, err
	}
	return true, errors.Join(n.checkEgress(to), n.cutFlows(uid, before, to))
}

// Table is the name of the table with the rules.
func (n *Network) Table() string { return n.opts.table() }

// checkEgress reports whether the node can enforce rules.
func (n *Network) checkEgress(e *Egress) error {
	if e != nil && !n.rules.guarded {
		return ErrUnguarded
	}
	return nil
}

// Client is an endpoint as the resolver needs to know it.
type Client struct {
	Namespace string
	// Addresses are all those of the endpoint.
	Addresses []netip.Addr
	// Rules is the name of the rules of Names that count for it; empty if none do.
	Rules string
}

// Names are the rules that allow names, by the name of the rules.
type Names map[string][]EgressRule

// Clients are this node's endpoints by their addresses, and the names that they may connect to.
func (n *Network) Clients() (map[netip.Addr]Client, Names) {
	subnets, all, names := n.subnets(), map[netip.Addr]Client{}, Names{}
	for _, e := range n.store.all() {
		c := Client{Namespace: e.Namespace, Addresses: e.addresses(subnets)}
		if e.Egress != nil {
			key := e.Egress.key()
			if _, known := names[key]; !known {
				names[key] = slices.DeleteFunc(slices.Clone(e.Egress.Rules), func(r EgressRule) bool { return r.Name == "" })
			}
			if len(names[key]) > 0 {
				c.Rules = key
			} else {
				delete(names, key)
			}
		}
		for _, address := range c.Addresses {
			all[address] = c
		}
	}
	return all, names
}
