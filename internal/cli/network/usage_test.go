package network

import (
	"testing"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/command"
)

func TestUsageShowsRangesAndNodes(t *testing.T) {
	got := printed(func(e *command.Env) error {
		return printUsage(e, &cloudlessv1.NetworkUsage{
			Ranges: []*cloudlessv1.RangeUsage{{Range: "10.64.0.0/10", Setting: "rangeV4", Use: "nodes", Unit: "subnets", Used: 2, Free: 16382}},
			Nodes:  []*cloudlessv1.NodeAddresses{{Node: "one", SubnetV4: "10.64.0.0/24", Used: 3, Free: 250}},
		})
	})
	want := `RANGE         SETTING  FOR    USED  FREE   UNIT
10.64.0.0/10  rangeV4  nodes  2     16382  subnets

NODE  SUBNET V4     SUBNET V6  REPLICAS  FREE
one   10.64.0.0/24  -          3         250
`
	if got != want {
		t.Errorf("printed\n%s", got)
	}
}
