package gateway

import (
	"context"
	"net/http"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// newCalls turns HTTP/JSON into gRPC calls over the inner listener. Streams
// are JSON lines; exec is a WebSocket.
func (s *gateway) newCalls() (http.Handler, error) {
	conn, err := s.inner.Dial()
	if err != nil {
		return nil, err
	}
	context.AfterFunc(s.stopping, func() { _ = conn.Close() })
	beStrict()
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, bodies{&runtime.HTTPBodyMarshaler{Marshaler: &runtime.JSONPb{
			MarshalOptions:   protojson.MarshalOptions{},
			UnmarshalOptions: protojson.UnmarshalOptions{DiscardUnknown: false}, // a misspelt field is an error
		}}}),
		runtime.WithErrorHandler(func(ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
			runtime.DefaultHTTPErrorHandler(ctx, mux, m, w, r, wrongBody(r, err))
		}),
		// No header of the caller becomes metadata, so identities cannot be forged.
		runtime.WithIncomingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithOutgoingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithMetadata(func(_ context.Context, r *http.Request) metadata.MD { return gatewayMetadata(r) }),
		runtime.WithRoutingErrorHandler(refuseRoute),
		runtime.WithMiddlewares(refuseStreams, refuseParameters),
		runtime.WithForwardResponseOption(beginAnswer),
	)
	if err := v1.RegisterHandlers(s.stopping, mux, conn); err != nil {
		return nil, err
	}
	exec := &execSocket{client: v1.NewWorkloadServiceClient(conn), auth: s.auth}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ":exec") {
			exec.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, withBody(withConsistency(r)))
	}), nil
}

// refuseRoute answers requests without a matching call. For a wrong HTTP method, the
// library would answer that it is not implemented yet.
func refuseRoute(ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
	var why error
	switch code {
	case http.StatusMethodNotAllowed:
		why = status.Errorf(codes.Unimplemented, "%s cannot be done at %s: see /openapi.json for what can", r.Method, r.URL.Path)
	case http.StatusNotFound:
		why = status.Errorf(codes.NotFound, "there is nothing at %s: see /openapi.json for what there is", r.URL.Path)
	default:
		runtime.DefaultRoutingErrorHandler(ctx, mux, m, w, r, code)
		return
	}
	runtime.HTTPError(ctx, mux, m, w, r, &runtime.HTTPStatusError{HTTPStatus: code, Err: why})
}
