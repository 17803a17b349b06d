package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
)

func execUp(stream attachClient, response *v1.ExecResponse) {
	_ = stream.Send(&v1.AttachUp{Message: &v1.AttachUp_Exec{Exec: response}})
}

// echo is a command that writes its input to its output, and exits when its input ends. The
// command "silent" writes nothing. A message on left means that the server has released a
// stream.
func echo(left chan<- struct{}) serveOpen {
	return func(open *v1.Open, stream attachClient) {
		defer func() {
			if left != nil {
				left <- struct{}{}
			}
		}()
		command := open.GetExec().GetStart().GetCommand()
		execUp(stream, &v1.ExecResponse{Message: &v1.ExecResponse_Started{Started: &v1.ExecStarted{Replica: strings.Join(command, " ")}}})
		for {
			down, err := stream.Recv()
			switch {
			case err != nil:
				return
			case down.GetExec().GetCloseStdin():
				execUp(stream, &v1.ExecResponse{Message: &v1.ExecResponse_Exit{Exit: &v1.ExecExit{Code: 42}}})
			case command[0] != "silent":
				execUp(stream, &v1.ExecResponse{Message: &v1.ExecResponse_Stdout{Stdout: down.GetExec().GetStdin()}})
			}
		}
	}
}

func execStart(workload string, command ...string) *v1.ExecRequest {
	return &v1.ExecRequest{Message: &v1.ExecRequest_Start{Start: &v1.ExecStart{Workload: workload, Command: command, Stdin: true}}}
}

var closeStdin = &v1.ExecRequest{Message: &v1.ExecRequest_CloseStdin{CloseStdin: true}}

func stdin(text string) *v1.ExecRequest {
	return &v1.ExecRequest{Message: &v1.ExecRequest_Stdin{Stdin: []byte(text)}}
}

// exec starts a command and waits until it runs.
func (c *cluster) exec(ctx context.Context, u *user, command ...string) v1.WorkloadService_ExecClient {
	c.t.Helper()
	stream, err := u.Exec(ctx)
	must(c.t, err)
	must(c.t, stream.Send(execStart("web", command...)))
	first, err := stream.Recv()
	must(c.t, err)
	if first.GetStarted() == nil {
		c.t.Fatalf("exec began with %v", first)
	}
	return stream
}

func TestExecTransfersInputOutputAndExitCode(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.work("n1", echo(nil))
	c.create(op, workload("web"))
	stream := c.exec(c.ctx, op, "cat", "-")
	for i := range 20 {
		want := fmt.Sprintf("line %d", i)
		must(t, stream.Send(stdin(want)))
		if got, err := stream.Recv(); err != nil || string(got.GetStdout()) != want {
			t.Fatalf("sent %q, received %v, %v", want, got, err)
		}
	}
	must(t, stream.Send(closeStdin))
	if got, err := stream.Recv(); err != nil || got.GetExit().GetCode() != 42 {
		t.Errorf("the end is %v, %v", got, err)
	}
	_, err := stream.Recv()
	wantCode(t, core.StatusOf(ignoreEOF(err)), codes.OK)
}

func ignoreEOF(err error) error {
	if err != nil && err.Error() == "EOF" {
		return nil
	}
	return err
}

func TestExecEndsOnBothSidesWhenOneLeaves(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	left := make(chan struct{}, 1)
	w := c.work("n1", echo(left))
	c.create(admin, workload("web"))

	t.Run("the caller", func(t *testing.T) {
		ctx, leave := context.WithCancel(c.ctx)
		c.exec(ctx, admin, "silent")
		leave()
		<-left
	})
	t.Run("the caller's token", func(t *testing.T) {
		secret := c.newTokenSecret(&v1.CreateTokenRequest{Name: "ci", Role: core.RoleOperator})
		stream := c.exec(c.ctx, c.dial(nil, secret), "silent")
		_, err := admin.DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "ci"})
		must(t, err)
		_, err = stream.Recv()
		wantCode(t, err, codes.Unauthenticated, "revoked")
		<-left
	})
	t.Run("the node", func(t *testing.T) {
		stream := c.exec(c.ctx, admin, "silent")
		w.leave()
		_, err := stream.Recv()
		wantCode(t, err, codes.Unavailable)
		<-left
	})
	t.Run("no node", func(t *testing.T) {
		c.disconnected(w.uid())
		stream, err := admin.Exec(c.ctx)
		must(t, err)
		must(t, stream.Send(execStart("web", "cat")))
		_, err = stream.Recv()
		wantCode(t, err, codes.Unavailable, "node n1 is not connected")
	})
}

