package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inThrowaway runs a probe in new network and mount namespaces, which disappear afterwards with everything in them.
func inThrowaway(try func() error) error {
	done := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and the namespaces with the thread.
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread would not end, and /proc shows its namespaces as those of the process.
			err := inThrowaway(try)
			runtime.UnlockOSThread()
			done <- err
			return
		}
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("make a namespace: %w", err)
			}
			if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return fmt.Errorf("make mounts private: %w", err)
			}
			return try()
		}()
	}()
	return <-done
}

// tryLinks creates a bridge with one end of a veth pair on it.
func tryLinks() error {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "try0"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("make a bridge: %w", err)
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "try1"}, PeerName: "try2"}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("make a veth pair: %w", err)
	}
	if err := netlink.LinkSetMaster(veth, bridge); err != nil {
		return fmt.Errorf("put the veth pair on the bridge: %w", err)
	}
	return nil
}

// tryNFTables creates the kinds of rules that published ports and outbound traffic need.
func tryNFTables() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "try"})
	chain := conn.AddChain(&nftables.Chain{
		Name: "post", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Masq{}}})
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("make a rule: %w", err)
	}
	return nil
}

// tryBridgeRules creates a chain for what passes a bridge.
func tryBridgeRules() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	conn.AddChain(&nftables.Chain{
		Name: "pre", Table: conn.AddTable(&nftables.Table{Family: nftables.TableFamilyBridge, Name: "try"}), Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
	})
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("make a rule: %w", err)
	}
	return nil
}

// tryOverlay mounts an overlay in the data folder.
func tryOverlay(dataDir string) (err error) {
	dir, err := os.MkdirTemp(existing(dataDir), ".try-overlay-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	options := ""
	for key, name := range map[string]string{"lowerdir": "lower", "upperdir": "upper", "workdir": "work"} {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
		options += "," + key + "=" + path
	}
	merged := filepath.Join(dir, "merged")
	if err := os.Mkdir(merged, 0o700); err != nil {
		return err
	}
	return inThrowaway(func() error {
		if err := unix.Mount("overlay", merged, "overlay", 0, options[1:]); err != nil {
			return fmt.Errorf("mount: %w", err)
		}
		return syscall.Unmount(merged, unix.MNT_DETACH)
	})
}
