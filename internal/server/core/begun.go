package core

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// metadataBegun marks a stream that was accepted and may send nothing for long.
const metadataBegun = "x-cloudless-begun"

// BeginStream tells the caller that its stream is accepted, and misses nothing from now on.
func BeginStream(stream grpc.ServerStream) error {
	return stream.SendHeader(metadata.Pairs(metadataBegun, "true"))
}

// HasBegun reports whether a header says that its stream has begun.
func HasBegun(header metadata.MD) bool { return len(header.Get(metadataBegun)) > 0 }
