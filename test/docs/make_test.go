package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// make deps installs the packages of missing commands and no others. A fake apt-get records its arguments.
func TestMakeInstallsWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\necho \"$@\" >> " + filepath.Join(dir, "asked") + "\n"
	if err := os.WriteFile(filepath.Join(dir, "apt-get"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	install := func(needs string) (out string, asked string, err error) {
		t.Helper()
		_ = os.Remove(filepath.Join(dir, "asked"))
		cmd := exec.Command("make", "deps", "RUN_NEEDS="+needs)
		cmd.Dir = repository
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		said, err := cmd.CombinedOutput()
		data, _ := os.ReadFile(filepath.Join(dir, "asked"))
		return string(said), string(data), err
	}
	if out, asked, err := install("sh=dash ls=coreutils"); err != nil || asked != "" {
		t.Errorf("nothing is missing: asked %q, %v\n%s", asked, err, out)
	}
	out, asked, err := install("sh=dash no-such-command-a=package-a no-such-command-b=package-b")
	if os.Geteuid() != 0 {
		if err == nil || asked != "" || !strings.Contains(out, "which needs root: run sudo make deps") {
			t.Errorf("without root: asked %q, %v\n%s", asked, err, out)
		}
		return
	}
	if err != nil || !strings.HasSuffix(strings.TrimSpace(asked), "package-a package-b") || !strings.Contains(out, "installing package-a package-b") {
		t.Errorf("asked %q, %v\n%s", asked, err, out)
	}
}
