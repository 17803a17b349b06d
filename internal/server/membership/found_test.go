package membership

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/state"
)

// If the address of the first server is in the default range of the nodes, the cluster gets another range. Otherwise the
// first node could not reach the server.
func TestNewClusterAvoidsTheAddressOfItsServer(t *testing.T) {
	dir, store := t.TempDir(), state.New()
	sealer, err := identity.OpenOrCreateSealer(filepath.Join(dir, "kek.json"))
	must.Succeed(t, err)
	agreed, err := consensus.Open(t.Context(), consensus.Options{
		Dir: filepath.Join(dir, "raft"), ServerID: "s-1", Address: "127.0.0.1:0", Store: store, Logger: slog.New(slog.DiscardHandler), Bootstrap: true,
	})
	must.Succeed(t, err)
	defer func() { must.Succeed(t, agreed.Close()) }()
	must.Succeed(t, agreed.WaitLeader(t.Context()))
	_, err = Found(t.Context(), agreed, sealer, Site{Address: "10.64.0.10:7700"})
	must.Succeed(t, err)
	if got := store.Snapshot().Cluster().GetSpec().GetRangeV4(); got != "10.128.0.0/10" {
		t.Errorf("the range is %s", got)
	}
}
