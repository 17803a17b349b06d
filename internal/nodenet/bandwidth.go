package nodenet

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// An endpoint's bandwidth is limited by a token bucket at each end of its link: ours for what it receives, and its own for
// what it sends, where the kernel lets the program wait instead of dropping. A program needs CAP_NET_ADMIN to change the
// one inside, which replicas do not have.

const (
	// burstTime is what may pass at once after a pause, as time at the limit, but at least two packets. Longer bursts
	// would let a program exceed its limit for a while; shorter ones are less exact than the kernel's timers.
	burstTime  = 50 // parts of a second
	leastBurst = 2 * 1600
	// queueTime is how long a packet waits at most, in parts of a second, but at least some packets may wait.
	queueTime  = 10
	leastQueue = 16 * 1600
)

// bucket is the token bucket for a limit in bits per second.
func bucket(link netlink.Link, bits int64) *netlink.Tbf {
	rate := uint64(bits / 8)
	burst := max(rate/burstTime, leastBurst)
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate, Limit: uint32(min(burst+max(rate/queueTime, leastQueue), 1<<31)), Buffer: netlink.Xmittime(rate, uint32(min(burst, 1<<31))),
	}
}

// shape limits both ends of an endpoint's link, or frees them.
func (n *Network) shape(e allocated, ns netns.NsHandle) error {
	outer, err := netlink.LinkByName(n.opts.link(e.Place))
	if err != nil {
		return err
	}
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	inner, err := h.LinkByName(inside)
	if err != nil {
		return err
	}
	return errors.Join(setBucket(&netlink.Handle{}, outer, e.Bandwidth), setBucket(h, inner, e.Bandwidth))
}

// setBucket gives a link the bucket for a limit, or none if it is 0. One that is right keeps its counters.
func setBucket(h *netlink.Handle, link netlink.Link, bits int64) error {
	now, err := bucketOf(h, link)
	if err != nil {
		return err
	}
	if bits == 0 {
		if now == nil {
			return nil
		}
		if err := h.QdiscDel(now); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove the limit of the bandwidth: %w", err)
		}
		return nil
	}
	want := bucket(link, bits)
	if now != nil && now.Rate == want.Rate && now.Limit == want.Limit {
		return nil
	}
	if err := h.QdiscReplace(want); err != nil {
		return fmt.Errorf("limit the bandwidth: %w", err)
	}
	return nil
}

// bucketOf is the bucket of a link, nil if there is none.
func bucketOf(h *netlink.Handle, link netlink.Link) (*netlink.Tbf, error) {
	all, err := retry(func() ([]netlink.Qdisc, error) { return h.QdiscList(link) })
	if err != nil {
		return nil, fmt.Errorf("read the limit of the bandwidth: %w", err)
	}
	for _, q := range all {
		if b, is := q.(*netlink.Tbf); is && b.Parent == netlink.HANDLE_ROOT {
			return b, nil
		}
	}
	return nil, nil
}

// SetBandwidth changes the limit of an endpoint in bits per second, 0 for none. Attach does the same.
func (n *Network) SetBandwidth(uid string, bits int64) error {
	n.uids.Lock(uid)
	defer n.uids.Unlock(uid)
	changed, err := n.store.setBandwidth(uid, bits)
	if err != nil || !changed {
		return err
	}
	e, _ := n.store.get(uid)
	return n.inNamespace(e, func(ns netns.NsHandle) error { return n.shape(e, ns) })
}

func (n *Network) inNamespace(e allocated, do func(netns.NsHandle) error) error {
	ns, err := netns.GetFromPath(n.opts.namespace(e.UID))
	if err != nil {
		return fmt.Errorf("open the network namespace of %s: %w", e.UID, err)
	}
	defer func() { _ = ns.Close() }()
	return do(ns)
}

// Held counts what a limit of the bandwidth has held back in one direction.
type Held struct {
	// Dropped are packets that found the queue full. Delayed is how often the kernel had to wait with packets.
	Dropped, Delayed uint64
}

func heldAt(h *netlink.Handle, link netlink.Link) (held Held, err error) {
	b, err := bucketOf(h, link)
	if err != nil || b == nil || b.Statistics == nil || b.Statistics.Queue == nil {
		return held, err
	}
	return Held{Dropped: uint64(b.Statistics.Queue.Drops), Delayed: uint64(b.Statistics.Queue.Overlimits)}, nil
}

// held adds what the limit of an endpoint has held back.
func (n *Network) held(e allocated, c *Counters, outer netlink.Link) error {
	if e.Bandwidth == 0 {
		return nil
	}
	var err error
	if c.HeldReceived, err = heldAt(&netlink.Handle{}, outer); err != nil {
		return err
	}
	return n.inNamespace(e, func(ns netns.NsHandle) error {
		h, err := netlink.NewHandleAt(ns)
		if err != nil {
			return err
		}
		defer h.Close()
		inner, err := h.LinkByName(inside)
		if err == nil {
			c.HeldSent, err = heldAt(h, inner)
		}
		return err
	})
}
