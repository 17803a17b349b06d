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
	for name, text := range map[string]string{
		"hostname": e.Hostname + "\n",
		"hosts":    hostsFile(e.Hostname, e.addresses(n.subnets())),
	} {
		if err := writeInPlace(filepath.Join(dir, name), text); err != nil {
			return nil, fmt.Errorf("make files of %s: %w", e.UID, err)
		}
	}
	return map[string]string{
		"/etc/hostname":    filepath.Join(dir, "hostname"),
		"/etc/hosts":       filepath.Join(dir, "hosts"),
		"/etc/resolv.conf": n.opts.resolvPath(),
	}, nil
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

// followHost copies the machine's name servers.
func (n *Network) followHost() error {
	text, sentence := resolvconf.Text(resolvconf.Paths)
	if err := os.MkdirAll(n.opts.fileDir(), 0o711); err != nil {
		return fmt.Errorf("make the file about name servers: %w", err)
	}
	if err := writeInPlace(n.opts.resolvPath(), text); err != nil {
		return fmt.Errorf("make the file about name servers: %w", err)
	}
	n.setProblem("dns", "NoNameServer", sentence)
	return nil
}
