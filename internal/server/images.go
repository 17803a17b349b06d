package server

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/spec"
)

// imageService is the ImageService. Images are not in the replicated state:
// the registry is the truth about them.
type imageService struct {
	v1.UnimplementedImageServiceServer
	*Server
}

func (s *imageService) GetImage(ctx context.Context, request *v1.GetImageRequest) (*v1.Image, error) {
	name, err := parseImage("name", request.GetName())
	if err != nil {
		return nil, err
	}
	if !name.Local() {
		return nil, refuse(codes.NotFound, "image %s is not in the cluster's own registry", request.GetName())
	}
	found, err := s.registry.Resolve(ctx, name.Repository, name.Reference())
	if errors.Is(err, registry.ErrNotFound) {
		return nil, s.missingImage(ctx, request.GetName())
	}
	if err != nil {
		return nil, err
	}
	return presentImage(name.Repository, name.Tag, found), nil
}

func (s *imageService) ListImages(ctx context.Context, request *v1.ListImagesRequest) (*v1.ListImagesResponse, error) {
	repositories, err := s.registry.List(ctx)
	if err != nil {
		return nil, err
	}
	var all []*v1.Image
	for _, repository := range repositories {
		for _, tag := range repository.Tags {
			found, err := s.registry.Resolve(ctx, repository.Name, tag)
			if errors.Is(err, registry.ErrNotFound) {
				continue // removed since it was listed
			}
			if err != nil {
				return nil, err
			}
			all = append(all, presentImage(repository.Name, tag, found))
		}
	}
	slices.SortFunc(all, func(a, b *v1.Image) int {
		return strings.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName())
	})
	items, next, err := page(request.GetPage(), sliceAfter(all), byImageName, func(*v1.Image) bool { return true })
	if err != nil {
		return nil, err
	}
	return &v1.ListImagesResponse{Items: items, Next: next}, nil
}

func byImageName(i *v1.Image) string { return i.GetMetadata().GetName() }

func presentImage(repository, tag string, found registry.Descriptor) *v1.Image {
	name := repository
	if tag != "" {
		name += ":" + tag
	}
	return &v1.Image{
		ApiVersion: spec.APIVersion,
		Kind:       "Image",
		Metadata:   &v1.Metadata{Name: name},
		Status: &v1.ImageStatus{
			Repository: repository, Tag: tag, Digest: found.Digest, Size: found.Size, Platforms: found.Platforms,
		},
	}
}

// pin resolves an image name to what a revision runs. Names in the cluster's
// own registry are pinned by digest; others are resolved by the node.
func (s *Server) pin(ctx context.Context, from string) (string, error) {
	name, err := parseImage("spec.image", from)
	if err != nil {
		return "", err
	}
	if !name.Local() {
		return name.String(), nil
	}
	digest, err := s.registry.Digest(ctx, name.Repository, name.Reference())
	if errors.Is(err, registry.ErrNotFound) {
		if near := s.nearestImage(ctx, from); near != "" {
			return "", refuse(codes.FailedPrecondition, "image %s is not in the cluster's registry; did you mean %s?", from, near)
		}
		return "", refuse(codes.FailedPrecondition,
			"image %s is not in the cluster's registry; push it first (cloudless run ./%s does), or name the registry it is in, such as %s",
			from, path.Base(name.Repository), name.Public())
	}
	if err != nil {
		return "", err
	}
	return name.Pinned(digest), nil
}

func parseImage(field, from string) (image.Name, error) {
	name, err := image.ParseName(from)
	if err != nil {
		return image.Name{}, &spec.Error{Violations: []spec.Violation{{Field: field, Message: err.Error()}}}
	}
	return name, nil
}
