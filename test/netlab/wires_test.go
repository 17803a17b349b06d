package netlab

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// The addresses of the lab. Those on the internet are not from the ranges for documentation: miniupnpd does not take them
// for public.
const (
	serverV4, serverV6 = "45.0.0.1", "2001:db8::1"
	homeA, homeB       = "45.0.0.2", "45.0.0.3"
	symmetric          = "45.0.0.4"
	gateway, gateway6  = "45.0.0.254", "2001:db8::fe"
	// homeGateway is that of both homes.
	homeGateway = "192.168.7.1"
	// apiName is how all machines name the server. It has an address of each family.
	apiName = "cloud.example"
)

// wires makes the namespaces of the lab and what connects them.
type wires struct {
	t     *testing.T
	count int
}

// path is the file of a network namespace.
func path(space string) string { return "/run/netns/" + space }

func (w *wires) run(name string, args ...string) {
	w.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		w.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// ip runs ip in a namespace, with the words of a command.
func (w *wires) ip(space, command string) {
	w.t.Helper()
	w.run("ip", append([]string{"-n", space}, strings.Fields(command)...)...)
}

func (w *wires) nft(space, rules string) {
	w.t.Helper()
	w.run("nsenter", "--net="+path(space), "nft", rules)
}

// space makes a namespace.
func (w *wires) space(name string) {
	w.t.Helper()
	w.run("ip", "netns", "add", name)
	w.ip(name, "link set lo up")
	w.run("nsenter", "--net="+path(name), "sysctl", "-qw", "net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0")
}

// bridge makes a switch in a namespace that forwards packets.
func (w *wires) bridge(space, name string, addresses ...string) {
	w.t.Helper()
	w.ip(space, "link add "+name+" type bridge")
	w.ip(space, "link set "+name+" up")
	w.address(space, name, addresses...)
	w.run("nsenter", "--net="+path(space), "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
}

func (w *wires) address(space, link string, addresses ...string) {
	w.t.Helper()
	for _, a := range addresses {
		w.ip(space, "address add "+a+" dev "+link+" nodad")
	}
}

// plug connects an interface of a namespace to a bridge in another one.
func (w *wires) plug(space, link, to, bridge string, addresses ...string) {
	w.t.Helper()
	w.count++
	port := fmt.Sprintf("port%d", w.count)
	w.ip(to, "link add "+port+" type veth peer name "+link+" netns "+space)
	w.ip(to, "link set "+port+" up master "+bridge)
	w.ip(space, "link set "+link+" up")
	w.address(space, link, addresses...)
}

// internet is the bridge that all others are connected to. Its namespace is the provider's router.
func (w *wires) internet() {
	w.space("internet")
	w.bridge("internet", "wire", gateway+"/24", gateway6+"/64")
}

// online connects a machine or a router to the internet.
func (w *wires) online(space string, addresses ...string) {
	w.t.Helper()
	w.plug(space, "eth0", "internet", "wire", addresses...)
	for _, a := range addresses {
		if strings.Contains(a, ":") {
			w.ip(space, "-6 route add default via "+gateway6)
		} else {
			w.ip(space, "route add default via "+gateway)
		}
	}
}

// home is a router with a private network behind it. Strangers on the internet cannot begin to talk to it. masquerade
// says how it chooses ports.
func (w *wires) home(name, public, inside, masquerade string) {
	w.t.Helper()
	w.space(name)
	w.online(name, public+"/24")
	w.bridge(name, "wire", inside+"/24")
	w.nft(name, "table inet nat { chain upnp_pre { }; chain upnp_through { }; chain upnp_post { }; "+
		"chain pre { type nat hook prerouting priority -100; jump upnp_pre; }; "+
		"chain post { type nat hook postrouting priority 100; jump upnp_post; oifname eth0 "+masquerade+"; }; "+
		"chain in { type filter hook input priority 0; iifname eth0 ct state new drop; }; "+
		"chain through { type filter hook forward priority 0; jump upnp_through; iifname eth0 ct state new drop; }; }")
}

// tunnel is a network behind a link that takes only packets of 1280 bytes, in the middle of the path.
func (w *wires) tunnel() {
	w.space("tunnel")
	w.ip("internet", "link add narrow type veth peer name eth0 netns tunnel")
	w.ip("internet", "link set narrow up mtu 1280")
	w.ip("tunnel", "link set eth0 up mtu 1280")
	w.address("internet", "narrow", "192.0.2.1/30")
	w.address("tunnel", "eth0", "192.0.2.2/30")
	w.bridge("tunnel", "wire", "203.0.113.1/24")
	w.ip("tunnel", "route add default via 192.0.2.1")
	w.ip("internet", "route add 203.0.113.0/24 via 192.0.2.2")
}

// inside connects a machine to the network of a router.
func (w *wires) inside(space, router, address, gateway string) {
	w.t.Helper()
	w.plug(space, "eth0", router, "wire", address+"/24")
	w.ip(space, "route add default via "+gateway)
}
