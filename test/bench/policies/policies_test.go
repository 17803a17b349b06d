package policies

import "testing"

// The measurement evaluates everything that it claims to.
func TestCost(t *testing.T) {
	cost, err := Cost(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("20 policies on one workload: %s", cost)
}
