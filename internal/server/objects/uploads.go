package objects

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/server/core"
)

// CreateObjectUpload begins an upload, or goes on with one of the same caller.
func (s *Service) CreateObjectUpload(ctx context.Context, request *v1.CreateObjectUploadRequest) (*v1.ObjectUpload, error) {
	header := request.GetHeader()
	b, err := s.bucket(ctx, header)
	if err != nil {
		return nil, err
	}
	u, err := s.store.CreateUpload(ctx, b, object.UploadRequest{
		Key: header.GetKey(), Headers: headers(header), Author: core.Caller(ctx).ID.String(), Resume: request.GetResume(),
	})
	if err != nil {
		return nil, refuse(b, header.GetKey(), err)
	}
	return &v1.ObjectUpload{Id: object.UploadID(u), ExpireTime: timeOf(u.GetExpireTime())}, nil
}

// PutObjectPart stores a part of an upload.
func (s *Service) PutObjectPart(stream grpc.ClientStreamingServer[v1.PutObjectPartRequest, v1.ObjectPart]) error {
	first, err := stream.Recv()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	header := first.GetHeader()
	if header == nil {
		return core.Refuse(codes.InvalidArgument, "the first message of a part has its header")
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
	part, err := s.store.PutPart(ctx, b, object.Part{
		Key: header.GetKey(), Upload: header.GetUpload(), Number: int(header.GetNumber()), Body: content, Size: header.GetSize(),
	})
	if err != nil {
		return refuse(b, header.GetKey(), err)
	}
	return stream.SendAndClose(presentPart(part))
}

func presentPart(p *objectv1.Part) *v1.ObjectPart {
	return &v1.ObjectPart{Number: int32(p.GetNumber()), Size: p.GetSize(), Etag: p.GetEtag()}
}

// ListObjectParts lists all parts that an upload has.
func (s *Service) ListObjectParts(ctx context.Context, request *v1.ListObjectPartsRequest) (*v1.ListObjectPartsResponse, error) {
	b, err := s.bucket(ctx, request)
	if err != nil {
		return nil, err
	}
	answer := &v1.ListObjectPartsResponse{}
	for after, more := 0, true; more; {
		var parts []*objectv1.Part
		_, parts, more, err = s.store.Parts(ctx, b, request.GetKey(), request.GetUpload(), after, 1000)
		if err != nil {
			return nil, refuse(b, request.GetKey(), err)
		}
		for _, p := range parts {
			answer.Items = append(answer.Items, presentPart(p))
			after = int(p.GetNumber())
		}
	}
	return answer, nil
}

// CompleteObjectUpload makes an object of the parts of an upload.
func (s *Service) CompleteObjectUpload(ctx context.Context, request *v1.CompleteObjectUploadRequest) (*v1.Object, error) {
	b, err := s.bucket(ctx, request)
	if err != nil {
		return nil, err
	}
	complete := object.CompleteRequest{Key: request.GetKey(), Upload: request.GetUpload(), Condition: condition(request), Size: -1}
	for _, p := range request.GetParts() {
		complete.Parts = append(complete.Parts, &objectv1.CompletedPart{Number: uint32(max(p.GetNumber(), 0)), Etag: p.GetEtag()})
	}
	o, err := s.store.CompleteUpload(ctx, b, complete)
	if err != nil {
		return nil, refuse(b, request.GetKey(), err)
	}
	return present(b, o), nil
}

// AbortObjectUpload gives up an upload and its parts.
func (s *Service) AbortObjectUpload(ctx context.Context, request *v1.AbortObjectUploadRequest) (*v1.AbortObjectUploadResponse, error) {
	b, err := s.bucket(ctx, request)
	if err != nil {
		return nil, err
	}
	if err := s.store.AbortUpload(ctx, b, request.GetKey(), request.GetUpload()); err != nil {
		return nil, refuse(b, request.GetKey(), err)
	}
	return &v1.AbortObjectUploadResponse{}, nil
}
