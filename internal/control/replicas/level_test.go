package replicas

import (
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// A zone that was cordoned when the first replicas were placed has the newest ones. Scaling
// down still takes replicas from all zones, or by the keys that the workload spreads over.
func TestScalingDownKeepsZonesLevel(t *testing.T) {
	for what, placement := range map[string]*v1.Placement{"a rule": levelled, "no rule": nil} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			for _, zone := range []string{"a", "b", "c"} {
				w.addNode(zone, "4")
				w.setZone(zone, zone)
			}
			w.setNode("c", "cordoned")
			w.addRuled("web", 4, placement)
			w.settle()
			w.wantWhere("web", "a running", "a running", "b running", "b running")
			w.setNode("c", "ready")
			w.scale("web", 6)
			w.settle()
			w.wantWhere("web", "a running", "a running", "b running", "b running", "c running", "c running")
			w.scale("web", 3)
			w.settle()
			w.wantWhere("web", "a running", "b running", "c running")
		})
	}
}
