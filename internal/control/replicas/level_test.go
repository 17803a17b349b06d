package replicas

import (
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// A zone that was set aside when the first replicas came has the newest ones: scaling
// down takes them from everywhere all the same, by the keys that the workload names or
// by zones if it names none.
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
