package storage

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	loops "github.com/cloudless/cloudless/internal/control/objects"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/state"
)

const (
	// mostNews wait for the leader of the cluster. Those behind them are only logged.
	mostNews = 256
	// newsPatience is how long the leader may take to record one, and newsPause how soon it is asked again.
	newsPatience, newsPause = 10 * time.Second, time.Second
)

// News makes events of what the loops of the object store tell. The loops run on the server that leads the names, and events
// are written by the one that leads the cluster.
type News struct {
	core    *core.Core
	conn    func(ctx context.Context, server string) (*grpc.ClientConn, error)
	waiting chan loops.Event
}

// NewNews returns News that reach other servers by conn.
func NewNews(c *core.Core, conn func(ctx context.Context, server string) (*grpc.ClientConn, error)) *News {
	return &News{core: c, conn: conn, waiting: make(chan loops.Event, mostNews)}
}

// tell never waits.
func (n *News) tell(e loops.Event) {
	level := slog.LevelInfo
	if e.Warning {
		level = slog.LevelWarn
	}
	n.core.Logger.Log(context.Background(), level, e.Message, "reason", e.Reason, "node", e.Node)
	select {
	case n.waiting <- e:
	default:
	}
}

// run records what is told until ctx ends, in order.
func (n *News) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-n.waiting:
			for n.record(ctx, e) != nil && sleep.For(ctx, newsPause) == nil {
			}
		}
	}
}

func (n *News) record(ctx context.Context, e loops.Event) error {
	ctx, cancel := context.WithTimeout(ctx, newsPatience)
	defer cancel()
	request := &v1.RecordStorageEventRequest{NodeUid: e.Node, Warning: e.Warning, Reason: e.Reason, Message: e.Message}
	return core.TellLeader(ctx, n.core, n.conn, request, n.RecordStorageEvent, v1.PeerServiceClient.RecordStorageEvent)
}

// RecordStorageEvent implements the PeerService.
func (n *News) RecordStorageEvent(ctx context.Context, request *v1.RecordStorageEventRequest) (*v1.RecordStorageEventResponse, error) {
	severity := state.SeverityInfo
	if request.GetWarning() {
		severity = state.SeverityWarning
	}
	_, err := n.core.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		var about state.Object = snap.Cluster()
		if node := snap.Node(request.GetNodeUid()); node != nil {
			about = node
		}
		b.Create(state.NewEvent(state.NewUID(), n.core.Now(), about, severity, request.GetReason(), request.GetMessage(), n.core.Actor(ctx)))
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &v1.RecordStorageEventResponse{}, nil
}
