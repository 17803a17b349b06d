package nodenet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Settings of the kernel, as files. They are those of the network namespace of
// the thread that opens them.
const settingsRoot = "/proc/sys/net/"

func readSetting(name string) (string, error) {
	data, err := os.ReadFile(settingsRoot + name)
	return strings.TrimSpace(string(data)), err
}

// setSetting writes only what is not so already: some settings undo others
// whenever they are written.
func setSetting(name, value string) (changed bool, err error) {
	now, err := readSetting(name)
	if err == nil && now == value {
		return false, nil
	}
	if err == nil {
		err = os.WriteFile(settingsRoot+name, []byte(value), 0)
	}
	if err != nil {
		return false, fmt.Errorf("set %s to %s: %w", strings.ReplaceAll(name, "/", "."), value, err)
	}
	return true, nil
}

func haveIPv6() bool {
	off, err := readSetting("ipv6/conf/all/disable_ipv6")
	return err == nil && off == "0"
}

// forwardPackets makes the machine a router. A machine that learns its own
// addresses from routers must go on doing so, which routers do not by default.
func (n *Network) forwardPackets() error {
	if err := n.change("ipv4/ip_forward", "1"); err != nil {
		return err
	}
	if !n.ipv6 {
		return nil
	}
	if now, err := readSetting("ipv6/conf/all/forwarding"); err == nil && now != "1" {
		listening, err := filepath.Glob(settingsRoot + "ipv6/conf/*/accept_ra")
		if err != nil {
			return err
		}
		for _, path := range listening {
			name := strings.TrimPrefix(path, settingsRoot)
			if value, err := readSetting(name); err != nil || value != "1" || strings.Contains(name, "/all/") {
				continue
			}
			if err := n.change(name, "2"); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return n.change("ipv6/conf/all/forwarding", "1")
}

// change changes a setting of the machine, and remembers what it was.
func (n *Network) change(name, value string) error {
	before, err := readSetting(name)
	if err != nil {
		return fmt.Errorf("read %s: %w", strings.ReplaceAll(name, "/", "."), err)
	}
	if before == value {
		return nil
	}
	if err := n.store.rememberSetting(name, before); err != nil {
		return err
	}
	_, err = setSetting(name, value)
	return err
}
