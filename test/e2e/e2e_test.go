package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// bin is the folder with the programs under test and the programs that they run.
var bin string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	if flag.Parse(); testing.Short() {
		return m.Run(), nil // skips every story
	}
	if os.Geteuid() != 0 {
		return 1, fmt.Errorf("these tests run containers and need root")
	}
	dir, err := os.MkdirTemp("", "cloudless-e2e-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	bin = dir
	built, err := filepath.Abs("../../bin/cloudless")
	if err != nil {
		return 1, err
	}
	if _, err := os.Stat(built); err != nil {
		return 1, fmt.Errorf("bin/cloudless is missing: run make build first")
	}
	if err := os.Symlink(built, filepath.Join(dir, "cloudless")); err != nil {
		return 1, err
	}
	for name, source := range map[string]string{"probe": "./probe", "authority": "./authority", "spiffe": "./spiffe", "browser": "../openid/browser", "hello": "../../examples/hello"} {
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, name), source)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return m.Run(), nil
}

// TestStories runs every script in testdata. Each has its own folder, addresses,
// names and client configuration, and leaves nothing behind. Two runs on one
// machine at the same time do not disturb each other.
func TestStories(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and containers; make test runs it")
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		Cmds:                commands,
		Setup:               setup,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

func setup(env *testscript.Env) error {
	if err := claimAll(env); err != nil {
		return err
	}
	data := filepath.Join(env.WorkDir, "data")
	for key, value := range map[string]string{
		"PATH":             bin + ":" + os.Getenv("PATH"),
		"BIN":              bin,
		"DATA":             data,
		"CLOUDLESS_CONFIG": filepath.Join(env.WorkDir, "config.yaml"),
		"HOME":             env.WorkDir,
	} {
		env.Setenv(key, value)
	}
	ctx, cancel := context.WithTimeout(context.Background(), storyPatience)
	env.Values[storyContext{}] = ctx
	env.Defer(func() {
		cancel()
		cleanup(env)
	})
	return nil
}

// storyContext is the key of a story's context in its environment.
type storyContext struct{}

// cleanup stops everything that a script has left running.
func cleanup(env *testscript.Env) {
	entries, _ := filepath.Glob(filepath.Join(env.WorkDir, "*", "cloud.json"))
	for _, entry := range entries {
		purge(env.Getenv("CLOUDLESS_CONFIG"), filepath.Dir(entry), func(format string, args ...any) { env.T().Log(fmt.Sprintf(format, args...)) })
	}
}

func purge(config, data string, log func(format string, args ...any)) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	down := bounded(ctx, filepath.Join(bin, "cloudless"), "down", "--purge", "--data-dir", data)
	down.Env = append(os.Environ(), "CLOUDLESS_CONFIG="+config)
	if out, err := down.CombinedOutput(); err != nil {
		log("cleanup: %s %v", strings.TrimSpace(string(out)), err)
	}
}
