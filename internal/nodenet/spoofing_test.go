package nodenet_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/nodenet"
)

// say sends one datagram from an address, which the sender need not have.
func say(namespace, from, to string) error {
	return inside(namespace, func() error {
		source := netip.MustParseAddr(from)
		dialer := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, 0)), Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			controlled := c.Control(func(fd uintptr) {
				if source.Is4() {
					err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TRANSPARENT, 1) // which needs privileges, unlike the other
				} else {
					err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)
				}
			})
			return errors.Join(controlled, err)
		}}
		conn, err := dialer.Dial("udp", to)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte("hi\n"))
		return err
	})
}

// A replica cannot pretend to be another, in the same namespace or in another one, even if it was chosen by somebody who
// knows all addresses. What it tries counts for it, and not for the replica whose address it used.
func TestReplicasUseTheirOwnAddresses(t *testing.T) {
	for _, setting := range []string{"0", "1"} { // whether rules see bridged packets
		t.Run("bridge-nf-call-iptables="+setting, func(t *testing.T) {
			l := newLab(t)
			l.bridgeRulesSeeAll(setting)
			spy := l.attachIn("other", "spy", "spy")
			web := l.attachIn("shop", "web", "web")
			db := l.attachIn("shop", "db", "db")
			l.serve(l.outside, "outside")
			heard := l.hear(db.Namespace, 9000)
			for i := range db.Addresses {
				to := netip.AddrPortFrom(db.Addresses[i], 9000).String()
				sibling, own := web.Addresses[i].String(), spy.Addresses[i].String()
				foreign := []string{"192.0.2.9", "2001:db8:9::9"}[i]
				for _, from := range []string{sibling, foreign} {
					before := l.dropped("spy", "spoofed")
					l.must(say(spy.Namespace, from, to))
					eventually(t, func() error {
						if l.dropped("spy", "spoofed") == before {
							return fmt.Errorf("what spy sends as %s to %s is not dropped, or not counted", from, to)
						}
						return nil
					})
				}
				l.must(say(spy.Namespace, own, to)) // is closed, but not spoofed
				// What is sent later arrives later, so nothing of the above has arrived.
				l.must(say(web.Namespace, sibling, to))
				if from := <-heard; from != sibling {
					t.Errorf("%s has got something from %s", to, from)
				}
				l.open(web.Namespace, "tcp", netip.AddrPortFrom(db.Addresses[i], insidePort).String(), "db")
			}
			l.open(web.Namespace, "tcp", there4+":8000", "outside")
			if n := l.dropped("web", "spoofed"); n != 0 {
				t.Errorf("web counts %d spoofed packets", n)
			}
			// Rules that are gone are restored.
			l.run("", "nft", "flush", "ruleset")
			before := l.dropped("spy", "spoofed")
			eventually(t, func() error {
				l.must(say(spy.Namespace, web.Addresses[0].String(), there4+":9"))
				if l.dropped("spy", "spoofed") == before {
					return errors.New("nothing is dropped after a flush")
				}
				return nil
			})
		})
	}
}

// What the kernel of a replica sends by itself counts for nothing, even if the rules see what the bridge passes to all.
func TestNeighbourDiscoveryCountsForNoWorkload(t *testing.T) {
	l := newLab(t)
	l.bridgeRulesSeeAll("1")
	web := l.attachIn("shop", "web", "web")
	l.attachIn("other", "db", "db")
	l.serve(l.outside, "outside")
	l.run(web.Namespace, "ip", "-6", "neigh", "flush", "dev", "eth0")
	l.open(web.Namespace, "tcp", "["+there6+"]:8000", "outside") // it has asked all for its router
	drops, err := l.network.Drops()
	l.must(err)
	if len(drops) > 0 {
		t.Errorf("a replica that reached what it may reach counts %+v", drops)
	}
}

// bridgeRulesSeeAll sets whether the machine's rules see bridged packets, too.
func (l *lab) bridgeRulesSeeAll(setting string) {
	l.t.Helper()
	for _, family := range []string{"iptables", "ip6tables"} {
		l.run("", "sh", "-c", "if [ -e /proc/sys/net/bridge ]; then echo "+setting+" > /proc/sys/net/bridge/bridge-nf-call-"+family+"; fi")
	}
	l.t.Cleanup(func() {
		l.run("", "sh", "-c", "if [ -e /proc/sys/net/bridge ]; then echo 0 | tee /proc/sys/net/bridge/bridge-nf-call-ip*tables; fi")
	})
}

