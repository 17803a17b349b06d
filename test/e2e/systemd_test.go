package e2e

import (
	"context"
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

//go:embed systemd.sh
var systemdStory string

// TestServiceUnderSystemd runs the service that cloudless install creates under a real
// systemd. It is a user instance in its own namespaces and cgroup, because the machine may
// not use systemd itself. Only booting a machine is not tested.
func TestServiceUnderSystemd(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root, systemd and containers; make test runs it")
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), storyPatience)
	defer cancel()
	story := bounded(ctx, "unshare", "--mount", "--net", "--propagation", "private", "bash", "-euo", "pipefail", "-c", systemdStory)
	story.Dir = dir
	story.Env = append(os.Environ(), "WORK="+dir, "BIN="+bin, "HOME="+dir, "PATH="+filepath.Join(dir, "path")+":"+bin+":"+os.Getenv("PATH"),
		"CLOUDLESS_CONFIG="+filepath.Join(dir, "config.yaml"), "CLOUDLESS_DATA_DIR="+filepath.Join(dir, "data"))
	out, err := story.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		log, _ := exec.Command("tail", "-n", "50", filepath.Join(dir, "systemd.log")).Output()
		t.Fatalf("%v; the end of systemd's log:\n%s", err, log)
	}
}
