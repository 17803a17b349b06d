package s3

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/versity/versitygw/s3err"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/object"
)

// What passes by itself is 503, so that clients try again, and nothing else is.
func TestPassingFailuresAreWorthAnotherTry(t *testing.T) {
	full := &consensus.FullError{Dir: "/data"}
	for _, test := range []struct {
		err  error
		code string
		http int
	}{
		{full, "ServiceUnavailable", http.StatusServiceUnavailable},
		{fmt.Errorf("%w (%w)", consensus.ErrFull, status.Error(codes.ResourceExhausted, full.Error())), "ServiceUnavailable", http.StatusServiceUnavailable},
		{object.ErrTooSlow, "ServiceUnavailable", http.StatusServiceUnavailable},
		{object.ErrNoQuorum, "ServiceUnavailable", http.StatusServiceUnavailable},
		{fmt.Errorf("%w (%w)", consensus.ErrUncertain, errors.New("connection refused")), "ServiceUnavailable", http.StatusServiceUnavailable},
		{status.Error(codes.ResourceExhausted, "the namespace has as many buckets as it may have"), "QuotaExceeded", http.StatusForbidden},
		{&object.QuotaError{Scope: "bucket photos"}, "QuotaExceeded", http.StatusForbidden},
	} {
		var failure s3err.APIError
		if err := translate(fmt.Errorf("writing the names of objects: %w", test.err), about{}); !errors.As(err, &failure) ||
			failure.Code != test.code || failure.HTTPStatusCode != test.http {
			t.Errorf("%v becomes %v", test.err, err)
		}
	}
}
