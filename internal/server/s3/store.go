package s3

import (
	"context"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object"
)

// store is versitygw's backend. What it does not implement is answered with NotImplemented.
type store struct {
	backend.BackendUnsupported
	reporter
	objects   *object.Store
	directory Directory
}

// bucket finds a bucket of the caller's namespace.
func (s *store) bucket(ctx context.Context, name *string) (object.Bucket, error) {
	b, _, err := s.find(ctx, text(name))
	return b, err
}

func (s *store) find(ctx context.Context, name string) (object.Bucket, *v1.Bucket, error) {
	ns, err := namespace(ctx, s.directory)
	if err != nil {
		return object.Bucket{}, nil, s.fail(err, about{bucket: name})
	}
	b, full, err := s.directory.FindBucket(callOf(ctx).ctx, ns, name)
	return b, full, s.fail(err, about{bucket: strings.Clone(name)})
}

// owned refuses a source whose owner is not the one that the client expects. A namespace owns its buckets.
func owned(b object.Bucket, expected *string) error {
	if want := text(expected); want != "" && want != b.Namespace {
		return s3err.GetAPIError(s3err.ErrAccessDenied)
	}
	return nil
}

// text is a copy: versitygw's strings are parts of a buffer that the next request writes over.
func text(s *string) string {
	if s == nil {
		return ""
	}
	return strings.Clone(*s)
}

// filled is nil for an empty string.
func filled(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func copyMap(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	c := make(map[string]string, len(m))
	for k, v := range m {
		c[strings.Clone(k)] = strings.Clone(v)
	}
	return c
}

// moment is a time as S3 gives it: in whole seconds, so that a client that sends it back means the same.
func moment(nanoseconds int64) *time.Time {
	t := time.Unix(0, nanoseconds).UTC().Truncate(time.Second)
	return &t
}

func quoted(etag string) *string {
	q := `"` + etag + `"`
	return &q
}

// shownVersion is the id of a version in an answer. Buckets that never kept versions show none.
func shownVersion(b object.Bucket, o object.Object) string {
	if b.Versioning == "" {
		return ""
	}
	return o.VersionID
}

func ownerOf(b object.Bucket) *types.Owner {
	return &types.Owner{ID: &b.Namespace, DisplayName: &b.Namespace}
}