func TestImpossibleExecIsRefused(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	m := c.join("n1")
	session := m.connect(c.ctx)
	assignments(t, session)
	made, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	r := assignments(t, session).GetAssign()[0].GetReplica()
	_, err = op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("empty", replicasOf(0))})
	must(t, err)
	try := func(first *v1.ExecRequest) error {
		t.Helper()
		stream, err := op.Exec(c.ctx)
		must(t, err)
		must(t, stream.Send(first))
		_, err = stream.Recv()
		return err
	}
	wantCode(t, try(stdin("x")), codes.InvalidArgument, "begins with start")
	wantCode(t, try(execStart("web")), codes.InvalidArgument, "command")
	wantCode(t, try(execStart("nope", "sh")), codes.NotFound, "workload nope does not exist")
	wantCode(t, try(execStart("empty", "sh")), codes.FailedPrecondition, "has no replicas", "workload scale empty 1")
	wantCode(t, try(execStart("web", "sh")), codes.FailedPrecondition, "is in phase placed")
	named := execStart("web", "sh")
	named.GetStart().Replica = "web-nope"
	wantCode(t, try(named), codes.NotFound, "has no replica web-nope")

	// The session ends while the server waits for a stream of the node.
	must(t, report(session, r.GetMetadata().GetUid(), &v1.ReplicaStatus{Phase: spec.PhaseRunning}))
	c.running(made.GetMetadata().GetUid(), 1)
	refused := make(chan error, 1)
	go func() { refused <- try(execStart("web", "sh")) }()
	for {
		down, err := session.Recv()
		must(t, err)
		if down.GetOpen() != nil {
			break
		}
	}
	must(t, session.CloseSend())
	wantCode(t, <-refused, codes.Unavailable, "node n1 was disconnected")
}

func TestAgentRefusesExecWithAReason(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.work("n1", func(_ *v1.Open, stream attachClient) {
		_ = stream.Send(&v1.AttachUp{Message: &v1.AttachUp_Error{Error: "there is no sh in it"}})
		awaitEnd(stream)
	})
	c.create(op, workload("web"))
	stream, err := op.Exec(c.ctx)
	must(t, err)
	must(t, stream.Send(execStart("web", "sh")))
	_, err = stream.Recv()
	wantCode(t, err, codes.FailedPrecondition, "there is no sh in it")
}

// socket opens a WebSocket to exec.
func (c *cluster) socket(token, path string) (*websocket.Conn, *http.Response, error) {
	return websocket.Dial(c.ctx, "https://cloudless"+path, &websocket.DialOptions{
		HTTPClient: c.webWithoutHTTP2(), HTTPHeader: http.Header{"Authorization": {"Bearer " + token}},
	})
}

func writeFrame(t *testing.T, ctx context.Context, socket *websocket.Conn, request *v1.ExecRequest) {
	t.Helper()
	data, err := protojson.Marshal(request)
	must(t, err)
	must(t, socket.Write(ctx, websocket.MessageText, data))
}

func readFrame(t *testing.T, ctx context.Context, socket *websocket.Conn) *v1.ExecResponse {
	t.Helper()
	_, data, err := socket.Read(ctx)
	must(t, err)
	response := &v1.ExecResponse{}
	must(t, protojson.Unmarshal(data, response))
	return response
}

