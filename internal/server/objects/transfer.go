package objects

import (
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/server/core"
)

// PutObject stores what a caller sends.
func (s *Service) PutObject(stream grpc.ClientStreamingServer[v1.PutObjectRequest, v1.Object]) error {
	first, err := stream.Recv()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	header := first.GetHeader()
	if header == nil {
		return core.Refuse(codes.InvalidArgument, "the first message of an object has its header")
	}
	ctx := stream.Context()
	b, err := s.bucket(ctx, header)
	if err != nil {
		return err
	}
	content, end := newBody(ctx, s.patience, func() ([]byte, error) {
		m, err := stream.Recv()
		if err == nil && m.GetHeader() != nil {
			err = errSecondHeader
		}
		return m.GetData(), err
	})
	defer end()
	o, err := s.store.Put(ctx, b, object.PutRequest{
		Key: header.GetKey(), Body: content, Size: header.GetSize(), Headers: headers(header), Condition: condition(header),
	})
	if err != nil {
		return refuse(b, header.GetKey(), err)
	}
	return stream.SendAndClose(present(b, o))
}

var errSecondHeader = core.Refuse(codes.InvalidArgument, "only the first message has a header")

// GetObject sends an object or a part of it.
func (s *Service) GetObject(request *v1.GetObjectRequest, stream grpc.ServerStreamingServer[v1.GetObjectResponse]) error {
	ctx := stream.Context()
	b, err := s.bucket(ctx, request)
	if err != nil {
		return err
	}
	o, reader, err := s.store.Open(ctx, b, request.GetKey(), request.GetVersion())
	if err != nil {
		return refuse(b, request.GetKey(), err)
	}
	defer reader.Close()
	if request.GetIfMatch() != "" && request.GetIfMatch() != o.Version.GetEtag() {
		return core.Refuse(codes.FailedPrecondition, "object %q of bucket %s has changed: its ETag is %s now, and not %s; get it from its beginning",
			request.GetKey(), b.Name, o.Version.GetEtag(), request.GetIfMatch())
	}
	length := request.GetLength()
	if length == 0 {
		length = -1
	}
	if request.GetOffset() > o.Version.GetSize() {
		return core.Refuse(codes.OutOfRange, "object %q of bucket %s has %d bytes, and none from byte %d on", request.GetKey(), b.Name, o.Version.GetSize(), request.GetOffset())
	}
	if err := stream.Send(&v1.GetObjectResponse{Part: &v1.GetObjectResponse_Object{Object: present(b, o)}}); err != nil {
		return err
	}
	out := newOutlet(ctx, s.patience, func(data []byte) error {
		return stream.Send(&v1.GetObjectResponse{Part: &v1.GetObjectResponse_Data{Data: data}})
	})
	return refuse(b, request.GetKey(), copyTo(out, reader.ReadRange(ctx, request.GetOffset(), length)))
}
