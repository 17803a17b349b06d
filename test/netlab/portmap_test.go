package netlab

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// upnpConfig makes Debian's miniupnpd use the rules of the lab's routers.
const upnpConfig = `
ext_ifname=eth0
listening_ip=wire
enable_natpmp=yes
enable_upnp=yes
secure_mode=yes
system_uptime=yes
uuid=a7ca4bd5-6d5c-4d1c-9a1f-0d6a6f1f2c4e
upnp_table_name=nat
upnp_nat_table_name=nat
upnp_forward_chain=upnp_through
upnp_nat_chain=upnp_pre
upnp_nat_postrouting_chain=upnp_post
`

// symmetricRouter is the rules of the router with the symmetric NAT. Mappings of ports are among them.
func (l *lab) symmetricRouter() string {
	l.t.Helper()
	rules, err := output(l.command("nsenter", "--net="+path("home-s"), "nft", "list", "ruleset"))
	l.must(err)
	return rules
}

// mappedPort starts miniupnpd on the router with the symmetric NAT. The machine behind it gets a public port, and others
// learn it.
func (l *lab) mappedPort() {
	l.withoutMapping = l.symmetricRouter()
	config := filepath.Join(l.dir, "miniupnpd.conf")
	l.must(os.WriteFile(config, []byte(upnpConfig), 0o600))
	l.miniupnpd = l.command("nsenter", "--net="+path("home-s"), "miniupnpd", "-d", "-f", config, "-P", filepath.Join(l.dir, "miniupnpd.pid"))
	l.must(l.miniupnpd.Start())
	w := &wires{t: l.t}
	w.ip("sym", "address add 192.168.9.12/24 dev eth0") // a machine with a new address asks its router again
	l.until("the router maps the port", func() error {
		if !strings.Contains(l.symmetricRouter(), "dport 7701") {
			return errors.New("it does not")
		}
		return nil
	})
	w.ip("sym", "address del 192.168.9.12/24 dev eth0")
	l.until("peers learn the public port", func() error {
		node, err := l.server.cloudless("node", "get", "sym", "-o", "json")
		if err == nil && !strings.Contains(node, `"`+symmetric+`:7701"`) {
			err = errors.New(node)
		}
		return err
	})
}

// unmapped checks that the machine behind the router has removed its mapping.
func (l *lab) unmapped() {
	if rules := l.symmetricRouter(); rules != l.withoutMapping {
		l.t.Errorf("the rules of the router differ: %s", difference(l.withoutMapping, rules))
	}
	_ = l.miniupnpd.Process.Kill()
	_ = l.miniupnpd.Wait()
}
