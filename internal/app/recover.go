package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/cloudless/cloudless/internal/cli"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// recoverCluster makes the server of a data folder the only one of its cluster.
// The next start founds nothing: it goes on with what is there.
func recoverCluster(_ context.Context, o cli.RecoverOptions) error {
	f, err := openExistingFolder(o.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not a data folder: name that of the server that is left with --data-dir", o.DataDir)
	}
	if err != nil {
		return err
	}
	defer f.release()
	if _, err := os.Stat(f.sub("server", "raft")); err != nil {
		return fmt.Errorf("data folder %s holds no server: name that of the server that is left with --data-dir", f.path)
	}
	return consensus.Recover(consensus.Options{
		Dir: f.sub("server", "raft"), ServerID: f.ServerUID, Store: state.New(),
		Logger: telemetry.NewLogger(o.Log, slog.LevelWarn, telemetry.LogText),
	})
}
