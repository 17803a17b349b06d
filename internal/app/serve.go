package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/driver/containerd"
	"github.com/cloudless/cloudless/internal/enroll"
	"github.com/cloudless/cloudless/internal/maintenance"
	"github.com/cloudless/cloudless/internal/server/membership"
	"github.com/cloudless/cloudless/internal/systemd"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// service is a process with a server, and with the machine's node if node is not nil. Server and node connect over the
// same port, certificates and streams as on two machines.
type service struct {
	local.ServerOptions
	node *local.Machine
	// prepare makes the folder ready for a server, and decides at which address others reach it.
	prepare func(*datadir.Folder, *local.Reach) error
	// sameRole refuses a running process with another role than this one; nil accepts every server.
	sameRole func(*datadir.AlreadyRunningError) error
	// ready is called once, with a message for the user.
	ready func(string)

	// context is the name of the context that this process has written.
	context atomic.Pointer[string]

	folder      *datadir.Folder
	instruments *instruments
	logger      *slog.Logger
	plane       *controlPlane
	driver      *containerd.Driver // nil without a node
	link        *clusterLink
	// serverGone and nodeGone are closed when the cluster has removed the server or the node. The process ends when both
	// are.
	serverGone, nodeGone chan struct{}
}

// run serves until ctx ends. It removes what a failed first start has created.
func (s *service) run(ctx context.Context) (err error) {
	if s.node != nil {
		if err := mayRunContainers(); err != nil {
			return err
		}
	}
	s.logger = telemetry.NewLogger(s.Log, s.LogLevel, s.LogFormat)
	protect(s.logger)
	var u undo
	defer u.run()
	if s.instruments, err = openInstruments(ctx, s.Process, s.name(), s.logger, &u); err != nil {
		return err
	}
	if s.folder, err = s.openFolder(ctx); err != nil {
		return err
	}
	f := s.folder
	u.add(f.Release)
	if err := f.UpdateHolder(func(h *datadir.Holder) { h.Server, h.Node = true, s.node != nil }); err != nil {
		return err
	}
	u.add(func() {
		if err != nil {
			logError(s.logger, "remove what a failed start has created", maintenance.Abandon(context.WithoutCancel(ctx), f, s.ConfigPath, s.logger))
		}
	})
	s.ready = onlyOnce(func(message string) {
		f.Keep()
		_ = f.MarkStarted(ctx) // without it other processes wait longer
		s.Ready(message)
	})
	if err := s.begin(ctx); err != nil {
		return err
	}
	if err := s.open(ctx, &u); err != nil {
		return err
	}
	s.serverGone, s.nodeGone = make(chan struct{}), make(chan struct{})
	return endedByContext(together(ctx, s.parts()...))
}

// protect makes the kernel spare this process when memory runs out. A server may run as any user, and then cannot be
// protected.
func protect(logger *slog.Logger) {
	if err := systemd.Protect(); err != nil && os.Geteuid() == 0 {
		logger.Warn("The kernel may end this process when memory runs out.", "error", err)
	}
}

// name is the name of the process in traces.
func (s *service) name() string {
	if s.node != nil {
		return "cloudless"
	}
	return "cloudless-server"
}

// begin checks that the role can run on the folder, and prepares the folder.
func (s *service) begin(ctx context.Context) error {
	f := s.folder
	if err := s.mayBegin(ctx, f); err != nil {
		return err
	}
	if err := f.NoticeMove(datadir.MachineMark("/"), s.Progress, s.logger); err != nil {
		return err
	}
	return s.prepare(f, &s.Reach)
}

// mayBegin checks that the role can run on the folder. It changes nothing.
func (s *service) mayBegin(ctx context.Context, f *datadir.Folder) error {
	if err := f.CheckServer(); err != nil {
		return err
	}
	if s.node != nil {
		if err := f.CheckSameNode(requestOf(*s.node)); err != nil {
			return err
		}
		if err := enroll.CheckRequest(requestOf(*s.node)); err != nil {
			return err
		}
		if _, err := containerdAddress(ctx, f, s.node.ContainerdAddress); err != nil {
			return err
		}
	}
	if s.ConfigPath == "" || f.Cluster != "" {
		return nil
	}
	return client.CheckConfig(s.ConfigPath) // before founding a cluster that no client could call
}

// open opens control plane and container runtime in parallel, because both are slow and independent.
func (s *service) open(ctx context.Context, u *undo) error {
	told := asBefore(s.folder, planeOptions{
		address: s.APIAddr, advertise: s.Advertise, peer: s.Peer, name: s.Reach.Name, version: s.Version,
		announce: s.Announce, clock: s.Clock, election: s.ElectionTimeout,
		maxLogGrowth: s.MaxLogGrowth, certificateTTL: s.CertificateTTL,
	}, s.Zone)
	doing := "opening the replicated state"
	if s.node != nil {
		doing = "starting the control plane and the container runtime"
	}
	s.Progress(doing)
	s.link = &clusterLink{}
	var planeUndo undo
	g, both := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		s.plane, err = openControlPlane(both, s.folder, told, s.instruments, s.logger, &planeUndo)
		return err
	})
	if s.node != nil {
		g.Go(func() (err error) {
			s.driver, err = openDriver(both, s.folder, *s.node, s.link.registryClient(), s.logger)
			return err
		})
	}
	err := g.Wait()
	u.add(planeUndo.run)
	if s.driver != nil {
		u.add(func() { logError(s.logger, "close driver", s.driver.Close()) })
	}
	if err != nil {
		return err
	}
	return startedAs(s.folder, told)
}

// runPlane runs the server. If the server was removed from its cluster, it ends, and the node of this machine continues
// with the other servers.
func (s *service) runPlane(ctx context.Context) error {
	err := s.plane.Run(ctx)
	if s.node == nil || !errors.Is(err, membership.ErrRemoved) {
		return err
	}
	close(s.serverGone)
	logError(s.logger, "close port", s.plane.server.Close())
	s.logger.Error("this server was removed from its cluster and has ended; the node of this machine goes on", "error", err)
	select {
	case <-ctx.Done():
		return nil
	case <-s.nodeGone:
		return err
	}
}
