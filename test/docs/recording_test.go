package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// varies matches what differs from run to run: ids of replicas, ages, and files in the home folder.
	varies = regexp.MustCompile(`[0-9a-f]{8}|\b[0-9]+s\b|/root/\S+`)
	// escapes matches control sequences for colours and the cursor.
	escapes = regexp.MustCompile(`\x1b\[[0-9;]*[A-Za-z]`)
)

// The picture in the README shows a session in a terminal of 100 columns on a machine called laptop.
func TestRecordedCommandsPrintWhatTheRecordingShows(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and containers; make test runs it")
	}
	here, _ := newMachines(t)
	session := here.shell(t, folderWithPrograms(t))
	recording := read(t, filepath.Join(repository, "docs", "generate", "recording.txt"))
	for _, part := range strings.Split(recording, "$ ")[1:] {
		command, shown, _ := strings.Cut(part, "\n")
		out := session.run(t, command, fmt.Sprintf(
			"unshare --uts sh -c 'hostname laptop; exec script -qec \"stty cols 100; %s\" /dev/null < /dev/null'\n", command))
		out = strings.ReplaceAll(escapes.ReplaceAllString(out, ""), "\r", "\n")
		if missing, ok := prints(out, varies.ReplaceAllString(shown, "…")); !ok {
			t.Errorf("%s: no line matches %q: change docs/generate/recording.txt and run make docs; output:\n%s", command, missing, out)
		}
	}
}

// folderWithPrograms returns a folder with the built bin and the example program.
func folderWithPrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	bin, err := filepath.Abs(filepath.Join(repository, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(bin, filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "hello"), "../../examples/hello")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the example: %v\n%s", err, out)
	}
	return dir
}
