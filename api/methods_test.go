package api

import "testing"

func TestMethods(t *testing.T) {
	seen := map[string]bool{}
	for method := range Methods() {
		seen[string(method.FullName())] = true
	}
	for _, name := range []string{"cloudless.v1.WorkloadService.CreateWorkload", "cloudless.v1.PeerService.PassCalls", "cloudless.v1.AgentService.Session"} {
		if !seen[name] {
			t.Errorf("%s is not among the methods", name)
		}
	}
	count := 0
	for range Methods() {
		if count++; count == 2 {
			break // goes no further
		}
	}
}