// hear passes on the senders of datagrams to a port.
func (l *lab) hear(namespace string, port int) <-chan string {
	l.t.Helper()
	heard := make(chan string, 100)
	l.must(inside(namespace, func() error {
		conn, err := net.ListenPacket("udp", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		l.t.Cleanup(func() { conn.Close() })
		go func() {
			for {
				_, from, err := conn.ReadFrom(make([]byte, 100))
				if err != nil {
					return
				}
				heard <- from.(*net.UDPAddr).AddrPort().Addr().Unmap().String()
			}
		}()
		return nil
	}))
	return heard
}

// A replica that may send any frame takes over neither the address of another one, by ARP or neighbour discovery, nor
// its place on the bridge.
func TestReplicaCannotTakeOverTheAddressOfAnother(t *testing.T) {
	l := newLab(t)
	spy := l.attachIn("other", "spy", "spy")
	web := l.attachIn("shop", "web", "web")
	l.open("", "tcp", "10.64.3.3:8000", "web") // now the bridge knows its neighbour
	l.open("", "tcp", "[fd00:64:0:3::3]:8000", "web")
	mac := func(namespace string) (found net.HardwareAddr) {
		l.must(inside(namespace, func() error {
			link, err := net.InterfaceByName("eth0")
			if err == nil {
				found = link.HardwareAddr
			}
			return err
		}))
		return found
	}
	mine, theirs := mac(spy.Namespace), mac(web.Namespace)
	send := func(frame []byte) {
		t.Helper()
		before := l.dropped("spy", "spoofed")
		l.must(inside(spy.Namespace, func() error { return sendFrame(frame) }))
		eventually(t, func() error {
			if l.dropped("spy", "spoofed") == before {
				return errors.New("the frame is not dropped, or not counted")
			}
			return nil
		})
	}
	send(arpReply(mine, web.Addresses[0]))
	send(neighbourAdvertisement(mine, spy.Addresses[1], web.Addresses[1]))
	send(append(append(broadcast(mine), 0x88, 0xb5), make([]byte, 46)...)) // an experimental protocol
	// A frame from the other's Ethernet address does not move that address.
	l.must(inside(spy.Namespace, func() error { return sendFrame(arpReply(theirs, spy.Addresses[0])) }))
	send(arpReply(mine, web.Addresses[0])) // the one before has passed the bridge
	l.open("", "tcp", "10.64.3.3:8000", "web")
	l.open("", "tcp", "[fd00:64:0:3::3]:8000", "web")
	out, err := exec.Command("bridge", "fdb", "show", "br", "cl-testtest").CombinedOutput()
	bound := regexp.MustCompile(theirs.String() + " dev cvtesttest-3 .*sticky .*static")
	if err != nil || !bound.Match(out) {
		t.Errorf("the other's Ethernet address is not bound to its link: %v\n%s", err, out)
	}
}

func broadcast(from net.HardwareAddr) []byte {
	return append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, from...)
}

// arpReply says that an address is at an Ethernet address.
func arpReply(at net.HardwareAddr, a netip.Addr) []byte {
	frame := append(broadcast(at), 8, 6, 0, 1, 8, 0, 6, 4, 0, 2)
	frame = append(append(frame, at...), a.AsSlice()...)
	return append(append(frame, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), 10, 64, 3, 1)
}

// neighbourAdvertisement says the same with IPv6, to all.
func neighbourAdvertisement(at net.HardwareAddr, from, a netip.Addr) []byte {
	message := append([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, a.AsSlice()...)
	message = append(append(message, 2, 1), at...)
	to := netip.MustParseAddr("ff02::1")
	pseudo := append(append(from.AsSlice(), to.AsSlice()...), 0, 0, 0, byte(len(message)), 0, 0, 0, unix.IPPROTO_ICMPV6)
	binary.BigEndian.PutUint16(message[2:], checksum(append(pseudo, message...)))
	header := []byte{0x60, 0, 0, 0, 0, byte(len(message)), unix.IPPROTO_ICMPV6, 255}
	header = append(append(header, from.AsSlice()...), to.AsSlice()...)
	return append(append(append(broadcast(at), 0x86, 0xdd), header...), message...)
}

func checksum(data []byte) uint16 {
	var sum uint32
	for i := 0; i < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// sendFrame sends a frame as it is.
func sendFrame(frame []byte) error {
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	return unix.Sendto(socket, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Index})
}

// On a kernel without rules for bridges, replicas still use only addresses of the node, and an event says what is missing.
func TestKernelWithoutRulesForBridges(t *testing.T) {
	l := newLabWith(t, func(o *nodenet.Options) { o.WithoutBridgeRules() })
	a := l.attach("a", "web")
	l.serve(l.outside, "outside")
	l.events.await(t, "AddressesUnguarded")
	l.open(a.Namespace, "tcp", there4+":8000", "outside")
	before := l.dropped("", "spoofed")
	l.must(say(a.Namespace, "192.0.2.9", there4+":8000"))
	eventually(t, func() error {
		if l.dropped("", "spoofed") == before {
			return errors.New("a foreign address is not dropped")
		}
		return nil
	})
}
