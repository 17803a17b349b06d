package objects

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	loops "github.com/cloudless/cloudless/internal/control/objects"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/relay"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/suggest"
)

// Keeper keeps what the object store promises: the loops on the server that leads the names.
type Keeper interface {
	Status(ctx context.Context) (loops.Status, error)
	RepairNow(ctx context.Context, progress func(loops.Progress)) error
	Scrub(ctx context.Context, nodes []string, rate int64, progress func(loops.Progress)) error
}

// StorageOptions is what a Storage is made of.
type StorageOptions struct {
	Keeper Keeper
	Disks  object.Disks
	Store  *state.Store
	// Leader is the uid of the server that leads the names, empty if there is none; ID is that of this server.
	Leader func() string
	ID     string
	// Conn connects with another server.
	Conn func(ctx context.Context, server string) (*grpc.ClientConn, error)
}

// Storage is the StorageService. Only the server that leads the names knows everything, so others pass calls on to it.
type Storage struct {
	v1.UnsafeStorageServiceServer
	o StorageOptions
}

// NewStorage returns the service.
func NewStorage(o StorageOptions) *Storage { return &Storage{o: o} }

// elsewhere returns the server to ask, or nil if it is this one.
func (s *Storage) elsewhere(ctx context.Context) (v1.StorageServiceClient, error) {
	leader := s.o.Leader()
	switch {
	case leader == s.o.ID:
		return nil, nil
	case leader == "", auth.IsForwarded(ctx):
		return nil, core.Refuse(codes.Unavailable, "no server leads the names of objects now: most servers must run; see: cloudless cluster status")
	}
	conn, err := s.o.Conn(ctx, leader)
	if err != nil {
		return nil, core.Refuse(codes.Unavailable, "server %s, which leads the names of objects, cannot be reached: %s", s.serverName(leader), err)
	}
	return v1.NewStorageServiceClient(conn), nil
}

func (s *Storage) serverName(uid string) string {
	return cmp.Or(s.o.Store.Snapshot().Server(uid).GetMetadata().GetName(), uid)
}

// GetStorageStatus says how the disks are. Without a leader it says what this server knows itself.
func (s *Storage) GetStorageStatus(ctx context.Context, request *v1.GetStorageStatusRequest) (*v1.StorageStatus, error) {
	leader, alone := s.elsewhere(ctx)
	if leader != nil {
		answer, err := leader.GetStorageStatus(relay.Outgoing(ctx), request)
		if status.Code(err) != codes.Unavailable {
			return answer, err
		}
		alone = core.Refuse(codes.Unavailable, "the server that leads the names of objects did not answer: %s", status.Convert(err).Message())
	}
	known, err := s.o.Keeper.Status(ctx)
	if err != nil {
		return nil, cmp.Or(alone, err)
	}
	answer := s.present(known)
	if alone != nil {
		answer.Reasons = append(answer.Reasons, alone.Error())
	}
	return answer, nil
}

func (s *Storage) present(known loops.Status) *v1.StorageStatus {
	answer := &v1.StorageStatus{
		Objects: known.Objects, Bytes: known.Bytes, Chunks: known.Chunks, GarbageChunks: known.Garbage,
		UnderReplicated: known.UnderReplicated, Unreachable: known.Unreachable, Reasons: known.Reasons,
		RepairRate: known.RepairRate, RepairBytesLeft: known.RepairBytesLeft, RepairEnd: stamp(known.RepairEnd),
	}
	if leader := s.o.Leader(); leader != "" {
		answer.Leader = s.serverName(leader)
	}
	for server := range s.o.Store.Snapshot().Servers("") {
		answer.Servers = append(answer.Servers, server.GetMetadata().GetName())
	}
	for _, n := range known.Nodes {
		answer.Nodes = append(answer.Nodes, &v1.NodeStorage{
			Node: n.Name, NodeUid: n.UID, Zone: n.Zone, Class: n.Class, State: n.State, Capacity: n.Capacity, Used: n.Used,
			Free: n.Free, Chunks: n.Chunks, Problem: n.Problem, ScrubTime: stamp(n.Scrubbed), Damaged: n.Damaged,
			Leaving: leaving(n), Emptied: n.Emptied,
		})
	}
	slices.SortFunc(answer.Nodes, func(a, b *v1.NodeStorage) int { return cmp.Compare(a.GetNode(), b.GetNode()) })
	return answer
}

