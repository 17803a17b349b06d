package objects

import (
	"cmp"
	"context"
	"encoding/base64"
	"strings"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/names"
	"github.com/cloudless/cloudless/internal/server/core"
)

// defaultPage is how many objects a page has if the caller does not say it.
const defaultPage = 100

// ListObjects returns a page of a bucket.
func (s *Service) ListObjects(ctx context.Context, request *v1.ListObjectsRequest) (*v1.ListObjectsResponse, error) {
	b, err := s.bucket(ctx, request)
	if err != nil {
		return nil, err
	}
	list := names.ListRequest{
		Prefix: request.GetPrefix(), Delimiter: request.GetDelimiter(), Versions: request.GetVersions(),
		Limit: int(cmp.Or(request.GetPage().GetSize(), defaultPage)),
	}
	if token := request.GetPage().GetToken(); token != "" {
		if list.After, list.AfterVersion, err = fromToken(token); err != nil {
			return nil, err
		}
	}
	listing, err := s.store.List(ctx, b, list)
	if err != nil {
		return nil, refuse(b, "", err)
	}
	answer := &v1.ListObjectsResponse{}
	for _, item := range listing.Items {
		if item.Version == nil {
			answer.Prefixes = append(answer.Prefixes, item.Key)
			continue
		}
		answer.Items = append(answer.Items, present(b, object.Object{
			Key: item.Key, Version: item.Version, VersionID: object.VersionID(item.Version),
		}))
	}
	if listing.More {
		answer.Next = toToken(listing.Last, listing.LastVersion)
	}
	return answer, nil
}

// toToken is where the next page begins: the last version and the last key of this one.
func toToken(key string, version []byte) string {
	return base64.RawURLEncoding.EncodeToString(version) + "." + base64.RawURLEncoding.EncodeToString([]byte(key))
}

func fromToken(token string) (key string, version []byte, err error) {
	first, second, found := strings.Cut(token, ".")
	version, err1 := base64.RawURLEncoding.DecodeString(first)
	raw, err2 := base64.RawURLEncoding.DecodeString(second)
	if !found || err1 != nil || err2 != nil {
		return "", nil, core.Refuse(codes.InvalidArgument, "page.token is not one of this list: use next of the page before")
	}
	return string(raw), version, nil
}
