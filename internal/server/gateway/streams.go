package gateway

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/proto"

	"github.com/cloudless/cloudless/internal/server/core"
)

// beginAnswer sends the head of the answer when a stream begins. The gateway library calls it without a message at the
// beginning of a stream, even of one that is refused, and would otherwise wait for the first message.
func beginAnswer(ctx context.Context, w http.ResponseWriter, message proto.Message) error {
	if told, _ := runtime.ServerMetadataFromContext(ctx); message != nil || !core.HasBegun(told.HeaderMD) {
		return nil
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	return http.NewResponseController(w).Flush()
}

// refuseStreams gives a refused stream the shape of every other refusal. The library would make the reason a line of
// the stream, which is right only after the stream has begun.
func refuseStreams(next runtime.HandlerFunc) runtime.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, path map[string]string) {
		next(&streamAnswer{ResponseWriter: w}, r, path)
	}
}

// streamAnswer is the answer of a call that may be a stream.
type streamAnswer struct {
	http.ResponseWriter
	begun, refused bool
}

// WriteHeader does nothing once the answer has begun, which the library does not know.
func (a *streamAnswer) WriteHeader(code int) {
	if a.begun {
		return
	}
	a.begun, a.refused = true, code >= http.StatusBadRequest
	a.ResponseWriter.WriteHeader(code)
}

func (a *streamAnswer) Write(data []byte) (int, error) {
	a.begun = true
	if !a.refused {
		return a.ResponseWriter.Write(data)
	}
	var line struct{ Error json.RawMessage }
	if err := json.Unmarshal(data, &line); err != nil || line.Error == nil {
		return a.ResponseWriter.Write(data)
	}
	if _, err := a.ResponseWriter.Write(line.Error); err != nil {
		return 0, err
	}
	return len(data), nil
}

func (a *streamAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
