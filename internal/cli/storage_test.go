package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// storageService answers what a test says.
type storageService struct {
	cloudlessv1.UnimplementedStorageServiceServer
	status   *cloudlessv1.StorageStatus
	progress []*cloudlessv1.StorageProgress
	err      error
	scrubbed *cloudlessv1.ScrubStorageRequest
}

func (s *storageService) GetStorageStatus(context.Context, *cloudlessv1.GetStorageStatusRequest) (*cloudlessv1.StorageStatus, error) {
	return s.status, s.err
}

func (s *storageService) ScrubStorage(request *cloudlessv1.ScrubStorageRequest, stream grpc.ServerStreamingServer[cloudlessv1.StorageProgress]) error {
	s.scrubbed = request
	return s.send(stream)
}

func (s *storageService) RepairStorage(_ *cloudlessv1.RepairStorageRequest, stream grpc.ServerStreamingServer[cloudlessv1.StorageProgress]) error {
	return s.send(stream)
}

func (s *storageService) send(stream grpc.ServerStreamingServer[cloudlessv1.StorageProgress]) error {
	for _, p := range s.progress {
		if err := stream.Send(p); err != nil {
			return err
		}
	}
	return s.err
}

func healthy() *cloudlessv1.StorageStatus {
	return &cloudlessv1.StorageStatus{
		Objects: 12, Bytes: 3 << 30, Chunks: 800, Leader: "one", Servers: []string{"one", "two"},
		Nodes: []*cloudlessv1.NodeStorage{
			{Node: "one", State: "online", Class: "ssd", Zone: "eu", Capacity: 100 << 30, Used: 3 << 30, Free: 90 << 30, Chunks: 800, ScrubTime: timestamppb.New(time.Now().Add(-3 * time.Hour))},
			{Node: "two", State: "online", Class: "hdd", Capacity: 200 << 30, Used: 3 << 30, Free: 190 << 30, Chunks: 800},
		},
	}
}

func TestStorageStatus(t *testing.T) {
	c := newCluster(t)
	for _, test := range []struct {
		name   string
		change func(*cloudlessv1.StorageStatus)
		want   []string
		never  string
	}{
		{"healthy", func(*cloudlessv1.StorageStatus) {}, []string{
			"Objects:", "12, 3Gi", "complete (800 chunks)", "one, two (one leads)", "NODE", "3h ago", "CLASS", "hdd", "190Gi",
		}, "Repair"},
		{"one copy lacks", func(s *cloudlessv1.StorageStatus) {
			s.UnderReplicated, s.Reasons = 1, []string{"node two is draining: 1 piece of an object is moved to other nodes"}
			s.RepairBytesLeft, s.RepairRate, s.RepairEnd = 1<<30, 64<<20, timestamppb.New(time.Now().Add(90*time.Minute+time.Second))
		}, []string{"1 chunk of 800 with too few copies", "1Gi left at 64Mi/s, done in 90m", "- node two is draining"}, "complete"},
		{"data cannot be reached", func(s *cloudlessv1.StorageStatus) { s.Unreachable = 2 }, []string{"2 chunks on no node that answers"}, "complete"},
		{"garbage", func(s *cloudlessv1.StorageStatus) { s.GarbageChunks = 1 }, []string{"1 chunk to be deleted in a while"}, "1 chunks"},
		{"no leader", func(s *cloudlessv1.StorageStatus) { s.Leader = "" }, []string{"one, two (none leads)"}, ""},
		{"a node with a problem", func(s *cloudlessv1.StorageStatus) { s.Nodes[1].Problem, s.Nodes[1].Damaged = "the disk is full", 4 }, []string{"the disk is full"}, ""},
	} {
		c.storage.status = healthy()
		test.change(c.storage.status)
		got := c.do(t, "storage", "status")
		for _, want := range test.want {
			if !strings.Contains(got.stdout, want) || got.stderr != "" || test.never != "" && strings.Contains(got.stdout, test.never) {
				t.Errorf("%s: %+v, want %q and not %q", test.name, got, want, test.never)
			}
		}
	}
	if got := c.do(t, "storage", "status", "-o", "json"); !strings.Contains(got.stdout, `"leader": "one"`) {
		t.Errorf("%+v", got)
	}
	c.storage.status = &cloudlessv1.StorageStatus{Leader: "one", Servers: []string{"one"}}
	if got := c.do(t, "storage", "status"); got.stderr != "no node stores data yet\n" || strings.Contains(got.stdout, "NODE") {
		t.Errorf("%+v", got)
	}
}

func TestScrubsAndRepairsShowHowTheyEnd(t *testing.T) {
	c := newCluster(t)
	c.storage.progress = []*cloudlessv1.StorageProgress{
		{Node: "one", Done: 1 << 30, Total: 4 << 30},
		{Node: "one", Done: 4 << 30, Total: 4 << 30, Finished: true},
		{Node: "two", Message: "is not connected"},
	}
	c.do(t, "storage", "scrub", "one", "two", "--rate", "1Gi").expect(t, 0, "scrubbing one: 4Gi done, 0 damaged\n", "two is not connected\n")
	if got := c.storage.scrubbed; got.GetRate() != "1Gi" || len(got.GetNodes()) != 2 {
		t.Errorf("the servers were asked for %v", got)
	}
	if got := c.do(t, "storage", "scrub", "-o", "json"); strings.Count(got.stdout, "\n") != 3 || !strings.Contains(got.stdout, `"finished":true`) || got.stderr != "" {
		t.Errorf("%+v", got)
	}

	c.storage.progress = []*cloudlessv1.StorageProgress{{Node: "one", Done: 9, Total: 9, Damaged: 1, Finished: true}}
	c.run(t.Context(), "", "storage", "scrub").expect(t, 1, "scrubbing one: 9 done, 1 damaged\n",
		"cloudless: 1 damaged chunk found on the nodes; copies of others replace what was damaged: see cloudless storage status\n")

	c.storage.progress = []*cloudlessv1.StorageProgress{{Done: 5 << 20, Total: 5 << 20, Finished: true}}
	c.do(t, "storage", "repair").expect(t, 0, "repairing: 5Mi done\n", "")
	c.storage.progress = []*cloudlessv1.StorageProgress{{Finished: true}}
	c.do(t, "storage", "repair").expect(t, 0, "repairing: nothing was to be copied\n", "")
}

func TestScrubsAndRepairsThatFail(t *testing.T) {
	c := newCluster(t)
	c.storage.err = status.Error(codes.NotFound, "node tow does not exist; did you mean two?")
	c.run(t.Context(), "", "storage", "scrub", "tow").expect(t, 1, "", "cloudless: node tow does not exist; did you mean two?\n")
	c.storage.err = status.Error(codes.FailedPrecondition, "another server leads now")
	for _, command := range []string{"status", "repair"} {
		if got := c.run(t.Context(), "", "storage", command); got.code != 1 || !strings.Contains(got.stderr, "another server leads now") {
			t.Errorf("%s: %+v", command, got)
		}
	}
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	c.run(ctx, "", "storage", "scrub").expect(t, 130, "", "cloudless: interrupted\n")
}
