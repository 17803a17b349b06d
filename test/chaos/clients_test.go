package chaos

import (
	"errors"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestOnlyExplainedErrorsAreFaults(t *testing.T) {
	saying := func(reason string) error {
		s, err := status.New(codes.Unknown, "the leader was lost").WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "cloudless"})
		if err != nil {
			t.Fatal(err)
		}
		return s.Err()
	}
	for name, one := range map[string]struct {
		verb verb
		err  error
		want bool
	}{
		"no server":                         {write, status.Error(codes.Unavailable, "no leader"), true},
		"too late":                          {read, status.Error(codes.DeadlineExceeded, "late"), true},
		"no room":                           {creation, status.Error(codes.ResourceExhausted, "full"), true},
		"another version":                   {swap, status.Error(codes.Aborted, "changed"), true},
		"an uncertain change":               {write, saying("UNCERTAIN"), true},
		"an unknown error without a reason": {write, status.Error(codes.Unknown, "nil pointer"), false},
		"an unknown error, another reason":  {write, saying("NOT_LEADER"), false},
		"an error that is no status":        {swap, errors.New("bug"), false},
		"a read changes nothing":            {read, saying("UNCERTAIN"), false},
		"neither does a stale one":          {staleRead, saying("UNCERTAIN"), false},
		"a bug that is noticed":             {deletion, status.Error(codes.Internal, "bug"), false},
	} {
		if got := explained(one.verb, one.err); got != one.want {
			t.Errorf("%s: explained is %v", name, got)
		}
	}
}
