package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/api"
)

// ErrRemoved says that this node was removed from its cluster, and that none of its
// replicas is left.
var ErrRemoved = errors.New("this node was removed from its cluster")

// isRemoval reports whether a session ended because the cluster removed this node. Only a
// server with the removal in its state says so, and the connection proves that it belongs
// to this node's cluster. Servers of an older epoch are ignored, as in assign: the cluster
// continued without them.
func (a *Agent) isRemoval(err error) bool {
	epoch, removed := api.RemovedNode(err)
	if !removed {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if epoch < a.epoch {
		a.log.Warn("ignored the removal of this node, from a server that the cluster has left behind",
			"epoch", epoch, "newest", a.epoch)
		return false
	}
	return true
}

// endRemoved stops and removes every replica and then returns [ErrRemoved]. If ctx ends
// before, it returns nil: the records say that the replicas must go, and the next agent
// removes the rest.
func (a *Agent) endRemoved(ctx context.Context, why error) error {
	close(a.removed)
	if err := a.ingress.Remove(ctx); err != nil {
		a.log.Error("the removed node may still answer for routes", "error", err)
	}
	a.mu.Lock()
	a.log.Error("this node was removed from its cluster; stopping its replicas", "replicas", len(a.replicas), "error", why)
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
	if err := a.secrets.Destroy(); err != nil {
		a.log.Error("the removed node may still have secrets in memory", "error", err)
	}
	return removalError{why: messageOf(why)}
}

// removalError is ErrRemoved with the server's message.
type removalError struct{ why string }

func (e removalError) Error() string { return e.why }
func (e removalError) Unwrap() error { return ErrRemoved }

// messageOf is a server's message without the gRPC prefix.
func messageOf(err error) string {
	var inner interface{ GRPCStatus() *status.Status }
	if errors.As(err, &inner) {
		return inner.GRPCStatus().Message()
	}
	return err.Error()
}

// Disown makes the next agent on a data folder remove all recorded replicas, because the
// machine has become another node.
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
	// The former node keeps its key until the servers have forgotten it.
	if err := os.Remove(s.meshKeyPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the key of the former node: %w", err)
	}
	return nil
}
