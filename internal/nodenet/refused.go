package nodenet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/nodenet/nft"
)

const (
	// refusedEvery is how often the node looks what egress rules have refused.
	refusedEvery = 5 * time.Second
	// refusedPause is the least time between two events about one endpoint, which names at most refusedNamed places.
	refusedPause = time.Minute
	refusedNamed = 3
)

// refusals tells people what egress rules have refused. Only watchRefused uses it.
type refusals struct {
	counted map[string]uint64          // packets by element
	news    map[string]map[string]bool // places that the next event names, by uid
	told    map[string]time.Time       // the last event, by uid
}

// watchRefused sends events until ctx ends.
func (n *Network) watchRefused(ctx context.Context) {
	ticker := time.NewTicker(refusedEvery)
	defer ticker.Stop()
	r := refusals{counted: map[string]uint64{}, news: map[string]map[string]bool{}, told: map[string]time.Time{}}
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			n.lookRefused(&r, now)
		}
	}
}

// lookRefused sends the events that are due.
func (n *Network) lookRefused(r *refusals, now time.Time) {
	subnets, owners := n.subnets(), map[netip.Addr]string{}
	for uid, e := range n.store.all() {
		if e.Egress == nil {
			continue
		}
		for _, a := range e.addresses(subnets) {
			owners[a] = uid
		}
	}
	if len(owners) == 0 {
		return
	}
	if err := n.readRefused(r, owners); err != nil {
		n.log.Debug("what egress rules have refused is not known", "error", err)
	}
	for uid, places := range r.news {
		if last, told := r.told[uid]; told && now.Sub(last) < refusedPause {
			continue
		}
		r.told[uid] = now
		delete(r.news, uid)
		list := make([]string, 0, len(places))
		for p := range places {
			list = append(list, p)
		}
		n.sendEvent(Event{Warning: true, Reason: "EgressRefused", UID: uid, Message: refusedSentence(list)})
	}
	for uid, at := range r.told {
		if _, there := n.store.get(uid); !there || now.Sub(at) > refusedPause && r.news[uid] == nil {
			delete(r.told, uid)
		}
	}
}

func refusedSentence(places []string) string {
	slices.Sort(places)
	more := ""
	if len(places) > refusedNamed {
		more = fmt.Sprintf(" and %d other places", len(places)-refusedNamed)
		places = places[:refusedNamed]
	}
	return fmt.Sprintf("Its egress rules refused connections to %s%s. If they are meant, allow them in spec.egress.", strings.Join(places, ", "), more)
}

// readRefused adds what was refused since the last time.
func (n *Network) readRefused(r *refusals, owners map[netip.Addr]string) error {
	c, err := nft.Connect()
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: n.opts.table(), Family: nftables.TableFamilyINet}
	counted := map[string]uint64{}
	for _, f := range families {
		elements, err := c.GetSetElements(&nftables.Set{Table: table, Name: setRefused + f.suffix})
		if nft.IsMissing(err) {
			return nil // there are no rules yet, or another program has removed them
		}
		if err != nil {
			return fmt.Errorf("read what egress rules have refused: %w", err)
		}
		for _, e := range elements {
			if len(e.Key) != 2*int(f.size)+8 || e.Counter == nil {
				continue
			}
			key := string(e.Key)
			counted[key] = e.Counter.Packets
			if e.Counter.Packets == r.counted[key] {
				continue
			}
			from, _ := netip.AddrFromSlice(e.Key[:f.size])
			uid := owners[from]
			if uid == "" {
				continue
			}
			if r.news[uid] == nil {
				r.news[uid] = map[string]bool{}
			}
			r.news[uid][refusedPlace(f, e.Key[f.size:])] = true
		}
	}
	r.counted = counted
	return nil
}

// refusedPlace is an address, a protocol and a port in words.
func refusedPlace(f ipFamily, key []byte) string {
	addr, _ := netip.AddrFromSlice(key[:f.size])
	protocol, port := key[f.size], uint16(key[f.size+4])<<8|uint16(key[f.size+5])
	switch protocol {
	case unix.IPPROTO_TCP:
		return netip.AddrPortFrom(addr, port).String() + "/tcp"
	case unix.IPPROTO_UDP:
		return netip.AddrPortFrom(addr, port).String() + "/udp"
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		return addr.String() + " (ping)"
	}
	return fmt.Sprintf("%v (protocol %d)", addr, protocol)
}