// A message that would have no effect ends the call with an error.
func TestExecRefusesMessagesWithoutEffect(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	left := make(chan struct{}, 1)
	c.work("n1", echo(left))
	c.create(op, workload("web"))
	signal := func(name string) *v1.ExecRequest {
		return &v1.ExecRequest{Message: &v1.ExecRequest_Signal{Signal: name}}
	}
	deaf := execStart("web", "silent")
	deaf.GetStart().Stdin = false
	for _, test := range []struct {
		first, then *v1.ExecRequest
		why         string
	}{
		{execStart("web", "silent"), execStart("web", "silent"), "only the first"},
		{execStart("web", "silent"), signal("SIGNOTHING"), "must be the name of a signal"},
		{execStart("web", "silent"), &v1.ExecRequest{}, "says nothing"},
		{execStart("web", "silent"), &v1.ExecRequest{Message: &v1.ExecRequest_CloseStdin{}}, "must be true"},
		{deaf, stdin("x"), "set stdin in start"},
	} {
		stream, err := op.Exec(c.ctx)
		must(t, err)
		must(t, stream.Send(test.first))
		_, err = stream.Recv() // it runs
		must(t, err)
		must(t, stream.Send(test.then))
		_, err = stream.Recv()
		wantCode(t, err, codes.InvalidArgument, test.why)
		<-left
	}
	wrong := execStart("web", "silent")
	wrong.GetStart().Env = map[string]string{"A=B": "c"}
	stream, err := op.Exec(c.ctx)
	must(t, err)
	must(t, stream.Send(wrong))
	_, err = stream.Recv()
	wantCode(t, err, codes.InvalidArgument, "must be the name of an environment variable")
}

func TestExecWithoutAnyMessageIsRefused(t *testing.T) {
	c := newCluster(t)
	stream, err := c.as(core.RoleOperator).Exec(c.ctx)
	must(t, err)
	must(t, stream.CloseSend())
	_, err = stream.Recv()
	wantCode(t, err, codes.InvalidArgument, "exec begins with start")
}

// Browsers cannot set headers of a WebSocket. So they send the token as the name of a
// subprotocol, which the server never selects.
func TestBrowserSendsItsTokenAsASubprotocol(t *testing.T) {
	c := newCluster(t)
	c.work("n1", echo(make(chan struct{}, 1)))
	c.create(c.as(core.RoleOperator), workload("web"))
	dial := func(path, token string) (*websocket.Conn, *http.Response, error) {
		return websocket.Dial(c.ctx, "https://cloudless"+path, &websocket.DialOptions{
			HTTPClient: c.webWithoutHTTP2(), Subprotocols: []string{"cloudless.v1", "bearer." + token},
		})
	}
	const path = "/v1/namespaces/default/workloads/web:exec"
	socket, answer, err := dial(path, c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleOperator}))
	must(t, err)
	defer func() { _ = socket.CloseNow() }()
	if got := answer.Header.Get("Sec-WebSocket-Protocol"); got != "cloudless.v1" {
		t.Errorf("the selected protocol is %q", got)
	}
	writeFrame(t, c.ctx, socket, execStart("", "cat"))
	if readFrame(t, c.ctx, socket).GetStarted() == nil {
		t.Error("the command does not run")
	}
	for _, refused := range []struct{ path, token string }{
		{path, "clapi_wrong"}, {"/v1/workloads:watch", c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleOperator})},
	} {
		if _, answer, err := dial(refused.path, refused.token); err == nil || answer.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %v", refused.path, err)
		}
	}
}

