package enroll

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
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/nodenet"
)

// usedRanges are the addresses that the machine uses already. Errors are ignored: the node reports a conflict later.
func usedRanges() []string {
	const most = 1024 // a server accepts no more
	prefixes, _ := nodenet.Used()
	var texts []string
	for _, p := range prefixes[:min(len(prefixes), most)] {
		texts = append(texts, p.String())
	}
	return texts
}

// NetworkOptions are those of the node's network on this machine.
func NetworkOptions(f *datadir.Folder, logger *slog.Logger) nodenet.Options {
	return nodenet.Options{ID: f.ID, DataDir: f.Path("network"), RunDir: f.RunDir(), Logger: logger}
}

// establishNetwork sets up the addresses that the cluster has given. The agent retries what fails here, and reports it.
func establishNetwork(f *datadir.Folder, given *v1.NodeSpec, logger *slog.Logger) {
	var s nodenet.Subnets
	var err error
	if s.V4, err = netip.ParsePrefix(given.GetSubnetV4()); err == nil {
		if s.V6, err = netip.ParsePrefix(given.GetSubnetV6()); err == nil {
			err = nodenet.Establish(NetworkOptions(f, logger), s)
		}
	}
	if err != nil {
		logger.Error("set up the node's network", "error", err)
	}
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
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			_ = lock.Close()
			return nil, err
		}
	}
}
