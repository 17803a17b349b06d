package nodenet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/nodenet/nft"
	"github.com/cloudless/cloudless/internal/resolvconf"
	"github.com/cloudless/cloudless/internal/sleep"
)

// The kernel's message groups about changes that may need a repair.
const rulesGroup = 7 // NFNLGRP_NFTABLES

var linkGroups = []uint32{
	unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF,
}

// minCheckPause is the least time between two checks, so that a machine with many changes is not
// checked all the time. The first check is at once.
const minCheckPause = 100 * time.Millisecond

// retryPause is the time between two retries.
const retryPause = 2 * time.Second

// Run maintains the network until ctx ends, and leaves it in place. It sends events for
// operators.
func (n *Network) Run(ctx context.Context, notice func(Event)) error {
	n.mu.Lock()
	n.notice = notice
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.notice = nil
		n.mu.Unlock()
	}()
	watching, err := n.watch(ctx)
	if err != nil {
		return fmt.Errorf("node network: %w", err)
	}
	defer watching()
	n.adopt()
	if !n.rules.guarded {
		n.sendEvent(Event{Warning: true, Reason: "AddressesUnguarded", Message: Unguarded})
	}
	for ctx.Err() == nil {
		again := n.look()
		if sleep.For(ctx, minCheckPause) != nil {
			break
		}
		n.await(ctx, again)
	}
	return nil
}

// adopt takes the ports of endpoints that were attached before.
func (n *Network) adopt() {
	for uid, e := range n.store.all() {
		if !n.attached(uid) {
			continue
		}
		if err := n.claims.take(e.endpoint(), true); err != nil {
			n.sendEvent(Event{Warning: true, Reason: "PortTaken", Message: err.Error(), UID: uid})
		}
	}
}

// await returns when something may have changed, or when it is time to retry.
func (n *Network) await(ctx context.Context, again bool) {
	var timer <-chan time.Time
	if again {
		t := time.NewTimer(retryPause)
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-ctx.Done():
	case <-n.kick:
	case <-timer:
	}
}

// look repairs what is wrong, and reports whether to retry.
func (n *Network) look() (again bool) {
	if !n.subnets().valid() {
		return false
	}
	err := n.mend()
	sentence := ""
	if err != nil {
		sentence = fmt.Sprintf("The node's network cannot be set up: %v.", err)
	}
	n.setProblem("setup", "NetworkFailed", sentence)
	n.checkObstacles()
	held, published := n.claims.holdAgain(), n.publishAgain()
	return !held || !published || err != nil
}

// checkObstacles finds out whether foreign rules are in the way, if they may have changed since
// the last time.
func (n *Network) checkObstacles() {
	if s := n.subnets(); n.readdressed.Swap(false) || s != n.around.subnets {
		n.around.subnets = s
		if collision, err := n.collision(); err == nil {
			n.setProblem("subnet", "SubnetCollision", collision)
		}
	}
	now, err := nft.Generation()
	if err != nil || n.around.looked && now == n.around.generation {
		return
	}
	if obstacles, err := obstaclesOf([]bridgeNet{n.bridgeNet()}); err == nil {
		n.around.looked, n.around.generation = true, now
		n.setProblem("obstacle", "Obstructed", sentences(obstacles))
	}
}

// around is what was there at the last check.
type around struct {
	unisolated bool // the ports of the bridge are not isolated
	subnets    Subnets
	looked     bool
	generation uint32
}

func (n *Network) mend() error {
	n.intact.Store(false)
	if err := n.ensureBase(); err != nil {
		return err
	}
	return errors.Join(n.mendLinks(), n.sweep())
}

