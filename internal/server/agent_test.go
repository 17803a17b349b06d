package server

import (
	"context"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// member is a machine that has enrolled, with its own connection.
type member struct {
	*user
	c     *cluster
	node  *v1.Node
	creds *identity.Credentials
}

func (m *member) uid() string { return m.node.GetMetadata().GetUid() }

// join enrolls a machine as the real agent does.
func (c *cluster) join(name string) *member {
	c.t.Helper()
	m, err := c.enroll(name, c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode}))
	must(c.t, err)
	return m
}

func (c *cluster) enroll(name, token string) (*member, error) {
	key, csr, err := identity.NewKeyAndCSR()
	must(c.t, err)
	answer, err := c.dial(nil, "").Enroll(c.ctx, &v1.EnrollRequest{Token: token, Csr: csr, Name: name})
	if err != nil {
		return nil, err
	}
	creds, err := identity.NewCredentials(key, answer.GetCertificates())
	must(c.t, err)
	return &member{user: c.dial(creds, ""), c: c, node: answer.GetNode(), creds: creds}, nil
}

type (
	sessionClient = grpc.BidiStreamingClient[v1.SessionUp, v1.SessionDown]
	attachClient  = grpc.BidiStreamingClient[v1.AttachUp, v1.AttachDown]
)

// machineStatus is that of a machine with room for a few replicas.
func machineStatus() *v1.NodeStatus {
	return &v1.NodeStatus{
		Capacity: &v1.NodeResources{Cpu: "4", Memory: "8Gi"},
		Drivers:  []*v1.DriverInfo{{Name: "container"}},
	}
}

// connect begins a session and says hello.
func (m *member) connect(ctx context.Context, replicas ...*v1.ReplicaReport) sessionClient {
	m.c.t.Helper()
	stream, err := m.Session(ctx)
	must(m.c.t, err)
	must(m.c.t, stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Hello{Hello: &v1.Hello{Status: machineStatus(), Replicas: replicas}}}))
	return stream
}

func report(stream sessionClient, uid string, status *v1.ReplicaStatus) error {
	return stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Report{Report: &v1.Report{
		Replicas: []*v1.ReplicaReport{{Uid: uid, Status: status}},
	}}})
}

// receive receives the next message that is more than a sign of life, which may come
// at any time.
func receive(t *testing.T, stream sessionClient) *v1.SessionDown {
	t.Helper()
	for {
		down, err := stream.Recv()
		must(t, err)
		if down.GetAlive() == nil && down.GetNetwork() == nil && down.GetIngress() == nil && down.GetSecrets() == nil && down.GetTrust() == nil {
			return down
		}
	}
}

// ending is why a session ends, whatever is said before.
func ending(stream sessionClient) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

// assignments receives the next message, which must be assignments.
func assignments(t *testing.T, stream sessionClient) *v1.Assignments {
	t.Helper()
	down := receive(t, stream)
	if down.GetAssignments() == nil {
		t.Fatalf("received %v instead of assignments", down)
	}
	return down.GetAssignments()
}

// worker is a machine whose agent does what it is told: replicas run and stop
// at once, and streams are served by a function.
type worker struct {
	*member
	// leave ends the session and all streams, and waits for that.
	leave func()
}

// serveOpen plays the agent's side of a log or exec stream.
type serveOpen func(open *v1.Open, stream attachClient)

func (c *cluster) work(name string, serve serveOpen) *worker {
	c.t.Helper()
	return c.join(name).work(serve)
}

func (m *member) work(serve serveOpen) *worker {
	m.c.t.Helper()
	ctx, cancel := context.WithCancel(m.c.ctx)
	var running sync.WaitGroup
	stream := m.connect(ctx)
	assignments(m.c.t, stream)
	m.c.until(func(snap *state.Snapshot) bool { return snap.Node(m.uid()).GetStatus().GetState() == "ready" })
	running.Go(func() {
		for {
			down, err := stream.Recv()
			if err != nil {
				return
			}
			if open := down.GetOpen(); open != nil {
				running.Go(func() { m.attach(ctx, open, serve) })
			}
			for _, a := range down.GetAssignments().GetAssign() {
				if report(stream, a.GetReplica().GetMetadata().GetUid(), obey(a.GetReplica())) != nil {
					return
				}
			}
		}
	})
	w := &worker{member: m, leave: func() {
		cancel()
		running.Wait()
	}}
	m.c.t.Cleanup(w.leave)
	return w
}

// obey is the status of a replica that does at once what is wanted of it.
func obey(r *v1.Replica) *v1.ReplicaStatus {
	status := proto.CloneOf(r.GetStatus())
	status.Phase = spec.PhaseRunning
	if status.GetStartTime() == nil {
		status.StartTime = timestamppb.Now()
	}
	if r.GetSpec().GetDesired() == spec.DesiredStopped {
		status.Phase = spec.PhaseStopped
	}
	return status
}

func (m *member) attach(ctx context.Context, open *v1.Open, serve serveOpen) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := m.Attach(ctx)
	if err != nil {
		return
	}
	if stream.Send(&v1.AttachUp{Message: &v1.AttachUp_Id{Id: open.GetId()}}) == nil {
		serve(open, stream)
	}
}

// idle serves streams by doing nothing until the server lets go of them.
func idle(_ *v1.Open, stream attachClient) { awaitEnd(stream) }

// awaitEnd waits until the server has let go of the stream.
func awaitEnd(stream attachClient) {
	for {
		if _, err := stream.Recv(); err != nil {
			return
		}
	}
}

// workload is a small one whose image is not in the cluster's registry.
func workload(name string, change ...func(*v1.Workload)) *v1.Workload {
	w := &v1.Workload{
		Metadata: &v1.Metadata{Name: name},
		Spec:     &v1.WorkloadSpec{Image: "example.com/app:1", Replicas: proto.Int32(1), Network: "none"},
	}
	for _, f := range change {
		f(w)
	}
	return w
}

// create creates a workload and waits until as many replicas run as it wants.
func (c *cluster) create(u *user, w *v1.Workload) *v1.Workload {
	c.t.Helper()
	made, err := u.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: w})
	must(c.t, err)
	c.running(made.GetMetadata().GetUid(), int(w.GetSpec().GetReplicas()))
	return made
}

// hasSession reports whether a node is connected to this server.
func (c *cluster) hasSession(node string) bool {
	connected, _ := c.sessions.Connected(node)
	return connected
}

// disconnected waits until the server has noticed that a node's session has ended.
func (c *cluster) disconnected(node string) {
	c.t.Helper()
	for {
		connected, changed := c.sessions.Connected(node)
		if !connected {
			return
		}
		select {
		case <-changed:
		case <-c.ctx.Done():
			c.t.Fatal("the server never noticed that the session has ended")
		}
	}
}
