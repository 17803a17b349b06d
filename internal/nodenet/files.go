package nodenet

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
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

// resolvers are the files with the machine's name servers, in order of preference. Local
// caches write the later ones, with the servers behind them.
var resolvers = []string{
	"/etc/resolv.conf",
	"/run/systemd/resolve/resolv.conf",
	"/run/NetworkManager/no-stub-resolv.conf",
}

// followHost copies the machine's name servers.
func (n *Network) followHost() error {
	text, sentence := resolvFile(resolvers)
	if err := os.MkdirAll(n.opts.fileDir(), 0o711); err != nil {
		return fmt.Errorf("make the file about name servers: %w", err)
	}
	if err := writeInPlace(n.opts.resolvPath(), text); err != nil {
		return fmt.Errorf("make the file about name servers: %w", err)
	}
	n.setProblem("dns", "NoNameServer", sentence)
	return nil
}

// resolvFile is the first of the files that names a server which other namespaces can
// reach. If none does, a sentence says so.
func resolvFile(paths []string) (text, sentence string) {
	fallback, found := "", false
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		text, servers, local := withoutLoopback(data)
		if servers > 0 || !local && path == paths[0] {
			return text, ""
		}
		if !found {
			fallback, found = text, true
		}
	}
	if !found {
		return "", "" // a machine without name servers has replicas without them
	}
	return fallback, "Names cannot be resolved inside replicas: " + paths[0] +
		" has only servers on 127.0.0.x, which replicas cannot reach; name others in it."
}

// withoutLoopback removes the servers that only the machine itself can reach.
func withoutLoopback(data []byte) (text string, servers int, local bool) {
	var out strings.Builder
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) >= 2 && fields[0] == "nameserver" {
			host, _, _ := strings.Cut(fields[1], "%")
			if addr, err := netip.ParseAddr(host); err == nil && (addr.IsLoopback() || addr.IsUnspecified()) {
				local = true
				continue
			}
			servers++
		}
		out.WriteString(lines.Text() + "\n")
	}
	return out.String(), servers, local
}
