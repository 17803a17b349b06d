package server

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// newGateway turns HTTP/JSON into gRPC calls over the inner listener. Streams
// are JSON lines; exec is a WebSocket.
func (s *Server) newGateway() (http.Handler, error) {
	conn, err := s.inner.dial()
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
		// No header of the caller becomes metadata: identities cannot be forged.
		runtime.WithIncomingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithOutgoingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithMetadata(func(_ context.Context, r *http.Request) metadata.MD { return gatewayMetadata(r) }),
		runtime.WithRoutingErrorHandler(refuseRoute),
	)
	for _, register := range []func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error{
		v1.RegisterWorkloadServiceHandler, v1.RegisterNodeServiceHandler, v1.RegisterClusterServiceHandler,
		v1.RegisterTokenServiceHandler, v1.RegisterImageServiceHandler, v1.RegisterEventServiceHandler,
		v1.RegisterPlanServiceHandler, v1.RegisterServerServiceHandler, v1.RegisterNamespaceServiceHandler,
		v1.RegisterExplainServiceHandler,
	} {
		if err := register(s.stopping, mux, conn); err != nil {
			return nil, err
		}
	}
	exec := &execSocket{client: v1.NewWorkloadServiceClient(conn)}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ":exec") {
			exec.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, withBody(withConsistency(r)))
	}), nil
}

// refuseRoute answers requests for which there is no call. The library takes a
// method that a path does not have for something that is not there yet.
func refuseRoute(ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
	if code != http.StatusMethodNotAllowed {
		runtime.DefaultRoutingErrorHandler(ctx, mux, m, w, r, code)
		return
	}
	why := status.Errorf(codes.Unimplemented, "%s cannot be done at %s: see /openapi.json for what can", r.Method, r.URL.Path)
	runtime.HTTPError(ctx, mux, m, w, r, &runtime.HTTPStatusError{HTTPStatus: code, Err: why})
}

// beStrict makes strictQuery the parser of all gateways of this process. The
// library keeps it in one place for all of them, so that setting it with each
// would be a race between servers that start at the same moment.
var beStrict = sync.OnceFunc(func() { runtime.NewServeMux(runtime.SetQueryParameterParser(strictQuery{})) })

// strictQuery refuses parameters that the request does not have, which the
// parser of the gateway leaves out in silence.
type strictQuery struct{ runtime.DefaultQueryParser }

func (q strictQuery) Parse(target proto.Message, values url.Values, filter *utilities.DoubleArray) error {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		field := fieldAt(target.ProtoReflect().Descriptor(), key)
		if field == nil {
			return fmt.Errorf("unknown parameter %q", key)
		}
		if err := q.DefaultQueryParser.Parse(target, url.Values{key: values[key]}, filter); err != nil {
			return fmt.Errorf("parameter %s: must be %s, not %q", key, wantedOf(field), strings.Join(values[key], ","))
		}
	}
	return nil
}

// fieldAt is the field of a message at a path such as page.size, nil if there is none.
func fieldAt(message protoreflect.MessageDescriptor, path string) protoreflect.FieldDescriptor {
	name, rest, nested := strings.Cut(path, ".")
	if message == nil {
		return nil
	}
	field := message.Fields().ByTextName(name)
	if field == nil {
		field = message.Fields().ByJSONName(name)
	}
	if field == nil || !nested {
		return field
	}
	return fieldAt(field.Message(), rest)
}

// wantedOf says what a parameter must be.
func wantedOf(field protoreflect.FieldDescriptor) string {
	switch field.Kind() {
	case protoreflect.BoolKind:
		return "true or false"
	case protoreflect.Int32Kind, protoreflect.Int64Kind, protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		return "a whole number"
	case protoreflect.MessageKind:
		if field.Message().FullName() == "google.protobuf.Timestamp" {
			return "a time such as 2006-01-02T15:04:05Z"
		}
	}
	return "a single value"
}
