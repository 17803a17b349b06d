package client_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
)

type copyServer = grpc.BidiStreamingServer[cloudlessv1.CopyRequest, cloudlessv1.CopyResponse]

func (w *workloads) Copy(s copyServer) error { return w.copy(s) }

func copyDone(s copyServer, why string) error {
	return s.Send(&cloudlessv1.CopyResponse{Message: &cloudlessv1.CopyResponse_Done{Done: &cloudlessv1.CopyDone{Error: why}}})
}

func TestCopyFromGivesTheWholeArchive(t *testing.T) {
	c := (&workloads{copy: func(s copyServer) error {
		first, err := s.Recv()
		if err != nil {
			return err
		}
		if start := first.GetStart(); start.GetWorkload() != "web" || start.GetPath() != "/data" || start.GetReplica() != "web-1" || start.GetInto() {
			return status.Errorf(codes.InvalidArgument, "asked for %v", start)
		}
		for _, response := range []*cloudlessv1.CopyResponse{
			{Message: &cloudlessv1.CopyResponse_Started{Started: &cloudlessv1.CopyStarted{Replica: "web-1", TotalBytes: 8}}},
			{Message: &cloudlessv1.CopyResponse_Data{Data: []byte("one ")}},
			{Message: &cloudlessv1.CopyResponse_Data{Data: []byte("two ")}},
		} {
			if err := s.Send(response); err != nil {
				return err
			}
		}
		return copyDone(s, "")
	}}).dial(t)
	var got bytes.Buffer
	var total int64
	err := c.CopyFrom(t.Context(), client.CopyOptions{
		Workload: "web", Replica: "web-1", Path: "/data", Started: func(_ string, bytes int64) { total = bytes },
	}, &got)
	if err != nil || got.String() != "one two " || total != 8 {
		t.Errorf("%q of %d bytes, %v", &got, total, err)
	}
}

func TestCopyIntoSendsTheWholeArchive(t *testing.T) {
	archive := strings.Repeat("0123456789", 100_000)
	var got bytes.Buffer
	c := (&workloads{copy: func(s copyServer) error {
		for {
			request, err := s.Recv()
			if err != nil {
				return err
			}
			got.Write(request.GetData())
			if request.GetEnd() {
				return copyDone(s, "")
			}
		}
	}}).dial(t)
	if err := c.CopyInto(t.Context(), client.CopyOptions{Workload: "web", Path: "/"}, strings.NewReader(archive)); err != nil || got.String() != archive {
		t.Errorf("%d of %d bytes arrived, %v", got.Len(), len(archive), err)
	}
}

func TestCopySaysWhyItFailed(t *testing.T) {
	broken := errors.New("the disk here is broken")
	for _, c := range []struct {
		name string
		far  func(copyServer) error
		from io.Reader
		want string
	}{
		{"the replica", func(s copyServer) error { return copyDone(s, "no room") }, endless{}, "no room"},
		{"the call", func(copyServer) error { return status.Error(codes.FailedPrecondition, "nothing runs") }, endless{}, "nothing runs"},
		{"the connection", func(copyServer) error { return nil }, endless{}, "ended before the copy had"},
		{"this side", func(s copyServer) error {
			for {
				if _, err := s.Recv(); err != nil {
					return err
				}
			}
		}, io.MultiReader(strings.NewReader("half"), failingReader{broken}), broken.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := (&workloads{copy: c.far}).dial(t)
			err := cl.CopyInto(t.Context(), client.CopyOptions{Workload: "web", Path: "/"}, c.from)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }
