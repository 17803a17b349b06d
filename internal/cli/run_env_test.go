package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRunTakesTheEnvironmentFromFiles(t *testing.T) {
	t.Setenv("HOME_CITY", "Bern")
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first.env"), filepath.Join(dir, "second.env")
	for path, text := range map[string]string{
		first:  "# a comment\n\nA=1\r\n  B = two words # and no comment\nHOME_CITY\nC=\"quoted\"\n",
		second: "\ufeffA=2\nEMPTY=\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := newCluster(t)
	c.run(t.Context(), "", "run", "-d", "hello:1", "--env-file", first, "--env-file", second, "-e", "C=flag").expect(t, 0, "workload hello created\n", "")
	got := c.workloads["hello"].GetSpec().GetEnv()
	for key, want := range map[string]string{"A": "2", "B": " two words # and no comment", "HOME_CITY": "Bern", "C": "flag", "EMPTY": ""} {
		if value, found := got[key]; !found || value != want {
			t.Errorf("%s is %q, want %q", key, value, want)
		}
	}
	if len(got) != 5 {
		t.Errorf("the environment is %v", got)
	}
	if err := os.WriteFile(second, []byte("A=1\nNOT_SET_ANYWHERE\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{second: second + ", line 2: ", filepath.Join(dir, "none"): "no such file"} {
		refused := newCluster(t).run(t.Context(), "", "run", "hello:1", "--env-file", path)
		if refused.code != 2 || !strings.Contains(refused.stderr, want) {
			t.Errorf("%s: %+v", path, refused)
		}
	}
}

func FuzzParseEnvFile(f *testing.F) {
	f.Add("# comment\nA=1\nB\n")
	f.Fuzz(func(t *testing.T, text string) {
		values, err := parseEnvFile("file", text, func(string) (string, bool) { return "looked up", true })
		if err != nil && values != nil {
			t.Errorf("got both %v and %v", values, err)
		}
		for key, value := range values {
			if key == "" || strings.ContainsAny(key, "=\n ") || strings.ContainsAny(value, "\n\r") {
				t.Errorf("%q has %q=%q", text, key, value)
			}
		}
	})
}
