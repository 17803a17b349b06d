package telemetry

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
)

// RequestIDHeader carries the id of a call, as gRPC metadata and as an HTTP
// header, in both directions.
const RequestIDHeader = "x-request-id"

// maxRequestID is the longest id that is accepted from a caller.
const maxRequestID = 64

type requestKey struct{}

// WithRequestID gives the call in ctx an id: the caller's own if it is valid, otherwise a
// new one.
func WithRequestID(ctx context.Context, wanted string) (context.Context, string) {
	if !sane(wanted) {
		wanted = newRequestID()
	}
	return context.WithValue(ctx, requestKey{}, wanted), wanted
}

// RequestID is the id of the call in ctx, empty outside of calls.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestKey{}).(string)
	return id
}

// sane reports whether an id can be used in a log line and in a header as it is.
func sane(id string) bool {
	if id == "" || len(id) > maxRequestID {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.', c == ':':
		default:
			return false
		}
	}
	return true
}

// newRequestID need not be hard to guess, only unique: it grants nothing.
func newRequestID() string {
	var id [16]byte
	binary.BigEndian.PutUint64(id[:8], rand.Uint64())
	binary.BigEndian.PutUint64(id[8:], rand.Uint64())
	return hex.EncodeToString(id[:])
}
