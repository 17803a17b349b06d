package app

import (
	"context"
	"fmt"

	"github.com/cloudless/cloudless/internal/datadir"
)

// removeLost removes the lost servers if cluster recover made this one the only one of its cluster. It runs before the port and the
// links open, so that no other server can interfere while the mark exists.
func (p *controlPlane) removeLost(ctx context.Context, f *datadir.Folder) error {
	if !f.Recovered {
		return nil
	}
	if len(p.consensus.Servers()) != 1 {
		// The others still vote: the recovery was interrupted before it changed anything.
		p.logger.Warn("cluster recover was begun in this data folder and did nothing: run it again if the other servers are lost", "folder", f.Path())
		return f.Update(func(id *datadir.Record) { id.Recovered = false })
	}
	if err := p.consensus.WaitLeader(ctx); err != nil {
		return err
	}
	names, err := p.server.Membership().RevokeOthers(ctx)
	if err != nil {
		return fmt.Errorf("remove the servers that were lost: %w", err)
	}
	// After a start, log entries apply only once this server leads again, and a lost server could be faster. A snapshot
	// applies from the beginning.
	if err := p.consensus.Snapshot(ctx); err != nil {
		return fmt.Errorf("keep that the lost servers were removed: %w", err)
	}
	for _, name := range names {
		p.logger.Warn("a lost server was removed, because this one was made the only one of its cluster", "server", name)
	}
	return f.Update(func(id *datadir.Record) { id.Recovered = false })
}
