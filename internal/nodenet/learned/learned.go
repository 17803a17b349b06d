// Package learned is how addresses that the resolver has looked up for a replica get into the rules of its node: through
// one set for each family in the node's table, to which the network process adds and which rules of package nodenet read.
//
// What it guarantees:
// - An address counts for one replica and one rule only.
// - It counts for its TTL and at least for Least, and for Used after each connection.
//
// It must not know of DNS, or of what the rules allow besides.
package learned

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"

	"github.com/cloudless/cloudless/internal/nodenet/nft"
)

const (
	// Least is how long an address counts that nobody connects to, even if its TTL is shorter: many programs keep an
	// address for longer than they should.
	Least = 10 * time.Minute
	// Used is how long it counts after the last connection to it: some programs look a name up only when they start.
	Used = time.Hour
	// most limits the addresses of all replicas of a node: all of them are part of the transaction when the table is
	// written again.
	most = 1 << 17
)

// SetName is the name of the set for a family of addresses.
func SetName(is4 bool) string {
	if is4 {
		return "learned4"
	}
	return "learned6"
}

// Sets are those of the table. Their keys are the address of a replica, the number of a rule, and the address learned.
func Sets() []nft.Set {
	set := func(is4 bool, address nftables.SetDatatype) nft.Set {
		return nft.Set{
			Name: SetName(is4), Key: nftables.MustConcatSetType(address, nftables.TypeMark, address),
			Dynamic: true, Timeout: Used, Size: most, Shared: true,
		}
	}
	return []nft.Set{set(true, nftables.TypeIPAddr), set(false, nftables.TypeIP6Addr)}
}

// RuleID is the number of a rule, which follows from its text: a process that starts again, and another process, know it
// by the same number.
func RuleID(text string) uint32 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	sum := h.Sum(nil)
	return binary.BigEndian.Uint32(sum) ^ binary.BigEndian.Uint32(sum[4:])
}

// Address is an address that a replica may connect to, because a name that a rule allows leads there. Both addresses are
// of one family.
type Address struct {
	Replica, Address netip.Addr
	Rule             uint32
	TTL              time.Duration
	// Again says that it was learned before.
	Again bool
}

// Lasts is how long an address with that TTL counts at least.
func Lasts(ttl time.Duration) time.Duration { return max(Least, min(ttl, Used)) }

// Learner adds to the sets of a node's table. It is safe for concurrent use.
type Learner struct{ adder *nft.Adder }

// New is for the table of that name.
func New(table string) *Learner { return &Learner{nft.NewAdder(table)} }

// Learn returns when the rules know the addresses.
func (l *Learner) Learn(list []Address) error {
	add := make([]nft.Added, 0, len(list))
	for _, a := range list {
		if a.Replica.Is4() != a.Address.Is4() {
			continue // it could not connect
		}
		add = append(add, nft.Added{
			Set: SetName(a.Address.Is4()), Key: string(a.Replica.AsSlice()) + Number(a.Rule) + string(a.Address.AsSlice()),
			Timeout: Lasts(a.TTL), Present: a.Again,
		})
	}
	if len(add) == 0 {
		return nil
	}
	return l.adder.Add(add)
}

// Number is a rule's number as part of a key.
func Number(rule uint32) string { return string(binaryutil.NativeEndian.PutUint32(rule)) }

// Close ends the connection to the kernel. What was learned stays.
func (l *Learner) Close() { l.adder.Close() }