func leaving(n loops.NodeStatus) int64 {
	if n.State != loops.Draining {
		return 0
	}
	return n.Lacking
}

// stamp is not set for the zero time.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// RepairStorage copies what has too few copies, and shows how far that is.
func (s *Storage) RepairStorage(request *v1.RepairStorageRequest, stream grpc.ServerStreamingServer[v1.StorageProgress]) error {
	ctx := stream.Context()
	leader, err := s.elsewhere(ctx)
	if err != nil {
		return err
	}
	if leader != nil {
		return passOn(stream, func(ctx context.Context) (grpc.ServerStreamingClient[v1.StorageProgress], error) {
			return leader.RepairStorage(ctx, request)
		})
	}
	return s.show(stream, func(ctx context.Context, progress func(loops.Progress)) error {
		return s.o.Keeper.RepairNow(ctx, progress)
	})
}

// ScrubStorage has nodes check their chunks.
func (s *Storage) ScrubStorage(request *v1.ScrubStorageRequest, stream grpc.ServerStreamingServer[v1.StorageProgress]) error {
	nodes, err := s.uids(request.GetNodes())
	if err != nil {
		return err
	}
	var rate int64
	if request.GetRate() != "" {
		if rate, err = spec.ParseBytes(request.GetRate()); err != nil {
			return core.Refuse(codes.InvalidArgument, "rate: %s", err)
		}
	}
	leader, err := s.elsewhere(stream.Context())
	if err != nil {
		return err
	}
	if leader != nil {
		return passOn(stream, func(ctx context.Context) (grpc.ServerStreamingClient[v1.StorageProgress], error) {
			return leader.ScrubStorage(ctx, request)
		})
	}
	return s.show(stream, func(ctx context.Context, progress func(loops.Progress)) error {
		return s.o.Keeper.Scrub(ctx, nodes, rate, progress)
	})
}

// uids are those of nodes by name.
func (s *Storage) uids(names []string) (uids []string, err error) {
	all := s.o.Disks.Nodes()
	for _, name := range names {
		at := slices.IndexFunc(all, func(n object.Node) bool { return n.Name == name })
		if at >= 0 {
			uids = append(uids, all[at].UID)
			continue
		}
		known := make([]string, len(all))
		for i, n := range all {
			known[i] = n.Name
		}
		if near := suggest.To(name, slices.Values(known)); near != "" {
			return nil, core.Refuse(codes.NotFound, "node %s does not exist; did you mean %s?", name, near)
		}
		return nil, core.Refuse(codes.NotFound, "node %s does not exist; see: cloudless storage status", name)
	}
	return uids, nil
}

// show sends what work reports. Reports may come from several goroutines.
func (s *Storage) show(stream grpc.ServerStreamingServer[v1.StorageProgress], work func(context.Context, func(loops.Progress)) error) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	names := nodeNames(s.o.Disks)
	var turn sync.Mutex
	err := work(ctx, func(p loops.Progress) {
		turn.Lock()
		defer turn.Unlock()
		if err := stream.Send(&v1.StorageProgress{
			Node: cmp.Or(names[p.Node], p.Node), Done: p.Done, Total: p.Total, Damaged: p.Damaged, Finished: p.Finished, Message: p.Message,
		}); err != nil {
			cancel(err)
		}
	})
	if errors.Is(err, loops.ErrNotLeading) {
		return core.Refuse(codes.Unavailable, "another server has just begun to lead the names of objects: try again")
	}
	return err
}

// passOn sends what another server answers.
func passOn(to grpc.ServerStreamingServer[v1.StorageProgress], begin func(context.Context) (grpc.ServerStreamingClient[v1.StorageProgress], error)) error {
	from, err := begin(relay.Outgoing(to.Context()))
	if err != nil {
		return err
	}
	for {
		progress, err := from.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := to.Send(progress); err != nil {
			return err
		}
	}
}
