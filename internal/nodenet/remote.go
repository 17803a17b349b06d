package nodenet

import (
	"fmt"
	"maps"
	"net/netip"

	"github.com/cloudless/cloudless/internal/nodenet/nft"
)

// UpdateReplicas tells which namespaces replicas of other nodes are in, by their addresses. Replicas of this node reach
// those of their own namespace, and are reached by them. Addresses of this node's own subnets are ignored.
func (n *Network) UpdateReplicas(changed map[netip.Addr]string, removed []netip.Addr) error {
	n.rules.mu.Lock()
	defer n.rules.mu.Unlock()
	return n.updateReplicas(changed, removed)
}

// ReplaceReplicas is UpdateReplicas for all at once: those that are not named are removed.
func (n *Network) ReplaceReplicas(all map[netip.Addr]string) error {
	n.rules.mu.Lock()
	defer n.rules.mu.Unlock()
	var removed []netip.Addr
	for addr := range n.rules.remote {
		if _, stays := all[addr]; !stays {
			removed = append(removed, addr)
		}
	}
	return n.updateReplicas(all, removed)
}

// updateReplicas changes the parts of replicas. The caller holds rules.mu.
func (n *Network) updateReplicas(changed map[netip.Addr]string, removed []netip.Addr) error {
	own := n.subnets()
	parts := map[string]*nft.Part{}
	for _, addr := range removed {
		delete(n.rules.remote, addr)
		parts["replica/"+addr.String()] = nil
	}
	for addr, namespace := range changed {
		before, known := n.rules.remote[addr]
		if own.contain(addr) || known && before == namespace {
			continue
		}
		id := numberOf(n.rules.namespaces, namespace)
		parts["namespace/"+namespace] = namespacePart(namespace, id)
		parts["replica/"+addr.String()] = &nft.Part{Elements: memberElements(addr, namespace, id)}
	}
	maps.Copy(n.rules.remote, changed)
	return n.write(parts)
}

// write changes parts of the table. They wait for the base, without which there is no table yet. If the kernel refuses,
// the next check tries again. The caller holds rules.mu.
func (n *Network) write(parts map[string]*nft.Part) error {
	if !n.rules.parts[basePart] {
		n.rules.table.Describe(parts)
		return nil
	}
	if err := n.rules.table.Update(parts); err != nil {
		n.poke()
		return fmt.Errorf("write the rules of table %s: %w", n.opts.table(), err)
	}
	return nil
}
