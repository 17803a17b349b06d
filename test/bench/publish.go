package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

const (
	publishRounds  = 9
	publishRound   = 2000 // connections of each kind in a round
	publishWorkers = 4
	publishPort    = 9000 // in the replica
)

// measurePublish connects from another machine, which is a network namespace behind its own
// link: through the published port of this one, and directly to the replica's address.
func measurePublish(ctx context.Context, l *lab) (_ result, err error) {
	c, err := l.newStage(ctx, "publish")
	if err != nil {
		return result{}, err
	}
	defer c.close()
	replica, published, err := c.listen(ctx)
	if err != nil {
		return result{}, err
	}
	far, err := newFarMachine(replica)
	if err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, far.close()) }()
	through := netip.AddrPortFrom(far.here, published)
	direct := netip.AddrPortFrom(replica, publishPort)
	var viaPort, straight sample
	for n := range publishRounds + 1 {
		a, err := far.connect(ctx, through)
		if err != nil {
			return result{}, err
		}
		b, err := far.connect(ctx, direct)
		if err != nil {
			return result{}, err
		}
		if n > 0 { // the first round warms up
			viaPort, straight = append(viaPort, a), append(straight, b)
		}
	}
	return result{
		value: viaPort.median(), floor: straight.median(),
		notes: []string{viaPort.spread("through the published port"), straight.spread("to the replica's address")},
	}, nil
}

// listen runs a replica that accepts connections, and returns its address and
// its published port.
func (c *stage) listen(ctx context.Context) (netip.Addr, uint16, error) {
	port, err := freePort()
	if err != nil {
		return netip.Addr{}, 0, err
	}
	w := &v1.Workload{
		Metadata: &v1.Metadata{Name: "accept"},
		Spec: &v1.WorkloadSpec{
			Image: c.image, Replicas: proto.Int32(1), Args: []string{fmt.Sprintf("[::]:%d", publishPort)},
			Ports: []*v1.Port{{Name: "accept", Port: publishPort, Publish: int32(port)}},
		},
	}
	if _, err := startThis(ctx, c.api, w); err != nil {
		return netip.Addr{}, 0, err
	}
	replicas, err := c.api.Workloads().ListReplicas(ctx, &v1.ListReplicasRequest{Workload: "accept"})
	if err != nil {
		return netip.Addr{}, 0, err
	}
	for _, text := range replicas.GetItems()[0].GetStatus().GetAddresses() {
		if address, err := netip.ParseAddr(text); err == nil && address.Is4() {
			return address, uint16(port), nil
		}
	}
	return netip.Addr{}, 0, errors.New("the replica has no IPv4 address")
}

// farMachine is a network namespace that is linked to this machine and routes
// the replicas' network through it.
type farMachine struct {
	space netns.NsHandle
	link  netlink.Link
	here  netip.Addr // of this machine, as the other one knows it
}

// The link's addresses are from the range that is reserved for benchmarks.
var (
	linkHere  = netip.MustParsePrefix("198.18.255.1/30")
	linkThere = netip.MustParsePrefix("198.18.255.2/30")
)

func newFarMachine(replica netip.Addr) (_ *farMachine, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		return nil, err
	}
	defer home.Close()
	space, err := netns.New() // and moves this thread there
	if err != nil {
		return nil, err
	}
	if err := netns.Set(home); err != nil {
		return nil, errors.Join(err, space.Close())
	}
	f := &farMachine{space: space, here: linkHere.Addr()}
	if err := f.connectTo(replica); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

func (f *farMachine) connectTo(replica netip.Addr) error {
	names := netlink.NewLinkAttrs()
	names.Name = "clbench0"
	pair := &netlink.Veth{LinkAttrs: names, PeerName: "clbench1", PeerNamespace: netlink.NsFd(f.space)}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("link another machine: %w", err)
	}
	f.link = pair
	if err := bringUp(nil, pair.Name, linkHere); err != nil {
		return err
	}
	there, err := netlink.NewHandleAt(f.space)
	if err != nil {
		return err
	}
	defer there.Close()
	if err := bringUp(there, pair.PeerName, linkThere); err != nil {
		return err
	}
	subnet, err := replica.Prefix(24)
	if err != nil {
		return err
	}
	return there.RouteAdd(&netlink.Route{Dst: ipNet(subnet), Gw: linkHere.Addr().AsSlice()})
}

func (f *farMachine) close() error {
	if f.link != nil {
		if err := netlink.LinkDel(f.link); err != nil {
			return errors.Join(err, f.space.Close())
		}
	}
	return f.space.Close()
}

// connect returns how many connections a second can be made.
func (f *farMachine) connect(ctx context.Context, to netip.AddrPort) (float64, error) {
	errs := make([]error, publishWorkers)
	var workers sync.WaitGroup
	began := time.Now()
	for w := range publishWorkers {
		workers.Go(func() { errs[w] = f.connectSome(ctx, to, publishRound/publishWorkers) })
	}
	workers.Wait()
	return publishRound / time.Since(began).Seconds(), errors.Join(errs...)
}

// connectSome works on a thread of its own, which ends in the far namespace.
func (f *farMachine) connectSome(ctx context.Context, to netip.AddrPort, n int) error {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	if err := netns.Set(f.space); err != nil {
		return err
	}
	for range n {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := connectOnce(to); err != nil {
			return fmt.Errorf("connect to %v: %w", to, err)
		}
	}
	return nil
}

// connectOnce makes a connection and resets it, so that it leaves no port in TIME_WAIT.
func connectOnce(to netip.AddrPort) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	err = unix.Connect(socket, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	for errors.Is(err, syscall.EINTR) {
		err = unix.Connect(socket, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	}
	if errors.Is(err, syscall.EISCONN) {
		err = nil
	}
	if err == nil {
		err = unix.SetsockoptLinger(socket, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	return errors.Join(err, unix.Close(socket))
}
