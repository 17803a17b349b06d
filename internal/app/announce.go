package app

import (
	"context"

	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/discover"
)

// prepareAnnouncement prepares the answer to machines that look for servers.
func (p *controlPlane) prepareAnnouncement(f *datadir.Folder, o planeOptions) {
	if !o.announce {
		return
	}
	p.announcement = &discover.AnnounceOptions{
		Name: f.ServerUID, Authorities: p.authorities,
		Listen: p.server.Address(), Advertise: o.advertise, Logger: p.logger,
	}
}

// authorities are the fingerprints of those that are trusted now.
func (p *controlPlane) authorities() (all []string) {
	for _, one := range p.ca.Trust().Fingerprints() {
		all = append(all, one.String())
	}
	return all
}

// announceOnNetwork lets machines of the same network find this server. The server runs on if that fails.
func (p *controlPlane) announceOnNetwork(ctx context.Context) error {
	if p.announcement == nil {
		return nil
	}
	if err := discover.Announce(ctx, *p.announcement); err != nil {
		p.logger.Warn("cloudless join --discover does not find this server", "error", err)
	}
	return nil
}
