package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/coder/websocket"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
)

// execSocket serves exec to clients without gRPC: one JSON message of ExecRequest or
// ExecResponse in each WebSocket frame.
type execSocket struct {
	client v1.WorkloadServiceClient
	auth   *auth.Authenticator
}

const maxSocketFrame = 1 << 20

// socketProtocol is the protocol that browsers offer and the server accepts.
const socketProtocol = "cloudless.v1"

func (e *execSocket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	namespace, workload, ok := execPath(r.URL.Path)
	if !ok {
		http.NotFound(w, r)
		return
	}
	// Accept would answer with headers that HTTP/2 does not have, and so not at all.
	if r.ProtoMajor != 1 || !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		writeError(w, core.StatusOf(core.Refuse(codes.InvalidArgument, "exec is a WebSocket: open one at %s, over HTTP/1.1", r.URL.Path)))
		return
	}
	if err := e.auth.Authorize(core.Caller(r.Context()), v1.WorkloadService_Exec_FullMethodName); err != nil {
		writeError(w, core.StatusOf(err))
		return
	}
	socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{socketProtocol}})
	if err != nil {
		return // Accept has answered
	}
	defer func() { _ = socket.CloseNow() }()
	socket.SetReadLimit(maxSocketFrame)
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(r.Context(), auth.MetadataOf(core.Caller(r.Context()))))
	defer cancel()
	stream, err := e.client.Exec(ctx)
	if err != nil {
		closeSocket(socket, err)
		return
	}
	go func() { // ends when the socket or the call does
		defer cancel()
		for first := true; ; first = false {
			request, err := readRequest(ctx, socket)
			if err != nil {
				return
			}
			if start := request.GetStart(); first && start != nil {
				if err := startAt(start, namespace, workload); err != nil {
					closeSocket(socket, err)
					return
				}
			}
			if stream.Send(request) != nil {
				return
			}
		}
	}()
	closeSocket(socket, e.answer(ctx, stream, socket))
}

func (e *execSocket) answer(ctx context.Context, stream v1.WorkloadService_ExecClient, socket *websocket.Conn) error {
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		data, err := protojson.Marshal(response)
		if err != nil {
			return err
		}
		if err := socket.Write(ctx, websocket.MessageText, data); err != nil {
			return err
		}
	}
}

// startAt sets the workload of a command to that of the path. The message may name the same
// one.
func startAt(start *v1.ExecStart, namespace, workload string) error {
	for _, one := range []struct {
		field string
		said  *string
		path  string
	}{{"namespace", &start.Namespace, namespace}, {"workload", &start.Workload, workload}} {
		if *one.said != "" && *one.said != one.path {
			return core.Refuse(codes.InvalidArgument, "start.%s is %q, and the path says %q: leave it out", one.field, *one.said, one.path)
		}
		*one.said = one.path
	}
	return nil
}

func readRequest(ctx context.Context, socket *websocket.Conn) (*v1.ExecRequest, error) {
	_, data, err := socket.Read(ctx)
	if err != nil {
		return nil, err
	}
	request := &v1.ExecRequest{}
	if err := protojson.Unmarshal(data, proto.Message(request)); err != nil {
		_ = socket.Close(websocket.StatusInvalidFramePayloadData, "a frame must be one JSON message of ExecRequest")
		return nil, err
	}
	return request, nil
}

func closeSocket(socket *websocket.Conn, err error) {
	if err == nil {
		_ = socket.Close(websocket.StatusNormalClosure, "")
		return
	}
	reason := status.Convert(err).Message()
	// A close frame has room for 123 bytes of whole characters.
	_ = socket.Close(websocket.StatusPolicyViolation, strings.ToValidUTF8(reason[:min(len(reason), 120)], ""))
}

// execPath parses /v1/namespaces/{namespace}/workloads/{workload}:exec.
func execPath(path string) (namespace, workload string, ok bool) {
	rest, ok := strings.CutPrefix(strings.TrimSuffix(path, ":exec"), "/v1/namespaces/")
	if !ok {
		return "", "", false
	}
	namespace, workload, ok = strings.Cut(rest, "/workloads/")
	return namespace, workload, ok && namespace != "" && workload != "" && !strings.Contains(namespace+workload, "/")
}
