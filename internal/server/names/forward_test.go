package names

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/server/core"
)

// A server learns from the answer of the leader what it would know if it led itself.
func TestAnswersOfTheLeaderKeepTheirMeaning(t *testing.T) {
	for _, test := range []struct {
		answer, means error
	}{
		{core.StatusOf(&consensus.FullError{Dir: "/data"}), consensus.ErrFull},
		{core.StatusOf(&consensus.NotLeaderError{}), consensus.ErrNotLeader},
		{status.Error(codes.Unavailable, "connection refused"), consensus.ErrUncertain},
		{status.Error(codes.InvalidArgument, "the entry says nothing"), nil},
	} {
		err := outcomeOf(test.answer)
		for _, known := range []error{consensus.ErrFull, consensus.ErrNotLeader, consensus.ErrUncertain} {
			if errors.Is(err, known) != (known == test.means) {
				t.Errorf("%v becomes %v", test.answer, err)
			}
		}
	}
}
