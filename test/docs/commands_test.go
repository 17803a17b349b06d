package docs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

func TestCommandsOfTheDocumentationWork(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and containers; make test runs it")
	}
	for _, page := range []string{"README.md", "docs/first-app.md", "docs/tutorial-network.md", "docs/tutorial-routes.md"} {
		t.Run(filepath.Base(page), func(t *testing.T) {
			here, there := newMachines(t)
			clone := cloneRepository(t)
			session := here.shell(t, clone)
			for _, b := range blocks(read(t, filepath.Join(repository, page))) {
				at := fmt.Sprintf("%s:%d", page, b.line)
				var out string
				switch b.language {
				case "sh":
					out = session.run(t, at, b.text)
				case "sh there":
					out = there.shell(t, clone).run(t, at, b.text)
				default:
					continue
				}
				if missing, ok := prints(out, b.shown); !ok {
					t.Errorf("%s: no line matches %q in the output:\n%s", at, missing, out)
				}
			}
		})
	}
}

var namespaces atomic.Int32

// machine is a network namespace with a data folder and a home of its own.
type machine struct {
	namespace string
	dir       string
}

// newMachines returns two machines with the addresses of the documentation, 10.0.0.1 and 10.0.0.2. The end of the test
// removes them.
func newMachines(t *testing.T) (here, there machine) {
	t.Helper()
	builtProgram(t) // before there is anything to clean up
	name := fmt.Sprintf("docs-%d-%d", os.Getpid(), namespaces.Add(1))
	here = machine{namespace: name + "-a", dir: t.TempDir()}
	there = machine{namespace: name + "-b", dir: t.TempDir()}
	for _, m := range []machine{here, there} {
		ip(t, "netns", "add", m.namespace)
		t.Cleanup(func() { ip(t, "netns", "del", m.namespace) })
		t.Cleanup(func() { m.clean(t) })
		ip(t, "-n", m.namespace, "link", "set", "lo", "up")
	}
	ip(t, "-n", here.namespace, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", there.namespace)
	for m, address := range map[machine]string{here: "10.0.0.1/24", there: "10.0.0.2/24"} {
		ip(t, "-n", m.namespace, "addr", "add", address, "dev", "eth0")
		ip(t, "-n", m.namespace, "link", "set", "eth0", "up")
	}
	return here, there
}

// builtProgram is the program of this repository, which cleans up after the tests.
func builtProgram(t *testing.T) string {
	t.Helper()
	built, err := filepath.Abs(filepath.Join(repository, "bin", "cloudless"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(built); err != nil {
		t.Fatalf("%v: make it with: make build", err)
	}
	return built
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Errorf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func (m machine) dataDir() string { return filepath.Join(m.dir, "data") }

// environment keeps nothing of the caller's environment except the caches of Go, which are needed because a namespace
// has no route to the module proxy.
func (m machine) environment(clone string) []string {
	env := []string{
		"HOME=" + m.dir, "CLOUDLESS_DATA_DIR=" + m.dataDir(), "LANG=C.UTF-8",
		"PATH=" + filepath.Join(clone, "bin") + ":" + os.Getenv("PATH"),
	}
	if dir := os.Getenv("GOCOVERDIR"); dir != "" {
		env = append(env, "GOCOVERDIR="+dir)
	}
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH", "GOFLAGS", "GOPROXY", "GOTOOLCHAIN"} {
		value, err := exec.Command("go", "env", name).Output()
		if err == nil {
			env = append(env, name+"="+strings.TrimSpace(string(value)))
		}
	}
	return env
}

// clean stops everything that a page has left running.
func (m machine) clean(t *testing.T) {
	if _, err := os.Stat(filepath.Join(m.dataDir(), "cloud.json")); errors.Is(err, fs.ErrNotExist) {
		return
	}
	cmd := exec.Command("nsenter", "--net=/run/netns/"+m.namespace, builtProgram(t), "down", "--purge", "--data-dir", m.dataDir())
	cmd.Env = m.environment("")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("clean up: %v\n%s", err, out)
	}
}

// shell is a bash on a machine. It keeps its variables and its folder from block to block.
type shell struct {
	in        io.Writer
	out, done *os.File
}

// shell starts a bash in the clone of the repository.
func (m machine) shell(t *testing.T, clone string) *shell {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("nsenter", "--net=/run/netns/"+m.namespace, "bash", "-euo", "pipefail")
	cmd.Dir, cmd.Env = clone, m.environment(clone)
	cmd.Stdout, cmd.Stderr = out, out
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	s := &shell{in: in, out: out}
	// The shell writes a byte here after each block.
	done, says, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{says} // descriptor 3
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = says.Close()
	s.done = done
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
		_ = done.Close()
		_ = out.Close()
	})
	return s
}

// run executes a block and returns its output.
func (s *shell) run(t *testing.T, at, text string) string {
	t.Helper()
	if err := s.out.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.out.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	// Processes that the block leaves running must not inherit the descriptor.
	fmt.Fprintf(s.in, "{\n%s} 3>&-\nprintf . >&3\n", text)
	_, err := s.done.Read(make([]byte, 1))
	out, readErr := os.ReadFile(s.out.Name())
	if readErr != nil {
		t.Fatal(readErr)
	}
	out = bytes.ReplaceAll(out, []byte{0}, nil)
	if err != nil {
		t.Fatalf("%s: a command failed; output:\n%s", at, out)
	}
	t.Logf("%s:\n%s", at, out)
	return string(out)
}

// cloneRepository copies the repository and the built shim, so that a page can build and write there without disturbing
// other tests.
func cloneRepository(t *testing.T) string {
	t.Helper()
	clone := t.TempDir()
	list := exec.Command("git", "ls-files", "-co", "--exclude-standard", "-z")
	list.Dir = repository
	names, err := list.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	files := strings.Split(strings.TrimRight(string(names), "\x00"), "\x00")
	programs, err := filepath.Glob(filepath.Join(repository, "internal/programs/embedded/*/*.gz"))
	if err != nil || len(programs) == 0 {
		t.Fatalf("the embedded programs are not built: run make build (%v)", err)
	}
	for _, program := range programs {
		files = append(files, strings.TrimPrefix(program, repository+"/"))
	}
	pack := exec.Command("tar", "--null", "--files-from=-", "--create")
	pack.Dir = repository
	pack.Stdin = strings.NewReader(strings.Join(files, "\x00"))
	unpack := exec.Command("tar", "--extract", "--directory", clone)
	if unpack.Stdin, err = pack.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unpack.Start(), pack.Run(), unpack.Wait()); err != nil {
		t.Fatalf("copy the repository: %v", err)
	}
	return clone
}

func TestMakeUpTwiceDoesNoHarm(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and containers; make test runs it")
	}
	here, _ := newMachines(t)
	session := here.shell(t, cloneRepository(t))
	processes := func() string { return session.run(t, "ps", "cloudless ps -o json | grep '\"pid\"'\n") }
	first := session.run(t, "first", "make up\n")
	before := processes()
	second := session.run(t, "second", "make up\n")
	for _, out := range []string{first, second} {
		if !strings.Contains(out, "the example app answers at http://127.0.0.1:8080") {
			t.Errorf("make up does not print the address:\n%s", out)
		}
	}
	if after := processes(); before != after || strings.Count(after, "pid") != 1 {
		t.Errorf("the second make up replaced the app: %s, then %s", before, after)
	}
	session.run(t, "curl", "curl --fail --silent http://127.0.0.1:8080\n")
}
