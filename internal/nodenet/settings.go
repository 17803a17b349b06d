package nodenet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/atomicfile"
)

// Kernel settings, as files. They are those of the network namespace of the thread that
// opens them.
const settingsRoot = "/proc/sys/net/"

func readSetting(name string) (string, error) {
	data, err := os.ReadFile(settingsRoot + name)
	return strings.TrimSpace(string(data)), err
}

// setSetting writes a setting only if it differs: some settings reset others whenever they
// are written.
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

// change changes a setting of the machine, and remembers the old value.
func (n *Network) change(name, value string) error {
	before, err := readSetting(name)
	if err != nil {
		return fmt.Errorf("read %s: %w", strings.ReplaceAll(name, "/", "."), err)
	}
	if before == value {
		return nil
	}
	if err := n.opts.rememberSetting(setting{name, before}); err != nil {
		return fmt.Errorf("remember %s: %w", strings.ReplaceAll(name, "/", "."), err)
	}
	_, err = setSetting(name, value)
	return err
}

// setting is the value of a setting before it was changed.
type setting struct {
	Name   string `json:"name"`
	Before string `json:"before"`
}

// settingsDir is shared by the clouds on this machine: the first one saves the settings,
// the last one restores them. Settings belong to a network namespace and end with it, so
// the folder's name does, too.
func (o *Options) settingsDir() (string, error) {
	namespace, err := namespaceID()
	if err != nil {
		return "", fmt.Errorf("tell this network namespace from others: %w", err)
	}
	return filepath.Join(filepath.Dir(o.RunDir), "settings-"+namespace), nil
}

// namespaceID is unique to a network namespace: its inode distinguishes only living ones,
// and is reused.
func namespaceID() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) { // before Linux 5.14
		var own unix.Stat_t
		err = unix.Stat("/proc/thread-self/ns/net", &own)
		cookie = own.Ino
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s-%d", strings.TrimSpace(string(boot)), cookie), nil
}

// rememberSetting keeps the first saved value.
func (o *Options) rememberSetting(s setting) error {
	dir, err := o.settingsDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	err = atomicfile.Create(filepath.Join(dir, strings.ReplaceAll(s.Name, "/", ",")), data)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// restoreSettings restores the saved values, forwarding first: other settings follow from
// it.
func (o *Options) restoreSettings() error {
	dir, err := o.settingsDir()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, pass := range []bool{true, false} {
		for _, entry := range entries {
			data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
			var s setting
			if err == nil {
				err = json.Unmarshal(data, &s)
			}
			if err == nil && strings.Contains(s.Name, "forward") == pass {
				_, err = setSetting(s.Name, s.Before)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // an interface may be gone
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(append(errs, os.RemoveAll(dir))...)
}