// mendLinks recreates links that another program has removed or disconnected.
func (n *Network) mendLinks() error {
	bridge, err := netlink.LinkByName(n.opts.bridge())
	if err != nil {
		return err
	}
	links, err := retry(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	isolate := isolatePorts()
	changed := n.around.unisolated == isolate
	n.around.unisolated = !isolate
	good := map[string]bool{}
	for _, l := range links {
		a := l.Attrs()
		if changed && strings.HasPrefix(a.Name, n.opts.linkPrefix()) {
			if err := netlink.LinkSetIsolated(l, isolate); err != nil && !errors.Is(err, unix.ENODEV) {
				return fmt.Errorf("isolate link %s: %w", a.Name, err)
			}
		}
		good[a.Name] = a.MasterIndex == bridge.Attrs().Index && a.RawFlags&unix.IFF_UP != 0
	}
	var errs []error
	for uid := range n.store.all() {
		errs = append(errs, n.mendEndpoint(uid, good))
	}
	return errors.Join(errs...)
}

func (n *Network) mendEndpoint(uid string, good map[string]bool) error {
	n.uids.Lock(uid)
	defer n.uids.Unlock(uid)
	e, found := n.store.get(uid)
	if !found || !n.attached(uid) || good[n.opts.link(e.Place)] {
		return nil
	}
	if _, err := netlink.LinkByName(n.opts.link(e.Place)); err == nil && goodNow(n.opts.link(e.Place), n.opts.bridge()) {
		return nil // attached since the list was made
	}
	if err := n.ensureEndpoint(e); err != nil {
		return fmt.Errorf("mend the link of %s: %w", uid, err)
	}
	n.sendEvent(Event{Warning: true, Reason: "LinkRestored", Message: "Somebody else changed or removed the replica's link to the bridge; it was restored.", UID: uid})
	return nil
}

func goodNow(name, bridge string) bool {
	master, err := netlink.LinkByName(bridge)
	if err != nil {
		return false
	}
	link, err := netlink.LinkByName(name)
	return err == nil && link.Attrs().MasterIndex == master.Attrs().Index && link.Attrs().RawFlags&unix.IFF_UP != 0
}

// sweep removes links, namespaces and files without an owner.
func (n *Network) sweep() error {
	known := func(uid string) bool { _, found := n.store.get(uid); return found }
	var errs []error
	for _, dir := range []string{n.opts.namespaceDir(), n.opts.fileDir()} {
		entries, _ := os.ReadDir(dir)
		for _, entry := range entries {
			uid := entry.Name()
			if !validUID.MatchString(uid) || known(uid) {
				continue
			}
			errs = append(errs, n.sweepOne(uid, known))
		}
	}
	return errors.Join(errs...)
}

func (n *Network) sweepOne(uid string, known func(string) bool) error {
	n.uids.Lock(uid)
	defer n.uids.Unlock(uid)
	if known(uid) {
		return nil
	}
	return errors.Join(removeNamespace(n.opts.namespace(uid)), os.RemoveAll(n.filesOf(uid)))
}

// watch makes the kernel and the file system trigger checks. stop ends that.
func (n *Network) watch(ctx context.Context) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{}, 4)
	running := 0
	stop = func() {
		cancel()
		for range running {
			<-ended
		}
	}
	start := func(f func()) {
		running++
		go func() { f(); ended <- struct{}{} }()
	}
	rules, err := subscribe(unix.NETLINK_NETFILTER, rulesGroup)
	if err != nil {
		stop()
		return nil, fmt.Errorf("watch rules: %w", err)
	}
	start(func() { n.listen(ctx, rules, n.rules.table.Listener().Message) })
	links, err := subscribe(unix.NETLINK_ROUTE, linkGroups...)
	if err != nil {
		stop()
		return nil, fmt.Errorf("watch links: %w", err)
	}
	start(func() {
		n.listen(ctx, links, func(m mdnetlink.Message) bool {
			if m.Header.Type == unix.RTM_NEWADDR || m.Header.Type == unix.RTM_DELADDR {
				n.readdressed.Store(true)
			}
			return true
		})
	})
	start(func() { n.watchRefused(ctx) })
	start(func() {
		if err := resolvconf.Watch(ctx, resolvconf.Paths, n.poke); err != nil {
			n.log.Warn("changes of the machine's name servers are seen late", "error", err)
		}
	})
	return stop, nil
}

func subscribe(family int, groups ...uint32) (*mdnetlink.Conn, error) {
	c, err := mdnetlink.Dial(family, nil)
	if err != nil {
		return nil, err
	}
	_ = c.SetReadBuffer(1 << 20)
	for _, g := range groups {
		if err := c.JoinGroup(g); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// listen triggers a check for every relevant message. Lost messages may have been relevant.
func (n *Network) listen(ctx context.Context, c *mdnetlink.Conn, matters func(mdnetlink.Message) bool) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	for {
		messages, err := c.Receive()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			n.readdressed.Store(true)
			n.poke()
			if sleep.For(ctx, minCheckPause) != nil {
				return
			}
			continue
		}
		for _, m := range messages {
			if matters(m) {
				n.poke()
			}
		}
	}
}
