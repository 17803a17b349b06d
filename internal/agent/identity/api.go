package identity

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// What one replica may do at its socket.
const (
	maxConnections = 32
	maxStreams     = 64 // on each connection
	maxRequest     = 64 << 10
	callsPerSecond = 50
	callsAtOnce    = 200
)

// firstPatience is how long a call waits for the first certificate, before it says why there is none.
const firstPatience = 5 * time.Second

const (
	maxAudiences = 16
	maxAudience  = 512
)

// limits refuses calls without the header of the Workload API, which a program that was tricked into calling a URL cannot
// send, and calls of a replica that calls too often.
type limits struct{ rate *rate.Limiter }

func newLimits() *limits { return &limits{rate: rate.NewLimiter(callsPerSecond, callsAtOnce)} }

func (l *limits) options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(maxRequest), grpc.MaxHeaderListSize(8 << 10),
		grpc.ConnectionTimeout(5 * time.Second), grpc.ReadBufferSize(4 << 10), grpc.WriteBufferSize(4 << 10),
		grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if err := l.admit(ctx); err != nil {
				return nil, err
			}
			return handler(ctx, request)
		}),
		grpc.StreamInterceptor(func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			if err := l.admit(stream.Context()); err != nil {
				return err
			}
			return handler(service, stream)
		}),
	}
}

func (l *limits) admit(ctx context.Context) error {
	if !slices.Equal(metadata.ValueFromIncomingContext(ctx, "workload.spiffe.io"), []string{"true"}) {
		return status.Error(codes.InvalidArgument, "security header missing from request: send the metadata workload.spiffe.io: true")
	}
	if !l.rate.Allow() {
		return status.Errorf(codes.ResourceExhausted, "this replica calls more than %d times a second: keep the stream of a source open instead of asking again", callsPerSecond)
	}
	return nil
}

// endpoint is the Workload API of one replica. It has no WIT-SVIDs, which are experimental.
type endpoint struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	replica *replica
}

// FetchX509SVID sends the certificate with its key, and again whenever it or the trusted authorities change.
func (e *endpoint) FetchX509SVID(_ *workload.X509SVIDRequest, stream workload.SpiffeWorkloadAPI_FetchX509SVIDServer) error {
	first := time.NewTimer(firstPatience)
	defer first.Stop()
	var sent *svid
	var sentBundle []byte
	for {
		trusted, trustChanged := e.replica.svc.trusted()
		now, changed, problem := e.replica.current()
		if bundle := slices.Concat(trusted...); now != nil && (now != sent || !slices.Equal(bundle, sentBundle)) {
			err := stream.Send(&workload.X509SVIDResponse{Svids: []*workload.X509SVID{{
				SpiffeId: e.replica.id, X509Svid: now.chain, X509SvidKey: now.key, Bundle: bundle,
			}}})
			if err != nil {
				return err
			}
			sent, sentBundle = now, bundle
		}
		if now == nil && sent == nil && final(problem) {
			return unavailable("certificate", problem)
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-changed:
		case <-trustChanged:
		case <-first.C:
			if sent == nil {
				_, _, problem := e.replica.current()
				return unavailable("certificate", problem)
			}
		}
	}
}

// final reports whether another try soon would not help.
func final(problem error) bool { return status.Code(problem) == codes.PermissionDenied }

// unavailable says why a replica gets nothing.
func unavailable(what string, problem error) error {
	switch {
	case final(problem):
		return status.Error(codes.PermissionDenied, status.Convert(problem).Message())
	case problem != nil:
		return status.Errorf(codes.Unavailable, "no server has issued a %s for this replica: %s", what, status.Convert(problem).Message())
	}
	return status.Errorf(codes.Unavailable, "no server has issued a %s for this replica yet", what)
}

// FetchX509Bundles sends the trusted authorities, and again whenever they change.
func (e *endpoint) FetchX509Bundles(_ *workload.X509BundlesRequest, stream workload.SpiffeWorkloadAPI_FetchX509BundlesServer) error {
	for {
		trusted, changed := e.replica.svc.trusted()
		err := stream.Send(&workload.X509BundlesResponse{Bundles: map[string][]byte{e.replica.svc.domain: slices.Concat(trusted...)}})
		if err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-changed:
		}
	}
}

// FetchJWTSVID returns a token for recipients.
func (e *endpoint) FetchJWTSVID(ctx context.Context, request *workload.JWTSVIDRequest) (*workload.JWTSVIDResponse, error) {
	audience := request.GetAudience()
	if len(audience) == 0 || len(audience) > maxAudiences {
		return nil, status.Errorf(codes.InvalidArgument, "audience must be specified: name 1 to %d recipients of the token", maxAudiences)
	}
	for _, one := range audience {
		if one == "" || len(one) > maxAudience {
			return nil, status.Errorf(codes.InvalidArgument, "a recipient of the token must have 1 to %d bytes", maxAudience)
		}
	}
	if id := request.GetSpiffeId(); id != "" && id != e.replica.id {
		return nil, status.Errorf(codes.PermissionDenied, "this replica has the identity %s and no other", e.replica.id)
	}
	text, err := e.replica.jwt(ctx, audience)
	if err != nil {
		return nil, unavailable("token", err)
	}
	return &workload.JWTSVIDResponse{Svids: []*workload.JWTSVID{{SpiffeId: e.replica.id, Svid: text}}}, nil
}

// FetchJWTBundles sends the keys that verify tokens, and again whenever they change.
func (e *endpoint) FetchJWTBundles(_ *workload.JWTBundlesRequest, stream workload.SpiffeWorkloadAPI_FetchJWTBundlesServer) error {
	first := time.NewTimer(firstPatience)
	defer first.Stop()
	var sent []byte
	for {
		set, changed, problem := e.replica.svc.keys.current()
		if set != nil && !slices.Equal(set, sent) {
			if err := stream.Send(&workload.JWTBundlesResponse{Bundles: map[string][]byte{e.replica.svc.domain: set}}); err != nil {
				return err
			}
			sent = set
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-changed:
		case <-first.C:
			if sent == nil {
				return unavailable("set of keys", problem)
			}
		}
	}
}

// ValidateJWTSVID verifies a token of another workload for the caller.
func (e *endpoint) ValidateJWTSVID(ctx context.Context, request *workload.ValidateJWTSVIDRequest) (*workload.ValidateJWTSVIDResponse, error) {
	if request.GetAudience() == "" || request.GetSvid() == "" {
		return nil, status.Error(codes.InvalidArgument, "audience and svid must be specified")
	}
	found, err := e.replica.svc.keys.verify(ctx, request.GetSvid(), request.GetAudience())
	if errors.Is(err, errNoKeys) || ctx.Err() != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	claims, err := structpb.NewStruct(found.Claims)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "the claims of the token are not JSON: "+err.Error())
	}
	return &workload.ValidateJWTSVIDResponse{SpiffeId: found.ID.String(), Claims: claims}, nil
}
