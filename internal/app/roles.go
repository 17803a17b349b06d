package app

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"

	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/enroll"
)

// up runs this machine's server and node. On a new machine it founds a cluster.
func up(ctx context.Context, o local.UpOptions) error {
	o.Reach.Name = o.Machine.Name
	s := &service{
		ServerOptions: local.ServerOptions{
			Process: o.Process, ConfigPath: o.ConfigPath, Context: o.Context,
			Reach: o.Reach,
		},
		node: &o.Machine,
		prepare: func(f *datadir.Folder, reach *local.Reach) error {
			listenAgain(f, reach)
			return f.TryPort(ctx, reach.APIAddr)
		},
	}
	return s.run(ctx)
}

// runServer is the role of a server alone.
func runServer(ctx context.Context, o local.ServerOptions) error {
	s := &service{ServerOptions: o, prepare: func(f *datadir.Folder, reach *local.Reach) error {
		listenAgain(f, reach)
		return f.TryPort(ctx, reach.APIAddr)
	}}
	return s.run(ctx)
}

// runAgent is the role of a machine that has joined before.
func runAgent(ctx context.Context, o local.AgentOptions) error {
	err := serveNode(ctx, o.Process, o.Machine, func(f *datadir.Folder, logger *slog.Logger) (func() error, error) {
		if _, err := os.Stat(f.CredentialsPath()); errors.Is(err, fs.ErrNotExist) {
			return nil, enroll.NotJoined(f.Path())
		}
		if err := checkServers(ctx, f, o.Process); err != nil {
			return nil, err
		}
		return nil, enroll.WarnExpired(f, logger)
	})
	if held, ok := errors.AsType[*datadir.AlreadyRunningError](err); ok {
		return cmp.Or(runsLess(held, false, true), err)
	}
	return err
}

// join is the role of a machine that becomes a node or a server now. On a machine that has joined already it continues
// as that member and does not use the token.
func join(ctx context.Context, o local.JoinOptions) error {
	if o.Role == "server" {
		return joinServer(ctx, o)
	}
	err := serveNode(ctx, o.Process, o.Machine, func(f *datadir.Folder, logger *slog.Logger) (func() error, error) {
		enrolls, err := enroll.Node(ctx, f, enroll.NodeOptions{
			Address: o.Address, Token: o.Token, Request: requestOf(o.Machine), Progress: o.Progress, Logger: logger,
		})
		if err != nil || enrolls != nil {
			return enrolls, err
		}
		return nil, checkServers(ctx, f, o.Process)
	})
	if held, ok := errors.AsType[*datadir.AlreadyRunningError](err); ok {
		return enroll.CheckRunningNode(ctx, held, o.Token, o.Address)
	}
	return err
}

// requestOf is what a machine asks for when it becomes a node.
func requestOf(m local.Machine) datadir.NodeRequest {
	return datadir.NodeRequest{Name: m.Name, Labels: m.Labels}
}

// joinServer is the role of a machine that becomes a server now, and a node as well unless NoNode is set.
func joinServer(ctx context.Context, o local.JoinOptions) error {
	s := &service{
		ServerOptions: local.ServerOptions{Process: o.Process, Reach: o.Reach},
		prepare: func(f *datadir.Folder, reach *local.Reach) error {
			endpoint, err := enroll.Server(ctx, f, enroll.ServerOptions{
				Address: o.Address, Token: o.Token, Name: o.Reach.Name, Zone: zoneOf(f, o.Reach.Zone), Version: o.Version,
				Endpoint: datadir.Endpoint{Listen: reach.APIAddr, Advertise: reach.Advertise}, DefaultPort: local.DefaultPort,
				Progress: o.Progress,
			})
			if err != nil {
				f.RemoveIfNew()
				return err
			}
			reach.APIAddr, reach.Advertise = endpoint.Listen, endpoint.Advertise
			return nil
		},
		sameRole: func(held *datadir.AlreadyRunningError) error { return enroll.CheckRunningServer(held, o.Token) },
	}
	if !o.NoNode {
		s.node = &o.Machine
	}
	return s.run(ctx)
}

// listenAgain is the given endpoint, or else the last one.
func listenAgain(f *datadir.Folder, reach *local.Reach) {
	endpoint := f.ListenAgain(datadir.Endpoint{Listen: reach.APIAddr, Advertise: reach.Advertise})
	reach.APIAddr, reach.Advertise = cmp.Or(endpoint.Listen, local.DefaultAPIAddr), endpoint.Advertise
}

// zoneOf is the zone of a server: the given one, or else the last one.
func zoneOf(f *datadir.Folder, given *string) string {
	if given != nil {
		return *given
	}
	return f.Zone
}
