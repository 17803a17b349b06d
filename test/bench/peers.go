package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cloudless/cloudless/internal/mesh"
	"github.com/cloudless/cloudless/internal/netd"
	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	knownPeers   = 5000
	talkingPeers = 5
)

// meshNode is a network process on a machine, without a cloud.
type meshNode struct {
	client    *netd.Client
	announced chan mesh.Announcement
	peer      mesh.Peer
	socket    string
	stop      func()
}

// measurePeers compares a network process that knows thousands of peers with one that knows none.
func measurePeers(ctx context.Context, l *lab) (_ result, err error) {
	program, err := l.build(ctx, "cloudless-net", "./cmd/cloudless-net")
	if err != nil {
		return result{}, err
	}
	m, err := l.newMachines(talkingPeers + 1)
	if err != nil {
		return result{}, err
	}
	defer m.close()
	var nodes []*meshNode
	defer func() {
		for _, n := range nodes {
			n.stop()
			err = errors.Join(err, netd.Stop(context.Background(), n.socket))
		}
	}()
	for i := range talkingPeers + 1 {
		n, err := m.startMesh(ctx, program, i)
		if err != nil {
			return result{}, err
		}
		nodes = append(nodes, n)
	}
	pid, err := m.pidOf(ctx, 0)
	if err != nil {
		return result{}, err
	}
	if err := sleep.For(ctx, idleSettle); err != nil {
		return result{}, err
	}
	before, err := memoryOf(pid)
	if err != nil {
		return result{}, err
	}
	if err := m.introduce(ctx, nodes); err != nil {
		return result{}, err
	}
	if err := sleep.For(ctx, idleSettle); err != nil {
		return result{}, err
	}
	after, err := memoryOf(pid)
	return result{value: after.resident - before.resident, notes: []string{
		fmt.Sprintf("without peers: %v", before), fmt.Sprintf("with %d peers, after packets from and to %d of them: %v", knownPeers, talkingPeers, after),
	}}, err
}

// startMesh starts the network process of a machine and waits until it can be reached.
func (m *machines) startMesh(ctx context.Context, program string, i int) (*meshNode, error) {
	key, err := mesh.NewPrivateKey()
	if err != nil {
		return nil, err
	}
	own := netip.MustParsePrefix(fmt.Sprintf("10.64.%d.1/32", i))
	n := &meshNode{announced: make(chan mesh.Announcement, 100), socket: filepath.Join(m.lab.dir, fmt.Sprintf("net%d", i))}
	n.client = netd.NewClient(netd.Options{
		Program: program, Launcher: []string{"nsenter", "--net=/run/netns/" + m.spaces[i]}, Socket: n.socket, Log: n.socket + ".log", Logger: slog.New(slog.DiscardHandler),
	})
	n.client.Configure(mesh.Setup{
		ID: fmt.Sprintf("node/%d", i), Interface: "mesh0", MTU: 1420, Port: 7701, Addresses: []netip.Prefix{own}, Ranges: []netip.Prefix{netip.MustParsePrefix("10.64.0.0/10")},
	}, key)
	running, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ignore := func(string) {}
		n.client.Run(running, netd.Events{Announced: func(a mesh.Announcement) { n.announced <- a }, Failed: ignore, Resolver: ignore, Wanted: ignore})
	}()
	n.stop = func() {
		cancel()
		<-ended
	}
	for len(n.peer.Candidates) == 0 {
		select {
		case a := <-n.announced:
			n.peer = mesh.Peer{ID: fmt.Sprintf("node/%d", i), Name: fmt.Sprint(i), Key: a.Key, Prefixes: []netip.Prefix{own}, Candidates: a.Candidates}
		case <-ctx.Done():
			n.stop()
			return nil, context.Cause(ctx)
		}
	}
	return n, nil
}

func (m *machines) pidOf(ctx context.Context, i int) (int, error) {
	out, err := m.in(ctx, i, "ip", "netns", "pids", m.spaces[i]).Output()
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(out))
	for _, field := range fields {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return 0, err
		}
		if line, err := procName(pid); err == nil && line == "cloudless-net" {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no network process among %v", fields)
}

// introduce tells the first node of all others, real and made up, and lets it talk to the real ones.
func (m *machines) introduce(ctx context.Context, nodes []*meshNode) error {
	var all []mesh.Peer
	for _, n := range nodes[1:] {
		n.client.SetPeers([]mesh.Peer{nodes[0].peer})
		all = append(all, n.peer)
	}
	for i := len(all); i < knownPeers; i++ {
		key, err := mesh.NewPrivateKey()
		if err != nil {
			return err
		}
		all = append(all, mesh.Peer{
			ID: fmt.Sprintf("node/%d", i+1), Name: fmt.Sprintf("node-%d", i), Key: key.Public(),
			Prefixes: []netip.Prefix{
				netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(65 + i/256), byte(i), 0}), 24),
				netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 6: byte(i >> 8), 7: byte(i)}), 64),
			},
			Candidates: []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 7701)},
		})
	}
	nodes[0].client.SetPeers(all)
	for _, n := range nodes[1:] {
		to := n.peer.Prefixes[0].Addr().String()
		for m.in(ctx, 0, "busybox", "ping", "-c", "1", "-W", "1", to).Run() != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}
