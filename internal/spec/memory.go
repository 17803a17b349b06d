package spec

import v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"

// OutOfMemory says that a program was OOM-killed, and what to do. The limit is that of the workload, empty if it has
// none. Every part of Cloudless uses these words.
func OutOfMemory(limit string) string {
	if limit == "" {
		return "It ran out of memory (OOM) and has no limit of its own: the node had none left; set spec.resources.requests.memory, or use a node with more"
	}
	return "It ran out of memory (OOM): its limit is " + limit + "; raise spec.resources.limits.memory, or make it use less"
}

// ExitReason is why a program ended as far as its exit code does not say it.
func ExitReason(exit *v1.Exit) string {
	if exit.GetReason() == "" && exit.GetOomKilled() {
		return "It ran out of memory (OOM)" // from an agent of an older version
	}
	return exit.GetReason()
}
