package nodenet

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/cloudless/cloudless/internal/nodenet/nft"
)

// Clear removes the network from the machine: rules, bridge, links, namespaces, files and,
// if no other cloud is here, changed settings. The state on disk stays, so that addresses
// are the same when the network comes back. No running program may be attached.
func Clear(opts Options) error {
	if err := opts.validate(); err != nil {
		return fmt.Errorf("clear the node network: %w", err)
	}
	errs := []error{nft.Delete(opts.table())}
	links, err := retry(netlink.LinkList)
	errs = append(errs, err)
	for _, l := range links {
		if name := l.Attrs().Name; strings.HasPrefix(name, opts.linkPrefix()) || name == opts.bridge() {
			errs = append(errs, removeLink(name))
		}
	}
	entries, _ := os.ReadDir(opts.namespaceDir())
	for _, entry := range entries {
		errs = append(errs, removeNamespace(opts.namespace(entry.Name())))
	}
	errs = append(errs, os.RemoveAll(opts.namespaceDir()), os.RemoveAll(opts.fileDir()), leaveSettings(opts))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clear the node network: %w", err)
	}
	return nil
}

// leaveSettings restores the machine's settings if no cloud is left. It checks after our
// own bridge is gone, so that of two clouds that leave at once, one is last.
func leaveSettings(opts Options) error {
	links, err := retry(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if l.Type() == "bridge" && Own(l.Attrs().Name) {
			return nil
		}
	}
	return opts.restoreSettings()
}
