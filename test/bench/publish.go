package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	publishRounds  = 9
	publishRound   = 2000 // connections of each kind in a round
	publishWorkers = 4
	publishPort    = 9000 // in the replica
)

// measurePublish connects from another machine, which is a network namespace behind its own
// link: through the published port of this one, and through a plain router to the same program.
func measurePublish(ctx context.Context, l *lab) (_ result, err error) {
	c, err := l.newStage(ctx, "publish")
	if err != nil {
		return result{}, err
	}
	defer c.close()
	published, err := c.listen(ctx)
	if err != nil {
		return result{}, err
	}
	far, err := newFarMachine()
	if err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, far.close()) }()
	floor, err := l.newPlainRouter(ctx)
	if err != nil {
		return result{}, err
	}
	defer floor.close()
	through := netip.AddrPortFrom(far.here, published)
	var viaPort, straight sample
	for n := range publishRounds + 1 {
		a, err := far.connect(ctx, through)
		if err != nil {
			return result{}, err
		}
		b, err := floor.far.connect(ctx, plainProgram)
		if err != nil {
			return result{}, err
		}
		if n > 0 { // the first round warms up
			viaPort, straight = append(viaPort, a), append(straight, b)
		}
	}
	return result{
		value: viaPort.median(), floor: straight.median(),
		notes: []string{viaPort.spread("through the published port"), straight.spread("through a plain router")},
	}, nil
}

// listen runs a replica that accepts connections, and returns its published port.
func (c *stage) listen(ctx context.Context) (uint16, error) {
	port, err := freePort()
	if err != nil {
		return 0, err
	}
	_, err = startThis(ctx, c.api, &v1.Workload{
		Metadata: &v1.Metadata{Name: "accept"},
		Spec: &v1.WorkloadSpec{
			Image: c.image, Replicas: proto.Int32(1), Args: []string{fmt.Sprintf("[::]:%d", publishPort)},
			Ports: []*v1.Port{{Name: "accept", Port: publishPort, Publish: int32(port)}},
		},
	})
	return uint16(port), err
}

// plainRouter is the same path without a cloud: a machine, a router that tracks connections, and behind its bridge the
// same program.
type plainRouter struct {
	far    *farMachine
	spaces []string
	stop   func()
}

var plainProgram = netip.AddrPortFrom(netip.MustParseAddr("198.18.2.2"), publishPort)

func (l *lab) newPlainRouter(ctx context.Context) (_ *plainRouter, err error) {
	prefix := fmt.Sprintf("clbench%d-", os.Getpid())
	far, router, inside := prefix+"far", prefix+"router", prefix+"inside"
	r := &plainRouter{spaces: []string{far, router, inside}, stop: func() {}}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	steps := [][]string{
		{"netns", "add", far},
		{"netns", "add", router},
		{"netns", "add", inside},
		{"-n", router, "link", "add", "far0", "type", "veth", "peer", "name", "eth0", "netns", far},
		{"-n", router, "link", "add", "br0", "type", "bridge"},
		{"-n", router, "link", "add", "port0", "master", "br0", "type", "veth", "peer", "name", "eth0", "netns", inside},
		{"-n", router, "address", "add", "198.18.1.1/24", "dev", "far0"},
		{"-n", router, "address", "add", "198.18.2.1/24", "dev", "br0"},
		{"-n", far, "address", "add", "198.18.1.2/24", "dev", "eth0"},
		{"-n", inside, "address", "add", plainProgram.Addr().String() + "/24", "dev", "eth0"},
	}
	for space, links := range map[string][]string{router: {"far0", "br0", "port0"}, far: {"eth0"}, inside: {"eth0"}} {
		for _, link := range links {
			steps = append(steps, []string{"-n", space, "link", "set", link, "up"})
		}
	}
	steps = append(steps,
		[]string{"-n", far, "route", "add", "default", "via", "198.18.1.1"},
		[]string{"-n", inside, "route", "add", "default", "via", "198.18.2.1"},
		[]string{"netns", "exec", router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"},
		[]string{"netns", "exec", router, "nft", "table inet floor { chain f { type filter hook forward priority 0; ct state established,related accept; }; }"})
	for _, step := range steps {
		if err := ip(step...); err != nil {
			return nil, err
		}
	}
	program := inNetwork(ctx, "/run/netns/"+inside, l.sleeper, fmt.Sprintf("[::]:%d", publishPort))
	if err := program.Start(); err != nil {
		return nil, err
	}
	r.stop = func() {
		_ = program.Process.Kill()
		_ = program.Wait()
	}
	space, err := netns.GetFromName(far)
	if err != nil {
		return nil, err
	}
	r.far = &farMachine{space: space}
	for r.far.connectAll(ctx, plainProgram, 1, 1) != nil { // until the program listens
		if err := sleep.For(ctx, 10*time.Millisecond); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *plainRouter) close() {
	r.stop()
	if r.far != nil {
		_ = r.far.close()
	}
	for _, space := range r.spaces {
		_ = ip("netns", "del", space) // it may not be there yet
	}
}

// farMachine is a network namespace that is linked to this machine.
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

func newFarMachine() (_ *farMachine, err error) {
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
	if err := f.linkUp(); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

func (f *farMachine) linkUp() error {
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
	return bringUp(there, pair.PeerName, linkThere)
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
	began := time.Now()
	err := f.connectAll(ctx, to, publishWorkers, publishRound)
	return publishRound / time.Since(began).Seconds(), err
}

// connectAll makes n connections with some workers.
func (f *farMachine) connectAll(ctx context.Context, to netip.AddrPort, count, n int) error {
	errs := make([]error, count)
	var workers sync.WaitGroup
	for w := range count {
		workers.Go(func() { errs[w] = f.connectSome(ctx, to, n/count) })
	}
	workers.Wait()
	return errors.Join(errs...)
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
