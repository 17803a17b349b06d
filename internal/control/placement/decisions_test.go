package placement

import (
	"fmt"
	"testing"
)

// Only the newest decisions are remembered, each for one node.
func TestOldDecisionsAreForgotten(t *testing.T) {
	var many []Decision
	for i := range keptDecisions + 5 {
		many = append(many, Decision{Replica: fmt.Sprint(i), Node: "n"})
	}
	kept := &Decisions{}
	kept.Keep(many[:10])
	kept.Keep(many)
	for at, want := range map[int]bool{4: false, 5: true, keptDecisions + 4: true} {
		if _, known := kept.find(fmt.Sprint(at), "n"); known != want {
			t.Errorf("that decision %d is remembered is %v", at, known)
		}
	}
	if _, known := kept.find("7", "elsewhere"); known || len(kept.byReplica) != keptDecisions {
		t.Errorf("%d are remembered", len(kept.byReplica))
	}
}
