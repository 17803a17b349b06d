package nodenet

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// portKey is a port of the machine, at one address or at all if that is not valid.
type portKey struct {
	protocol string
	addr     netip.Addr
	number   uint16
}

func (k portKey) String() string {
	text := fmt.Sprint(k.number)
	if k.addr.IsValid() {
		text = netip.AddrPortFrom(k.addr, k.number).String()
	}
	if k.protocol == "udp" {
		text += "/udp"
	}
	return text
}

// number4 is the number of the protocol.
func (k portKey) number4() byte {
	if k.protocol == "udp" {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

// overlaps reports whether a packet could be for both.
func (k portKey) overlaps(other portKey) bool {
	return k.protocol == other.protocol && k.number == other.number &&
		(k.addr == other.addr || !k.addr.IsValid() || !other.addr.IsValid())
}

// sshPort is how people reach a machine that has a problem.
const sshPort = 22

// checkPorts refuses to publish ports that the machine is managed through, and that of the resolver.
func (n *Network) checkPorts(ports []Port) error {
	for _, p := range ports {
		switch {
		case p.Host == sshPort:
			return fmt.Errorf("port %d cannot be published: it is that of SSH, by which people reach this machine; choose another", p.Host)
		case p.Host != 0 && p.Host == n.opts.APIPort:
			return fmt.Errorf("port %d cannot be published: it is that of the cluster's API; choose another", p.Host)
		case p.Host == DNSPort && (!p.Address.IsValid() || slices.Contains(n.gatewayAddresses(), p.Address)):
			return fmt.Errorf("port %d cannot be published: the node's resolver has it; publish it at another address of the machine", p.Host)
		}
	}
	return nil
}
