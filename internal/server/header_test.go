package server

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// recordedHeader is a call whose header is kept.
type recordedHeader struct{ md metadata.MD }

func (h *recordedHeader) context(incoming metadata.MD) context.Context {
	return grpc.NewContextWithServerTransportStream(metadata.NewIncomingContext(context.Background(), incoming), h)
}

func (*recordedHeader) Method() string { return "/test/Call" }

func (h *recordedHeader) SetHeader(md metadata.MD) error {
	h.md = metadata.Join(h.md, md)
	return nil
}

func (h *recordedHeader) SendHeader(md metadata.MD) error { return h.SetHeader(md) }
func (*recordedHeader) SetTrailer(metadata.MD) error      { return nil }
