package maintenance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"

	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/enroll"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/membership"
	"github.com/cloudless/cloudless/internal/server/names"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Recover makes the server of a data folder the only one of its cluster. The next start continues with the existing
// state, and removes the other servers before it accepts connections.
func Recover(ctx context.Context, o local.RecoverOptions) (was local.LogEnd, err error) {
	f, err := datadir.OpenExisting(o.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return was, fmt.Errorf("%s is not a data folder: name that of the server that is left with --data-dir", o.DataDir)
	}
	if err != nil {
		return was, err
	}
	defer f.Release()
	if _, err := os.Stat(f.Path("server", "raft")); err != nil {
		return was, fmt.Errorf("data folder %s holds no server: name that of the server that is left with --data-dir", f.Path())
	}
	end, err := consensus.Recover(consensus.Options{
		Dir: f.Path("server", "raft"), Reached: f.ReachedPath(), ServerID: f.ServerUID, Store: state.New(),
		Logger: telemetry.NewLogger(o.Log, slog.LevelWarn, telemetry.LogText),
		Lost: func(others []consensus.Server, newest *state.Snapshot) error {
			return giveUp(ctx, f, wherever(f, others, newest))
		},
	})
	if err == nil && end.Reached > end.Index {
		_, err = fmt.Fprintf(o.Log, "the log of this server had lost the entries %d to %d, which are given up now\n", end.Index+1, end.Reached)
	}
	if err == nil {
		err = recoverNames(f, o)
	}
	return local.LogEnd{Term: end.Term, Index: end.Index}, err
}

// recoverNames makes the server the only one of the group that keeps the names of objects, too.
func recoverNames(f *datadir.Folder, o local.RecoverOptions) error {
	was, err := names.Recover(names.Options{
		Dir: f.NamesPath(), Reached: f.NamesReachedPath(), ServerID: f.ServerUID, Logger: telemetry.NewLogger(o.Log, slog.LevelWarn, telemetry.LogText),
	})
	if err == nil && was.Reached > was.Index {
		_, err = fmt.Fprintf(o.Log, "the log of the names of objects had lost the entries %d to %d, which are given up now\n", was.Index+1, was.Reached)
	}
	return err
}

// giveUp marks the folder if the other servers are lost. The mark comes before any change: without it, the server would
// accept the others again, and they could return as a majority without the changes that follow.
func giveUp(ctx context.Context, f *datadir.Folder, others []consensus.Server) error {
	if err := areLost(ctx, f, others); err != nil {
		return err
	}
	return f.Update(func(id *datadir.Record) { id.Recovered = true })
}

// wherever adds the addresses of the other servers in the state: Raft keeps only their first addresses.
func wherever(f *datadir.Folder, others []consensus.Server, snap *state.Snapshot) []consensus.Server {
	for s := range snap.Servers("") {
		one := consensus.Server{ID: s.GetMetadata().GetUid(), Address: s.GetSpec().GetAddress()}
		known := slices.ContainsFunc(others, func(o consensus.Server) bool { return o.ID == one.ID && o.Address == one.Address })
		if one.ID != f.ServerUID && !known {
			others = append(others, one)
		}
	}
	return others
}

// areLost returns an error if another server leads, knows a leader, which may have joined while this one was away, or
// says that this server was removed: recovery would then split the cluster in two. Servers that answer but have no
// quorum count as lost, and so do those that do not answer.
func areLost(ctx context.Context, f *datadir.Folder, others []consensus.Server) error {
	ca, err := enroll.OpenAuthority(f)
	if err != nil {
		return err
	}
	answers := make(chan error, len(others))
	for _, one := range others {
		go func() { answers <- isLost(ctx, f, ca, one) }() // ends by its own timeout
	}
	for range others {
		if err := <-answers; err != nil {
			return err
		}
	}
	return nil
}

func isLost(ctx context.Context, f *datadir.Folder, ca *identity.CA, one consensus.Server) error {
	led, err := membership.HasLeader(ctx, ca, f.ServerUID, one)
	switch {
	case errors.Is(err, membership.ErrRemoved):
		return fmt.Errorf("the server at %s is not lost: it says that this one was removed from the cluster: remove the data folder with cloudless down --purge --data-dir %s, "+
			"and join again with a new token; or stop that one for good, if this one is to go on in its place", one.Address, f.Path())
	case led:
		return fmt.Errorf("the server at %s is not lost: it leads the cluster, or knows the leader: start this one again with cloudless server --data-dir %s, and it is brought up to date", one.Address, f.Path())
	}
	return nil
}
