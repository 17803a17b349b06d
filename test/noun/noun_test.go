package noun

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

const repository = "../.."

// edits are lines that the noun needs in files that exist, by file and by the text behind which each one goes.
var edits = map[string]map[string]string{
	"api/cloudless/state/v1/state.proto": {
		"    cloudless.v1.Namespace namespace = 11 [(named) = true];\n": "    cloudless.v1.Note note = 31 [(named) = true, (namespaced) = true];\n",
		`import "cloudless/v1/namespace.proto";` + "\n":                 `import "cloudless/v1/note.proto";` + "\n",
	},
	"api/cloudless/v1/plan_service.proto": {
		"    Workload workload = 2;\n":                  "    Note note = 31;\n",
		`import "cloudless/v1/namespace.proto";` + "\n": `import "cloudless/v1/note.proto";` + "\n",
	},
	"internal/server/server.go": {
		"	s.kinds = planKinds{namespaces, all":                                                    ", newNotes(s)",
		"	v1.RegisterNamespaceServiceServer(server, &namespaceService{collection: namespaces})\n": "	v1.RegisterNoteServiceServer(server, &noteService{collection: newNotes(s)})\n",
	},
	"internal/cli/cli.go": {"c.namespaceCommand(), ": "c.noteCommand(), "},
	"docs/glossary.md":    {"| --- | --- | --- | --- |\n": "| note | A text that a user wants to keep. | `cloudless note`, `Note` | |\n"},
}

// The files of the noun are those that the page for developers lists, and no others.
func TestPageListsTheFilesOfANoun(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(repository, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	files := touched(t)
	if len(files) > 9 {
		t.Errorf("a noun touches %d files, more than 9: %s", len(files), strings.Join(files, ", "))
	}
	for _, file := range files {
		if !strings.Contains(string(page), "\n| `"+file+"` |") {
			t.Errorf("docs/architecture.md does not list %s among the files of a noun", file)
		}
	}
}

// touched are the files that the noun adds or changes.
func touched(t *testing.T) []string {
	t.Helper()
	var files []string
	for file := range added(t) {
		files = append(files, file)
	}
	for file := range edits {
		files = append(files, file)
	}
	slices.Sort(files)
	return files
}

// added are the new files of the noun. Those of Go end in .txt, so that they are no part of this module.
func added(t *testing.T) map[string][]byte {
	t.Helper()
	all, root := map[string][]byte{}, filepath.Join("testdata", "files")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		name, _ := filepath.Rel(root, path)
		all[strings.TrimSuffix(name, ".txt")] = content
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestNoun(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the program; make test runs it")
	}
	bin := build(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"watch": watch, "call": call, "pages": pages},
		Setup: func(env *testscript.Env) error {
			address, err := freeAddress()
			for key, value := range map[string]string{
				"PATH": bin + ":" + os.Getenv("PATH"), "HOME": env.WorkDir, "ADDRESS": address,
				"DATA": filepath.Join(env.WorkDir, "data"), "CLOUDLESS_CONFIG": filepath.Join(env.WorkDir, "config.yaml"),
			} {
				env.Setenv(key, value)
			}
			env.Defer(func() {
				down := exec.Command(filepath.Join(bin, "cloudless"), "down", "--purge", "--data-dir", env.Getenv("DATA"))
				down.Env = append(os.Environ(), "CLOUDLESS_CONFIG="+env.Getenv("CLOUDLESS_CONFIG"))
				if out, err := down.CombinedOutput(); err != nil {
					env.T().Log(fmt.Sprintf("cleanup: %s %v", out, err))
				}
			})
			return err
		},
	})
}

// watch prints what a watch shows at first, runs a command, and prints what the watch shows next:
// watch PATH TOKEN-FILE COMMAND...
func watch(ts *testscript.TestScript, _ bool, args []string) {
	answer := send(ts, http.MethodGet, args[0], args[1], "")
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	show := func() string {
		if !lines.Scan() {
			ts.Fatalf("the watch has ended: %s, %v", answer.Status, lines.Err())
		}
		fmt.Fprintln(ts.Stdout(), lines.Text())
		return lines.Text()
	}
	for !strings.Contains(show(), "synced") {
	}
	ts.Check(ts.Exec(args[2], args[3:]...))
	show()
}

// call prints the status and the body of an answer: call METHOD PATH TOKEN-FILE [BODY|@FILE]
func call(ts *testscript.TestScript, _ bool, args []string) {
	given := strings.Join(args[3:], "")
	if file, named := strings.CutPrefix(given, "@"); named {
		given = ts.ReadFile(file)
	}
	answer := send(ts, args[0], args[1], args[2], given)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	ts.Check(err)
	fmt.Fprintf(ts.Stdout(), "%d\n%s\n", answer.StatusCode, body)
}

// pages reads a list page by page, and prints the names on each page in a line: pages PATH TOKEN-FILE
func pages(ts *testscript.TestScript, _ bool, args []string) {
	for token, first := "", true; first || token != ""; first = false {
		answer := send(ts, http.MethodGet, args[0]+"&page.token="+token, args[1], "")
		defer answer.Body.Close()
		var page struct {
			Items []struct{ Metadata struct{ Name string } }
			Next  string
		}
		ts.Check(json.NewDecoder(answer.Body).Decode(&page))
		if len(page.Items) == 0 {
			ts.Fatalf("a page is empty: %s", answer.Status)
		}
		for _, item := range page.Items {
			fmt.Fprint(ts.Stdout(), item.Metadata.Name, " ")
		}
		fmt.Fprintln(ts.Stdout())
		token = page.Next
	}
}

// send calls the API by HTTP.
func send(ts *testscript.TestScript, method, path, tokenFile, body string) *http.Response {
	// The certificate of the server is not what this test is about.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	request, err := http.NewRequest(method, "https://"+ts.Getenv("ADDRESS")+path, strings.NewReader(body))
	ts.Check(err)
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(ts.ReadFile(tokenFile)))
	answer, err := client.Do(request)
	ts.Check(err)
	return answer
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

// build compiles the program with the noun, and returns the folder that it is in.
func build(t *testing.T) string {
	t.Helper()
	source, bin := t.TempDir(), t.TempDir()
	copySource(t, source)
	for file, content := range added(t) {
		write(t, filepath.Join(source, file), content)
	}
	for file, lines := range edits {
		path := filepath.Join(source, file)
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := string(content)
		for after, line := range lines {
			if !strings.Contains(text, after) {
				t.Fatalf("%s has no %q any more", file, after)
			}
			text = strings.Replace(text, after, after+line, 1)
		}
		write(t, path, []byte(text))
	}
	command(t, filepath.Join(source, "tools"), "go", "run", "./gen", "-root", "..")
	command(t, source, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(bin, "cloudless"), "./cmd/cloudless")
	return bin
}

// copySource copies what the program is built from.
func copySource(t *testing.T, to string) {
	t.Helper()
	for _, part := range []string{"go.mod", "go.sum", "api", "client", "cmd", "docs", "internal", "tools"} {
		err := filepath.WalkDir(filepath.Join(repository, part), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(repository, path)
			write(t, filepath.Join(to, name), content)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func command(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
