package s3

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"

	"github.com/versity/versitygw/s3err"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/object"
)

// about is what an operation was about, for the errors that repeat it.
type about struct {
	bucket, key, version, upload string
	condition                    s3err.Condition
	part                         int32
	etag                         string
}

// maxKey is the longest key, in bytes.
const maxKey = 1024

// reporter translates errors, and logs those that clients cannot do anything about.
type reporter struct {
	logger *slog.Logger
}

// fail is the error of S3 that a client expects.
func (r reporter) fail(err error, a about) error {
	if err == nil {
		return nil
	}
	known := translate(err, a)
	if known == nil {
		r.logger.Error("an S3 request failed", "bucket", a.bucket, "key", a.key, "error", err)
		return s3err.GetAPIError(s3err.ErrInternalError)
	}
	return known
}

// translate returns nil for an error that has no counterpart.
func translate(err error, a about) error {
	var known s3err.S3Error
	if errors.As(err, &known) {
		return known
	}
	var quota *object.QuotaError
	if errors.As(err, &quota) {
		return s3err.APIError{Code: "QuotaExceeded", Description: quota.Error(), HTTPStatusCode: http.StatusForbidden}
	}
	for _, f := range failures {
		if errors.Is(err, f.is) {
			return f.becomes(a)
		}
	}
	if unavailable(err) {
		return s3err.APIError{Code: "ServiceUnavailable", Description: message(err), HTTPStatusCode: http.StatusServiceUnavailable}
	}
	return statusFailure(err, a)
}

// failures are the errors that have a counterpart in S3.
var failures = []struct {
	is      error
	becomes func(about) error
}{
	{object.ErrNoBucket, func(a about) error { return s3err.GetBucketErr(s3err.ErrNoSuchBucket, a.bucket) }},
	{object.ErrNotEmpty, func(a about) error { return s3err.GetAPIError(s3err.ErrBucketNotEmpty) }},
	{object.ErrNoKey, func(a about) error { return s3err.GetAPIError(s3err.ErrNoSuchKey) }},
	{object.ErrDeleteMarker, func(a about) error { return s3err.GetAPIError(s3err.ErrNoSuchKey) }},
	{object.ErrNoVersion, func(a about) error { return s3err.GetNoSuchVersionErr(a.key, a.version) }},
	{object.ErrNoUpload, func(a about) error { return s3err.GetNoSuchUploadErr(a.upload) }},
	{object.ErrPrecondition, func(a about) error { return s3err.GetPreconditionFailedErr(a.condition) }},
	{object.ErrBadPart, func(a about) error { return s3err.GetInvalidPartErr(a.upload, a.part, a.etag) }},
	{object.ErrSmallPart, func(a about) error { return s3err.GetAPIError(s3err.ErrEntityTooSmall) }},
	{object.ErrBadDigest, func(a about) error { return s3err.GetAPIError(s3err.ErrBadDigest) }},
	{object.ErrIncomplete, func(a about) error { return s3err.GetAPIError(s3err.ErrIncompleteBody) }},
	{object.ErrBadRange, func(a about) error { return s3err.GetAPIError(s3err.ErrInvalidRange) }},
	{object.ErrBadKey, badKey},
	{object.ErrKeyLost, func(about) error {
		return s3err.APIError{Code: "InvalidObjectState", Description: "The key that encrypts it does not exist any more.", HTTPStatusCode: http.StatusForbidden}
	}},
	{os.ErrDeadlineExceeded, func(about) error {
		return s3err.APIError{
			Code:           "RequestTimeout",
			Description:    "Your socket connection to the server was not read from or written to within the timeout period.",
			HTTPStatusCode: http.StatusBadRequest,
		}
	}},
}

func badKey(a about) error {
	if len(a.key) > maxKey {
		return s3err.GetKeyTooLongErr(int64(len(a.key)), maxKey)
	}
	return s3err.APIError{
		Code: "InvalidURI", Description: "A key is 1 to 1,024 bytes of UTF-8.", HTTPStatusCode: http.StatusBadRequest,
	}
}

// unavailable is whether the same request may succeed a little later.
func unavailable(err error) bool {
	for _, passing := range []error{
		object.ErrNoQuorum, object.ErrUnreachable, object.ErrDiskFull, consensus.ErrNotLeader, consensus.ErrUncertain, consensus.ErrShutdown,
		context.DeadlineExceeded, context.Canceled,
	} {
		if errors.Is(err, passing) {
			return true
		}
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Canceled:
		return true
	}
	return false
}

// statusFailure translates the errors of the cluster's API.
func statusFailure(err error, a about) error {
	switch status.Code(err) {
	case codes.NotFound:
		return s3err.GetBucketErr(s3err.ErrNoSuchBucket, a.bucket)
	case codes.AlreadyExists:
		return s3err.GetBucketErr(s3err.ErrBucketAlreadyOwnedByYou, a.bucket)
	case codes.PermissionDenied, codes.Unauthenticated:
		return s3err.APIError{Code: "AccessDenied", Description: message(err), HTTPStatusCode: http.StatusForbidden}
	case codes.InvalidArgument:
		return s3err.APIError{Code: "InvalidArgument", Description: message(err), HTTPStatusCode: http.StatusBadRequest}
	case codes.ResourceExhausted:
		return s3err.APIError{Code: "QuotaExceeded", Description: message(err), HTTPStatusCode: http.StatusForbidden}
	case codes.FailedPrecondition:
		return s3err.APIError{Code: "OperationAborted", Description: message(err), HTTPStatusCode: http.StatusConflict}
	case codes.Unimplemented:
		return s3err.GetAPIError(s3err.ErrNotImplemented)
	}
	return nil
}

// message is the text of an error for the client.
func message(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}
