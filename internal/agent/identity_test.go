package agent

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent/identity"
)

// A replica that asks for an identity sees its socket and no other. The socket is there again when the agent was killed,
// and gone when the replica is.
func TestReplicaSeesItsIdentitySocket(t *testing.T) {
	n := newNode(t)
	dir, err := os.MkdirTemp("", "ids") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n.sockets = dir
	dial := func() error {
		conn, err := net.Dial("unix", filepath.Join(dir, "a", "workload.sock"))
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	n.start()
	s := n.join()
	a := assignment("a", func(w *v1.WorkloadSpec) { w.Identity = &v1.WorkloadIdentity{} })
	a.Replica.Metadata.Namespace, a.Replica.Spec.Workload = "default", "web"
	s.send(t, full(a, assignment("b")))
	s.await(t, "a", "running")
	s.await(t, "b", "running")
	n.tasks.mu.Lock()
	seen, others := n.tasks.byID["a-1"].Files[identity.MountPath], n.tasks.byID["b-1"].Files[identity.MountPath]
	n.tasks.mu.Unlock()
	if seen != filepath.Join(dir, "a") || others != "" {
		t.Errorf("a sees %q and b sees %q", seen, others)
	}
	if got := n.tasks.environment("a-1")[identity.EndpointVariable]; got != identity.Endpoint {
		t.Errorf("the program finds its socket at %q", got)
	}
	if err := dial(); err != nil {
		t.Error(err)
	}
	n.crash()
	if err := dial(); err == nil {
		t.Error("the socket of a killed agent answers")
	}
	n.start()
	s = n.join()
	for dial() != nil { // the replica's goroutine opens it
		time.Sleep(time.Millisecond)
	}
	s.send(t, &v1.Assignments{Epoch: 1, Full: true, Assign: []*v1.Assignment{assignment("b")}})
	for {
		if _, err := os.Stat(filepath.Join(dir, "a")); errors.Is(err, os.ErrNotExist) {
			break
		}
		time.Sleep(time.Millisecond)
	}
}
