package agent

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
)

// rooted is a node with a running replica "a". Its root is a folder with a file, and a link
// to a file outside.
func rooted(t *testing.T) (n *node, s *session, root, outside string) {
	t.Helper()
	n, s = running(t)
	n.tasks.root, outside = t.TempDir(), filepath.Join(t.TempDir(), "secret")
	for _, err := range []error{
		os.WriteFile(filepath.Join(n.tasks.root, "file"), []byte("inside"), 0o640),
		os.WriteFile(outside, []byte("secret"), 0o600),
		os.Symlink(outside, filepath.Join(n.tasks.root, "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return n, s, n.tasks.root, outside
}

func (s *session) copy(t *testing.T, n *node, uid, path string, into bool) *attached {
	t.Helper()
	s.open(t, &v1.Open{Id: "copy-1", What: &v1.Open_Copy{Copy: &v1.OpenCopy{
		ReplicaUid: uid, Start: &v1.CopyStart{Path: path, Into: into},
	}}})
	return <-n.server.attached
}

// copied is what an agent has sent.
type copied struct {
	started *v1.CopyStarted
	archive bytes.Buffer
	done    *v1.CopyDone
	refusal string
}

func (a *attached) copied(t *testing.T) *copied {
	t.Helper()
	got := &copied{}
	for {
		up, err := a.stream.Recv()
		if errors.Is(err, io.EOF) {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		switch m := up.GetMessage().(type) {
		case *v1.AttachUp_Error:
			got.refusal = m.Error
		case *v1.AttachUp_Copy:
			got.archive.Write(m.Copy.GetData())
			if m.Copy.GetStarted() != nil {
				got.started = m.Copy.GetStarted()
			}
			if m.Copy.GetDone() != nil {
				got.done = m.Copy.GetDone()
			}
		}
	}
}

func (a *attached) sendFiles(t *testing.T, requests ...*v1.CopyRequest) {
	t.Helper()
	for _, request := range requests {
		if err := a.stream.Send(&v1.AttachDown{Message: &v1.AttachDown_Copy{Copy: request}}); err != nil {
			t.Fatal(err)
		}
	}
}

func oneFile(t *testing.T, name, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: 0o640}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func pieces(archive []byte) (all []*v1.CopyRequest) {
	for len(archive) > 0 {
		n := min(len(archive), 1000)
		all = append(all, &v1.CopyRequest{Message: &v1.CopyRequest_Data{Data: archive[:n]}})
		archive = archive[n:]
	}
	return all
}

var endOfFiles = &v1.CopyRequest{Message: &v1.CopyRequest_End{End: true}}

func TestFilesComeOutOfAReplica(t *testing.T) {
	n, s, _, _ := rooted(t)
	stream := s.copy(t, n, "a", "/file", false)
	defer close(stream.end)
	got := stream.copied(t)
	in := tar.NewReader(&got.archive)
	h, err := in.Next()
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(in)
	if err != nil || h.Name != "file" || h.Mode != 0o640 || string(text) != "inside" {
		t.Errorf("%v with %q, %v", h, text, err)
	}
	if got.started.GetReplica() != "web-a" || got.started.GetTotalBytes() != 6 || got.done == nil || got.done.GetError() != "" {
		t.Errorf("started %v, done %v", got.started, got.done)
	}
}

func TestFilesGoIntoAReplica(t *testing.T) {
	n, s, root, _ := rooted(t)
	stream := s.copy(t, n, "a", "/", true)
	defer close(stream.end)
	text := strings.Repeat("new ", 10_000)
	stream.sendFiles(t, append(pieces(oneFile(t, "new", text)), endOfFiles)...)
	if got := stream.copied(t); got.done == nil || got.done.GetError() != "" {
		t.Errorf("done: %v", got.done)
	}
	if there, err := os.ReadFile(filepath.Join(root, "new")); err != nil || string(there) != text {
		t.Errorf("%d bytes arrived, %v", len(there), err)
	}
}

// A copy ends if its stream ends before it has begun, and drops what has arrived already.
func TestCopyEndsWithItsStream(t *testing.T) {
	n, _, _, _ := rooted(t)
	r, root, _, err := n.agent.copyTarget(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Dir.Close()
	stream := &deadStream{arrived: make(chan *v1.AttachDown, 1)}
	stream.arrived <- &v1.AttachDown{Message: &v1.AttachDown_Copy{Copy: pieces(oneFile(t, "file", "x"))[0]}}
	at := &attachment{stream: stream, cancel: func() {}, ended: make(chan struct{})}
	if err := n.agent.copyInto(t.Context(), at, r, root, &v1.CopyStart{Path: "/", Into: true}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the copy ended with %v", err)
	}
	close(stream.arrived)
	at.work.Wait()
}

// deadStream accepts nothing, and still delivers what arrived before.
type deadStream struct {
	grpc.BidiStreamingClient[v1.AttachUp, v1.AttachDown]
	arrived chan *v1.AttachDown
}

func (s *deadStream) Send(*v1.AttachUp) error { return io.ErrClosedPipe }

func (s *deadStream) Recv() (*v1.AttachDown, error) {
	down, ok := <-s.arrived
	if !ok {
		return nil, io.EOF
	}
	return down, nil
}

func TestInterruptedCopyLeavesNothingInTheReplica(t *testing.T) {
	n, s, root, _ := rooted(t)
	stream := s.copy(t, n, "a", "/file", true)
	whole := pieces(oneFile(t, "file", strings.Repeat("x", 10_000)))
	stream.sendFiles(t, whole[:len(whole)/2]...)
	// The server ends the stream, as it does when the caller has gone.
	close(stream.end)
	n.stop() // waits for the agent's work to end
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(root, "file")); err != nil || string(text) != "inside" || len(entries) != 2 {
		t.Errorf("there is %v, and the file says %.20q, %v", entries, text, err)
	}
}

func TestCopyStaysInsideTheReplica(t *testing.T) {
	n, s, _, outside := rooted(t)
	out := s.copy(t, n, "a", "/link", false)
	defer close(out.end)
	if got := out.copied(t); !strings.Contains(got.done.GetError(), "replica web-a: /link does not exist") || got.archive.Len() > 0 {
		t.Errorf("%d bytes came, done %v", got.archive.Len(), got.done)
	}
	in := s.copy(t, n, "a", "/link", true)
	defer close(in.end)
	in.sendFiles(t, append(pieces(oneFile(t, "x", "overwritten")), endOfFiles)...)
	if got := in.copied(t); got.done.GetError() == "" {
		t.Error("a link out of the replica was written through")
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != "secret" {
		t.Errorf("the file outside says %q, %v", text, err)
	}
}

func TestCopyEndsWithTheReplica(t *testing.T) {
	n, s, root, _ := rooted(t)
	stream := s.copy(t, n, "a", "/new", true)
	defer close(stream.end)
	whole := pieces(oneFile(t, "new", strings.Repeat("x", 10_000)))
	stream.sendFiles(t, whole[0])
	n.tasks.exit("a-1", driver.Exit{Code: 1})
	if got := stream.copied(t); !strings.Contains(got.done.GetError(), "the replica ended before the copy had") {
		t.Errorf("done: %v", got.done)
	}
	if _, err := os.Stat(filepath.Join(root, "new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("half a file is there: %v", err)
	}
}

func TestCopyRefusals(t *testing.T) {
	n, s, _, _ := rooted(t)
	stranger := s.copy(t, n, "stranger", "/file", false)
	defer close(stranger.end)
	if got := stranger.copied(t); !strings.Contains(got.refusal, `no replica "stranger"`) {
		t.Errorf("refusal: %q", got.refusal)
	}
	missing := s.copy(t, n, "a", "/nothing", false)
	defer close(missing.end)
	if got := missing.copied(t); got.done.GetError() != "replica web-a: /nothing does not exist" {
		t.Errorf("done: %v", got.done)
	}
}
