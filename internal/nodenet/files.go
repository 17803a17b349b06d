package nodenet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/cloudless/cloudless/internal/resolvconf"
)

func dirOf(path string) string { return filepath.Dir(path) }

func (n *Network) filesOf(uid string) string { return filepath.Join(n.opts.fileDir(), uid) }

// writeFiles writes the files about names and addresses that programs expect.
func (n *Network) writeFiles(e allocated) (map[string]string, error) {
	dir := n.filesOf(e.UID)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("make files of %s: %w", e.UID, err)
	}
	files := map[string]string{}
	servers, _ := n.nameServers(e.Namespace)
	for name, text := range map[string]string{
		"hostname":    e.Hostname + "\n",
		"hosts":       hostsFile(e.Hostname, e.addresses(n.subnets())),
		"resolv.conf": servers,
	} {
		path := filepath.Join(dir, name)
		if err := writeInPlace(path, text); err != nil {
			return nil, fmt.Errorf("make files of %s: %w", e.UID, err)
		}
		files["/etc/"+name] = path
	}
	return files, nil
}

// nameServers is the resolv.conf of replicas of a namespace. A sentence says so if it cannot work.
func (n *Network) nameServers(namespace string) (text, sentence string) {
	if n.opts.Domain == "" {
		return resolvconf.Text(resolvconf.Paths)
	}
	var own []netip.Addr
	for _, gateway := range n.gateways() {
		own = append(own, gateway.Addr())
	}
	domains := []string{namespace + "." + n.opts.Domain, n.opts.Domain}
	return resolvconf.ForReplica(own[:1], domains, resolvconf.Read(resolvconf.Paths, own...)), ""
}

func hostsFile(hostname string, addresses []netip.Addr) string {
	text := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	for _, addr := range addresses {
		if hostname != "" {
			text += addr.String() + "\t" + hostname + "\n"
		}
	}
	return text
}

// writeInPlace keeps the inode: containers have the file mounted.
func writeInPlace(path, text string) error {
	if now, err := os.ReadFile(path); err == nil && string(now) == text {
		return nil
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Truncate(int64(len(text))), file.Close())
}

// followHost adapts the files of endpoints to the machine's name servers.
func (n *Network) followHost() error {
	for uid, e := range n.store.all() {
		path := filepath.Join(n.filesOf(uid), "resolv.conf")
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			continue // it is attached later, or again
		}
		text, _ := n.nameServers(e.Namespace)
		if err := writeInPlace(path, text); err != nil {
			return fmt.Errorf("write the name servers of %s: %w", uid, err)
		}
	}
	_, sentence := n.nameServers("")
	n.setProblem("dns", "NoNameServer", sentence)
	return nil
}
