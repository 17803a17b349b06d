package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli"
	"github.com/cloudless/cloudless/internal/driver/containerd"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// up is the one-machine cloud: a server and an agent in one process. They meet
// over the same port, certificates and streams as if they were far apart.
func up(ctx context.Context, o cli.UpOptions) error {
	if err := mayRunContainers(); err != nil {
		return err
	}
	logger := telemetry.NewLogger(o.Log, o.LogLevel, o.LogFormat)
	var u undo
	defer u.run()
	i, err := openInstruments(ctx, o.Process, "cloudless", logger, &u)
	if err != nil {
		return err
	}
	f, err := openFolderFor(ctx, o.Process)
	if err != nil {
		return runsElsewhere(err, o.APIAddr)
	}
	u.add(f.release)
	o.Ready = f.settles(ctx, o.Ready)
	if err := f.mayServe(); err != nil {
		return err
	}
	if err := f.sameNode(o.Machine); err != nil {
		return err
	}
	if _, err := f.containerd(ctx, o.ContainerdAddress); err != nil {
		f.forsake()
		return err
	}
	if err := f.noticeMove(machineMark("/"), o.Progress, logger); err != nil {
		return err
	}
	o.APIAddr = cmp.Or(o.APIAddr, f.Listen, cli.DefaultAPIAddr)
	if err := f.tryPort(ctx, o.APIAddr); err != nil {
		return err
	}
	link := &clusterLink{}
	o.Progress("starting the control plane and the container runtime")
	told := f.asBefore(planeOptions{
		address: o.APIAddr, version: o.Version, name: o.Machine.Name, announce: o.Announce, clock: o.Clock, election: o.ElectionTimeout,
		maxLogGrowth: o.MaxLogGrowth, certificateTTL: o.CertificateTTL,
	}, nil)
	p, d, err := openBoth(ctx, f, o, told, link, i, logger, &u)
	if err != nil {
		return err
	}
	if err := f.startedAs(told); err != nil {
		return err
	}
	ready := onlyOnce(o.Ready)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.Run(ctx) })
	g.Go(func() error {
		p.sayWhoIsMissing(ctx, f, ready)
		return nil
	})
	g.Go(func() error {
		o.Progress("joining this machine to the cluster")
		if err := p.enrollSelf(ctx, f, o.Machine, logger); err != nil {
			return err
		}
		m, err := openMember(ctx, f, link, d, o.Version, i, logger, &u)
		if err != nil {
			return err
		}
		name, err := p.writeContext(ctx, o.ConfigPath, o.Context)
		if err != nil {
			return err
		}
		return m.Run(ctx, func() {
			ready(fmt.Sprintf("cloudless is ready at %s (node %s)\ncontext %s is in %s\n%s", p.server.Address(), m.name, name, o.ConfigPath, whatNext(f)))
		})
	})
	return endedByContext(g.Wait())
}

// sayWhoIsMissing says that the server runs without one that leads, if that is so for
// long: others have joined it since, and do not run.
func (p *controlPlane) sayWhoIsMissing(ctx context.Context, f *folder, ready func(string)) {
	hope, cancel := context.WithTimeout(ctx, leaderHope)
	defer cancel()
	if err := p.consensus.WaitLeader(hope); err != nil && ctx.Err() == nil {
		ready(p.waitsFor(f))
	}
}

// onlyOnce passes the first word on, for which somebody waits.
func onlyOnce(say func(string)) func(string) {
	var once sync.Once
	return func(message string) { once.Do(func() { say(message) }) }
}

// runsElsewhere refuses another port than that of a cloud that runs already, which
// would be ignored.
func runsElsewhere(err error, wished string) error {
	held, ok := errors.AsType[*cli.AlreadyRunningError](err)
	if !ok {
		return err
	}
	_, wants, wantsErr := net.SplitHostPort(wished)
	_, has, hasErr := net.SplitHostPort(held.Address)
	if wantsErr != nil || hasErr != nil || wants == has || wants == "0" {
		return err
	}
	return fmt.Errorf("process %d runs on %s already, at %s: to have it at %s, stop it first with: cloudless down --data-dir %s",
		held.PID, held.DataDir, held.Address, wished, held.DataDir)
}

// openBoth opens control plane and container runtime side by side, because
// each takes a while and neither needs the other.
func openBoth(ctx context.Context, f *folder, o cli.UpOptions, told planeOptions, link *clusterLink, i *instruments, logger *slog.Logger, u *undo) (p *controlPlane, d *containerd.Driver, err error) {
	var planeUndo undo
	g, both := errgroup.WithContext(ctx)
	g.Go(func() error {
		p, err = openControlPlane(both, f, told, i, logger, &planeUndo)
		return err
	})
	var driverErr error
	g.Go(func() error {
		d, driverErr = openDriver(both, f, o.Machine, link.registryClient(), logger)
		return driverErr
	})
	failed := g.Wait()
	u.add(planeUndo.run)
	if d != nil {
		u.add(func() { logError(logger, "close driver", d.Close()) })
	}
	return p, d, failed
}

// enrollSelf joins this machine on its first start. After a rest longer than
// its certificate lasts it gets a new one from the authority in this process.
func (p *controlPlane) enrollSelf(ctx context.Context, f *folder, m cli.Machine, logger *slog.Logger) error {
	creds, err := identity.LoadCredentials(f.credentialsPath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		token, err := p.createToken(ctx, &v1.CreateTokenRequest{Role: "node", Ttl: "5m"})
		if err != nil {
			return err
		}
		return enroll(ctx, f, m, reachable(p.server.Address()), token.GetSecret(), logger)
	case err != nil:
		return err
	case creds.Trust().Fingerprint() != p.ca.Trust().Fingerprint():
		return otherCluster(f, creds)
	case time.Now().After(creds.NotAfter()):
		key, csr, err := identity.NewKeyAndCSR()
		if err != nil {
			return err
		}
		chain, err := p.server.Certify(csr, creds.ID().Name())
		if err != nil {
			return err
		}
		if creds, err = identity.NewCredentials(key, chain); err != nil {
			return err
		}
		if err := creds.Save(f.credentialsPath()); err != nil {
			return err
		}
	}
	about, err := f.readMembership()
	if err != nil {
		return err
	}
	about.Via = reachable(p.server.Address()) // the address may be another one than last time
	about.Servers = []string{about.Via}
	return f.writeMembership(about)
}

// whatNext is the command that is of most use after a start.
func whatNext(f *folder) string {
	if f.formerNode != "" {
		return fmt.Sprintf("this machine was node %s, whose key is lost: remove that one with: cloudless node rm %s", f.formerNode, f.formerNode)
	}
	return "run something with: cloudless run ./hello --name web --publish 8080:8080"
}
