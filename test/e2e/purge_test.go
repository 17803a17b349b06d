package e2e

import (
	"context"
	_ "embed"
	"os"
	"testing"
)

//go:embed purge.sh
var purgeStory string

// TestPurgeLeavesNothing compares inventories from before a cloud was started and after it
// was purged: mounts, namespaces, links, addresses, routes, rules, kernel settings,
// cgroups, processes, sockets and files. The story has its own machine made of namespaces,
// on which nothing else changes.
func TestPurgeLeavesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and containers; make test runs it")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), storyPatience)
	defer cancel()
	story := bounded(ctx, "bash", "-euo", "pipefail", "-c", purgeStory)
	// Without GOCOVERDIR, because files with coverage data would count as left behind.
	story.Env = append(os.Environ(), "STORY="+purgeStory, "BIN="+bin, "GOCOVERDIR=")
	if out, err := story.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
