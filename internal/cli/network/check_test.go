package network

import (
	"testing"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/command"
)

func TestCheckShowsPartsAndFixes(t *testing.T) {
	got := printed(func(e *command.Env) error {
		return printCheck(e, &cloudlessv1.NetworkCheck{Hops: []*cloudlessv1.NetworkHop{
			{Hop: "from", State: "ok", Message: "replica web-1 runs on node one"},
			{Hop: "listen", State: "failed", Message: "nothing listens on port 80 in replica api-1", Fix: "cloudless logs api-1"},
		}})
	})
	want := `PART    STATE   WHAT
from    ok      replica web-1 runs on node one
listen  failed  nothing listens on port 80 in replica api-1
                fix with: cloudless logs api-1
`
	if got != want {
		t.Errorf("printed\n%s", got)
	}
}
