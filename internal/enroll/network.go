package enroll

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent/ingress"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/ingressd"
	"github.com/cloudless/cloudless/internal/mesh"
	"github.com/cloudless/cloudless/internal/netd"
	"github.com/cloudless/cloudless/internal/nodenet"
	"github.com/cloudless/cloudless/internal/programs"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/spec"
)

// most is the number of ranges that a server accepts.
const most = 1024

// usedNetworks are the networks of the machine that no cloud has. Errors are ignored: the node reports a conflict later.
func usedNetworks() (all []*v1.UsedNetwork) {
	networks, _ := nodenet.ForeignNetworks()
	for prefix, link := range networks {
		if len(all) < most {
			all = append(all, &v1.UsedNetwork{Range: prefix.String(), Interface: link})
		}
	}
	return all
}

// usedRanges are the addresses that the machine uses already. Errors are ignored: the node reports a conflict later.
func usedRanges() []string {
	prefixes, _ := nodenet.Used()
	var texts []string
	for _, p := range prefixes[:min(len(prefixes), most)] {
		texts = append(texts, p.String())
	}
	return texts
}

// NetworkOptions are those of the node's network on this machine.
func NetworkOptions(f *datadir.Folder, logger *slog.Logger) nodenet.Options {
	return nodenet.Options{ID: f.ID, Mesh: nodenet.MeshInterface(f.ID), Domain: spec.ServiceDomain, DataDir: f.Path("network"), RunDir: f.RunDir(), Logger: logger}
}

// The network process of a node listens on a socket, and its program and log are in the data folder.
func networkSocket(f *datadir.Folder) string { return filepath.Join(f.RunDir(), "net.sock") }

// meshPort is the UDP port of the mesh. Another one is used where it is taken.
const meshPort = 7701

// OpenMesh makes the way to the node's network process, and says what the agent must know to configure it.
func OpenMesh(f *datadir.Folder, id string, logger *slog.Logger) (*netd.Client, mesh.Setup, error) {
	program, err := programs.Net.Extract(f.Path("network", "bin"))
	if err != nil {
		return nil, mesh.Setup{}, err
	}
	c := netd.NewClient(netd.Options{Program: program, Socket: networkSocket(f), Log: f.Path("network", "log"), Logger: logger})
	return c, mesh.Setup{
		ID: id, Credentials: f.CredentialsPath(), Interface: nodenet.MeshInterface(f.ID), MTU: mesh.MTUFor(nodenet.UplinkMTU()), Port: meshPort,
	}, nil
}

// OpenIngress makes the way to the node's ingress process, which runs only while the node answers for a route.
func OpenIngress(f *datadir.Folder, logger *slog.Logger) *ingress.Ingress {
	return ingress.New(ingress.Ingressd(ingressd.Options{
		Dir: f.RunDir(), LogDir: f.Path("network"), Log: logger,
		Program: func() (string, error) { return programs.Ingress.Extract(f.Path("network", "bin")) },
	}))
}

// ClearNetwork removes the node's network from the machine, and ends what answers for routes.
func ClearNetwork(ctx context.Context, f *datadir.Folder, logger *slog.Logger) error {
	return errors.Join(ingress.Clear(ctx, f.RunDir()), netd.Stop(ctx, networkSocket(f)), mesh.RemoveInterface(nodenet.MeshInterface(f.ID)), nodenet.Clear(NetworkOptions(f, logger)))
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
		if err := sleep.For(ctx, 10*time.Millisecond); err != nil {
			_ = lock.Close()
			return nil, err
		}
	}
}
