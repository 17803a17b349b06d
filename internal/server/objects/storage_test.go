package objects_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	loops "github.com/cloudless/cloudless/internal/control/objects"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/objecttest"
	"github.com/cloudless/cloudless/internal/server/core/coretest"
	"github.com/cloudless/cloudless/internal/server/objects"
	"github.com/cloudless/cloudless/internal/state"
)

// keeper is a leader's loops.
type keeper struct {
	scrubbed []string
	rate     int64
}

func (k *keeper) Status(context.Context) (loops.Status, error) {
	return loops.Status{Leading: true, Objects: 3, UnderReplicated: 2, Reasons: []string{"node b is offline"}, Nodes: []loops.NodeStatus{
		{Node: object.Node{UID: "uid-b", Name: "b", Class: "hdd"}, State: loops.Offline},
		{Node: object.Node{UID: "uid-a", Name: "a", Class: "ssd", Capacity: 100}, State: loops.Online},
	}}, nil
}

func (k *keeper) RepairNow(_ context.Context, progress func(loops.Progress)) error {
	progress(loops.Progress{Done: 1, Total: 2})
	progress(loops.Progress{Done: 2, Total: 2, Finished: true})
	return nil
}

func (k *keeper) Scrub(_ context.Context, nodes []string, rate int64, progress func(loops.Progress)) error {
	k.scrubbed, k.rate = nodes, rate
	progress(loops.Progress{Node: nodes[0], Done: 5, Total: 5, Finished: true})
	return nil
}

// storage is the service of a server, and a client of it.
func storage(t *testing.T, id, leader string, conn *grpc.ClientConn) (*keeper, *grpc.ClientConn) {
	t.Helper()
	k := &keeper{}
	service := objects.NewStorage(objects.StorageOptions{
		Keeper: k, Disks: objecttest.NewDisks("a", "b"), Store: state.New(), ID: id, Leader: func() string { return leader },
		Conn: func(context.Context, string) (*grpc.ClientConn, error) {
			if conn == nil {
				return nil, errors.New("it is down")
			}
			return conn, nil
		},
	})
	return k, serve(t, func(s *grpc.Server) { v1.RegisterStorageServiceServer(s, service) })
}

func TestAnyServerPassesCallsToTheLeaderOfTheNames(t *testing.T) {
	k, leader := storage(t, "one", "one", nil)
	_, other := storage(t, "two", "one", leader)
	client := v1.NewStorageServiceClient(other)
	status, err := client.GetStorageStatus(t.Context(), &v1.GetStorageStatusRequest{})
	must(t, err)
	if status.GetObjects() != 3 || status.GetUnderReplicated() != 2 || status.GetLeader() != "one" || status.GetNodes()[0].GetNode() != "a" || status.GetNodes()[1].GetState() != "offline" {
		t.Errorf("the status is %v", status)
	}
	scrub, err := client.ScrubStorage(t.Context(), &v1.ScrubStorageRequest{Nodes: []string{"b"}, Rate: "1Mi"})
	must(t, err)
	if got := all(t, scrub); len(got) != 1 || got[0].GetNode() != "b" || !slices.Equal(k.scrubbed, []string{"uid-b"}) || k.rate != 1<<20 {
		t.Errorf("the scrub of %v at %d answered %v", k.scrubbed, k.rate, got)
	}
	repair, err := client.RepairStorage(t.Context(), &v1.RepairStorageRequest{})
	must(t, err)
	if got := all(t, repair); len(got) != 2 || !got[1].GetFinished() {
		t.Errorf("the repair answered %v", got)
	}
}

func all(t *testing.T, stream grpc.ServerStreamingClient[v1.StorageProgress]) (progress []*v1.StorageProgress) {
	t.Helper()
	for {
		p, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return progress
		}
		must(t, err)
		progress = append(progress, p)
	}
}

func TestWithoutALeaderThereIsStillAStatus(t *testing.T) {
	_, alone := storage(t, "two", "", nil)
	client := v1.NewStorageServiceClient(alone)
	status, err := client.GetStorageStatus(t.Context(), &v1.GetStorageStatusRequest{})
	must(t, err)
	if len(status.GetReasons()) != 2 || len(status.GetNodes()) != 2 {
		t.Errorf("the status is %v", status)
	}
	repair, err := client.RepairStorage(t.Context(), &v1.RepairStorageRequest{})
	must(t, err)
	_, err = repair.Recv()
	coretest.WantCode(t, err, codes.Unavailable, "cloudless cluster status")

	_, other := storage(t, "two", "one", nil)
	repair, err = v1.NewStorageServiceClient(other).RepairStorage(t.Context(), &v1.RepairStorageRequest{})
	must(t, err)
	_, err = repair.Recv()
	coretest.WantCode(t, err, codes.Unavailable, "server one", "it is down")
}

func TestAnUnknownNodeIsNotScrubbed(t *testing.T) {
	_, conn := storage(t, "one", "one", nil)
	scrub, err := v1.NewStorageServiceClient(conn).ScrubStorage(t.Context(), &v1.ScrubStorageRequest{Nodes: []string{"c"}})
	must(t, err)
	_, err = scrub.Recv()
	coretest.WantCode(t, err, codes.NotFound, "node c does not exist")
}