func TestExecOverWebSocket(t *testing.T) {
	c := newCluster(t)
	token := c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleOperator})
	left := make(chan struct{}, 1)
	c.work("n1", echo(left))
	c.create(c.as(core.RoleOperator), workload("web"))
	const path = "/v1/namespaces/default/workloads/web:exec"

	socket, _, err := c.socket(token, path)
	must(t, err)
	writeFrame(t, c.ctx, socket, execStart("", "cat")) // the path names the workload
	if readFrame(t, c.ctx, socket).GetStarted() == nil {
		t.Fatal("the command does not run")
	}
	writeFrame(t, c.ctx, socket, stdin("hello"))
	if got := readFrame(t, c.ctx, socket); string(got.GetStdout()) != "hello" {
		t.Errorf("received %v", got)
	}
	writeFrame(t, c.ctx, socket, closeStdin)
	if got := readFrame(t, c.ctx, socket); got.GetExit().GetCode() != 42 {
		t.Errorf("received %v", got)
	}
	_, _, err = socket.Read(c.ctx)
	if websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("the socket ended with %v", err)
	}
	<-left

	// The command ends when its caller leaves.
	socket, _, err = c.socket(token, path)
	must(t, err)
	writeFrame(t, c.ctx, socket, execStart("", "silent"))
	readFrame(t, c.ctx, socket)
	must(t, socket.CloseNow())
	<-left

	// Refused messages and malformed frames end with an error.
	for want, frame := range map[string]string{
		"no replica web-nope":              `{"start":{"replica":"web-nope","command":["sh"]}}`,
		"a frame must be one JSON message": `{"strat":{}}`,
		"command":                          `{"start":{}}`,
		"exec begins with start":           `{"stdin":"eA=="}`,
		"leave it out":                     `{"start":{"workload":"db","command":["sh"]}}`,
	} {
		socket, _, err = c.socket(token, path)
		must(t, err)
		must(t, socket.Write(c.ctx, websocket.MessageText, []byte(frame)))
		if _, _, err = socket.Read(c.ctx); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", frame, err, want)
		}
	}
	viewer := c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleViewer})
	if _, response, err := c.socket(viewer, path); err == nil || response.StatusCode != http.StatusForbidden {
		t.Errorf("exec as viewer: %v, %v", response, err)
	}
	if _, response, err := c.socket("", path); err == nil || response.StatusCode != http.StatusUnauthorized {
		t.Errorf("exec as nobody: %v, %v", response, err)
	}
	if _, response, err := c.socket(token, "/v1/workloads/web:exec"); err == nil || response.StatusCode != http.StatusNotFound {
		t.Errorf("exec at a wrong path: %v, %v", response, err)
	}
}

// recorded are the events with one of these reasons: who, where and what.
func (c *cluster) recorded(u *user, reason string) (lines []string) {
	c.t.Helper()
	events, err := u.ListEvents(c.ctx, &v1.ListEventsRequest{})
	must(c.t, err)
	for _, e := range events.GetItems() {
		if s := e.GetSpec(); s.GetReason() == reason {
			lines = append(lines, s.GetActor()+" "+s.GetObjectKind()+" "+s.GetWorkload()+" "+s.GetMessage())
		}
	}
	return lines
}

// The events say who ran which command where, even if the agent refused it.
func TestExecIsRecorded(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.work("n1", func(_ *v1.Open, stream attachClient) {
		_ = stream.Send(&v1.AttachUp{Message: &v1.AttachUp_Error{Error: "the replica has just ended"}})
		awaitEnd(stream)
	})
	c.create(op, workload("web"))
	stream, err := op.Exec(c.ctx)
	must(t, err)
	must(t, stream.Send(execStart("web", "sh", "-c", "echo \x1b[2J")))
	_, err = stream.Recv()
	wantCode(t, err, codes.FailedPrecondition, "has just ended")
	copying, err := op.Copy(c.ctx)
	must(t, err)
	must(t, copying.Send(&v1.CopyRequest{Message: &v1.CopyRequest_Start{Start: &v1.CopyStart{Workload: "web", Path: "/etc/my file", Into: true}}}))
	_, err = copying.Recv()
	wantCode(t, err, codes.FailedPrecondition, "has just ended")
	for range 3 {
		forwarding, err := op.Forward(c.ctx)
		must(t, err)
		must(t, forwarding.Send(&v1.ForwardRequest{Message: &v1.ForwardRequest_Start{Start: &v1.ForwardStart{Workload: "web", Port: 80}}}))
		_, err = forwarding.Recv()
		wantCode(t, err, codes.FailedPrecondition, "has just ended")
	}
	for reason, want := range map[string]string{
		"Exec": `replica web sh -c "echo \x1b[2J"`, "Copy": `replica web files into "/etc/my file"`, "Forward": "replica web connections to port 80",
	} {
		got := c.recorded(op, reason)
		if len(got) != 1 || !strings.HasPrefix(got[0], "user/") || !strings.HasSuffix(got[0], want) {
			t.Errorf("%s is recorded as %q, want one event by the user that ends with %s", reason, got, want)
		}
	}
}
