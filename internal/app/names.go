package app

import (
	"context"

	"google.golang.org/grpc"

	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/server/membership"
	"github.com/cloudless/cloudless/internal/server/names"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// openNames opens this server's part in the group that keeps the names of objects.
func (p *controlPlane) openNames(ctx context.Context, f *datadir.Folder, o planeOptions, i *instruments, u *undo) (err error) {
	p.names, err = names.Open(ctx, names.Options{
		Dir: f.NamesPath(), Reached: f.NamesReachedPath(), ServerID: f.ServerUID, Address: membership.AdvertisedAddress(o.advertise, o.address),
		Network: p.peers.NamesRaft(), Addresses: p.peers.AddressOf,
		Conn: func(ctx context.Context, server string) (*grpc.ClientConn, error) {
			return p.server.Membership().Conns().Ready(ctx, server)
		},
		ElectionTimeout: o.election, MaxLogGrowth: o.maxLogGrowth, Metrics: telemetry.NewNames(i.registry), Logger: p.logger,
	})
	if err != nil {
		return err
	}
	u.add(func() { logError(p.logger, "close the names of objects", p.names.Close()) })
	return nil
}

// runNames keeps the members of the group as the control group has them.
func (p *controlPlane) runNames(ctx context.Context) error {
	return p.names.Run(ctx, names.Control{
		Store: p.store, Members: p.peers.Members,
		Voters: func() int { return spec.VotersOf(p.store.Snapshot().Cluster().GetSpec()) },
	})
}

// foundNames lets a server found the group if none has.
func (p *controlPlane) foundNames(ctx context.Context) error {
	return p.names.ChooseFounder(ctx, p.store, p.consensus)
}
