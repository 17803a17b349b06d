package nodenet

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
)

// Clear takes the network away from the machine: rules, bridge, links,
// namespaces, files and, where no other cloud is here, changed settings. What is
// on disk stays, so that addresses are the same when it comes back. Nothing may
// be attached that still runs.
func Clear(opts Options) error {
	if err := opts.validate(); err != nil {
		return fmt.Errorf("clear the node network: %w", err)
	}
	errs := []error{deleteTable(opts.table())}
	links, err := retry(netlink.LinkList)
	errs = append(errs, err)
	here, others := false, false
	for _, l := range links {
		name := l.Attrs().Name
		switch {
		case strings.HasPrefix(name, opts.linkPrefix()), name == opts.bridge():
			here = true
			errs = append(errs, removeLink(name))
		case strings.HasPrefix(name, bridgePrefix) && l.Type() == "bridge":
			others = true
		}
	}
	entries, _ := os.ReadDir(opts.namespaceDir())
	for _, entry := range entries {
		errs = append(errs, removeNamespace(opts.namespace(entry.Name())))
	}
	errs = append(errs, os.RemoveAll(opts.namespaceDir()), os.RemoveAll(opts.fileDir()))
	if here && !others { // a machine on which we were not has none of our settings
		errs = append(errs, restoreSettings(opts))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clear the node network: %w", err)
	}
	return nil
}

// restoreSettings puts back what forwardPackets has changed.
func restoreSettings(opts Options) error {
	if _, err := os.Stat(opts.statePath()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	s, err := openStore(opts.statePath())
	if err != nil {
		return err
	}
	var errs []error
	for _, pass := range []bool{true, false} { // forwarding first: the rest follows from it
		for name, before := range s.state.Settings {
			if strings.Contains(name, "forward") != pass {
				continue
			}
			if _, err := setSetting(name, before); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.change(func(st *state) (bool, error) {
		changed := len(st.Settings) > 0
		clear(st.Settings)
		return changed, nil
	})
}
