package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protodelim"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/atomicfile"
	"github.com/cloudless/cloudless/internal/sleep"
)

// networkCache is what servers have said of the network, on disk. With it, replicas reach each other by name after a
// restart of the machine, even if no server can be reached.
type networkCache struct {
	path string
	wake chan struct{}

	mu       sync.Mutex
	node     *v1.NodeSpec
	network  *v1.Network // its lists of peers, replicas and services are in the maps
	peers    map[string]*v1.NetworkPeer
	replicas map[string]*v1.NetworkReplica
	services map[string]*v1.NetworkService
}

func newNetworkCache(dir string) *networkCache {
	c := &networkCache{path: filepath.Join(dir, "network"), wake: make(chan struct{}, 1), network: &v1.Network{}}
	c.clear()
	return c
}

func (c *networkCache) clear() {
	c.peers, c.replicas, c.services = map[string]*v1.NetworkPeer{}, map[string]*v1.NetworkReplica{}, map[string]*v1.NetworkService{}
}

func (c *networkCache) change(edit func()) {
	c.mu.Lock()
	edit()
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *networkCache) setNode(n *v1.NodeSpec) { c.change(func() { c.node = n }) }

// merge adds a message of a server to what is known.
func (c *networkCache) merge(n *v1.Network) {
	c.change(func() {
		if n.GetFull() {
			c.clear()
		}
		if n.GetRelays() != nil {
			c.network.Relays, c.network.Ranges, c.network.ServiceRanges = n.GetRelays(), n.GetRanges(), n.GetServiceRanges()
		}
		if n.Zone != nil {
			c.network.Zone = n.Zone
		}
		update(c.peers, n.GetPeers(), n.GetRemoved(), (*v1.NetworkPeer).GetId)
		update(c.replicas, n.GetReplicas(), n.GetRemovedReplicas(), (*v1.NetworkReplica).GetUid)
		update(c.services, n.GetServices(), n.GetRemovedServices(), (*v1.NetworkService).GetUid)
	})
}

func update[T any](known map[string]T, changed []T, removed []string, id func(T) string) {
	for _, gone := range removed {
		delete(known, gone)
	}
	for _, one := range changed {
		known[id(one)] = one
	}
}

// full is everything as one message.
func (c *networkCache) full() *v1.Network {
	n := c.network
	return &v1.Network{
		Full: true, Relays: n.GetRelays(), Ranges: n.GetRanges(), ServiceRanges: n.GetServiceRanges(), Zone: n.Zone,
		Peers: slices.Collect(maps.Values(c.peers)), Replicas: slices.Collect(maps.Values(c.replicas)), Services: slices.Collect(maps.Values(c.services)),
	}
}

// cacheShare bounds the share of time that is spent on writing the cache: one in so many parts.
const cacheShare = 50

// run writes changes to disk until ctx ends. A change is written at once, so that an agent that is killed soon afterwards
// knows it when it is back. Changes that follow quickly are written together.
func (c *networkCache) run(ctx context.Context, failed func(error)) {
	write := func() {
		began := time.Now()
		if err := c.save(); err != nil {
			failed(err)
		}
		_ = sleep.For(ctx, cacheShare*time.Since(began))
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-c.wake:
			write()
		}
	}
	select {
	case <-c.wake:
		write()
	default:
	}
}

func (c *networkCache) save() error {
	c.mu.Lock()
	node, network := c.node, c.full()
	c.mu.Unlock()
	var data bytes.Buffer
	_, err := protodelim.MarshalTo(&data, node)
	if err == nil {
		_, err = protodelim.MarshalTo(&data, network)
	}
	if err == nil {
		err = atomicfile.Replace(c.path, data.Bytes())
	}
	if err != nil {
		return fmt.Errorf("remember the network: %w", err)
	}
	return nil
}

// maxCache bounds what is read of a file that may be damaged.
const maxCache = 256 << 20

// load returns what an earlier agent has written, and nothing if there is none.
func (c *networkCache) load() (node *v1.NodeSpec, network *v1.Network, err error) {
	data, err := os.ReadFile(c.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	}
	node, network = &v1.NodeSpec{}, &v1.Network{}
	if err == nil {
		in := bytes.NewReader(data)
		read := protodelim.UnmarshalOptions{MaxSize: maxCache}
		if err = read.UnmarshalFrom(in, node); err == nil {
			err = read.UnmarshalFrom(in, network)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read what is known of the network: %w", err)
	}
	return node, network, nil
}

// restoreNetwork makes the network what it was when an earlier agent ended. A server corrects what has changed since.
func (a *Agent) restoreNetwork() {
	node, network, err := a.cache.load()
	if err != nil {
		a.log.Warn("the network waits for a server", "error", err)
		return
	}
	if node == nil {
		return
	}
	if err := a.configureNetwork(node); err != nil {
		a.log.Warn("the network waits for a server", "error", err)
		return
	}
	a.applyNetwork(network)
}
