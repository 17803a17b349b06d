package agent

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/api"
)

// ErrRemoved says that this node was removed from its cluster, and that none of
// its replicas is left.
var ErrRemoved = errors.New("this node was removed from its cluster")

// isRemoval reports whether a session ended because the cluster removed this
// node. Only a server that holds the removal in its state says so, which the
// connection proves to be a server of this node's cluster. Servers of an older
// epoch are ignored, as in assign: the cluster went on without them.
func (a *Agent) isRemoval(err error) bool {
	epoch, removed := api.RemovedNode(err)
	if !removed {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if epoch < a.epoch {
		a.log.Warn("ignored that this node was removed: it comes from a server without which the cluster has gone on",
			"epoch", epoch, "newest", a.epoch)
		return false
	}
	return true
}

// endRemoved stops and removes every replica and then returns [ErrRemoved]. If ctx
// ends before, it returns nil: the records say that the replicas are to go, and
// the next agent removes what is left.
func (a *Agent) endRemoved(ctx context.Context, why error) error {
	close(a.removed)
	a.mu.Lock()
	a.log.Error("this node was removed from its cluster; its replicas are stopped", "replicas", len(a.replicas), "error", why)
	a.removeOthers(nil)
	count, longest := len(a.replicas), time.Duration(0)
	for _, r := range a.replicas {
		_, grace := stopOf(r.wanted().assignment)
		longest = max(longest, grace)
	}
	a.mu.Unlock()
	if a.ending != nil && count > 0 {
		a.ending(count, longest)
	}
	a.lives.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return removalError{why: said(why)}
}

// removalError is ErrRemoved with what the server said.
type removalError struct{ why string }

func (e removalError) Error() string { return e.why }
func (e removalError) Unwrap() error { return ErrRemoved }

// said is what a server said, without the words of gRPC.
func said(err error) string {
	var inner interface{ GRPCStatus() *status.Status }
	if errors.As(err, &inner) {
		return inner.GRPCStatus().Message()
	}
	return err.Error()
}

// Disown has the next agent on a data folder remove all replicas that are recorded
// there, because they are those of a node that the machine is no more.
func Disown(dataDir string) error {
	s, err := openStore(filepath.Join(dataDir, storeDir))
	if err != nil {
		return err
	}
	records, err := s.load()
	if err != nil {
		return err
	}
	for _, rec := range records {
		rec.Removed = true
		if err := s.save(rec); err != nil {
			return err
		}
	}
	return nil
}
