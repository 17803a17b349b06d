package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/nodenet"
)

// usedRanges are the addresses that the machine uses already. What cannot be
// found out cannot be avoided; the node says so later if it matters.
func usedRanges() []string {
	const most = 1024 // that a server takes
	prefixes, _ := nodenet.Used()
	var texts []string
	for _, p := range prefixes[:min(len(prefixes), most)] {
		texts = append(texts, p.String())
	}
	return texts
}

// networkOptions are those of the node's network on this machine.
func networkOptions(f *folder, logger *slog.Logger) nodenet.Options {
	return nodenet.Options{ID: f.ID, DataDir: f.sub("network"), RunDir: f.runDir(), Logger: logger}
}

// establishNetwork takes the addresses that the cluster has given. What fails
// here is tried again, and told, when the agent runs.
func establishNetwork(f *folder, given *v1.NodeSpec, logger *slog.Logger) {
	var s nodenet.Subnets
	var err error
	if s.V4, err = netip.ParsePrefix(given.GetSubnetV4()); err == nil {
		if s.V6, err = netip.ParsePrefix(given.GetSubnetV6()); err == nil {
			err = nodenet.Establish(networkOptions(f, logger), s)
		}
	}
	logError(logger, "set up the node's network", err)
}

// lockAddresses waits until no other process on this machine is choosing
// addresses.
func lockAddresses(ctx context.Context) (unlock func(), err error) {
	lock, err := os.Open("/run") // is always there, and leaves nothing behind
	if err != nil {
		return nil, fmt.Errorf("lock the choice of addresses: %w", err)
	}
	for {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() {
				_ = unix.Flock(int(lock.Fd()), unix.LOCK_UN)
				_ = lock.Close()
			}, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = lock.Close()
			return nil, fmt.Errorf("lock the choice of addresses: %w", err)
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			_ = lock.Close()
			return nil, err
		}
	}
}
