package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestInstallWritesOutWhatAServiceCannotKnow(t *testing.T) {
	var asked InstallOptions
	roles := Roles{Install: func(_ context.Context, o InstallOptions) (string, error) {
		asked = o
		return "done", nil
	}}
	t.Setenv("CLOUDLESS_CONFIG", "")
	t.Setenv("XDG_CONFIG_HOME", "/home/me/.config")
	for _, test := range []struct {
		line string
		want []string
	}{
		{"install", []string{"up", "--config=/home/me/.config/cloudless/config.yaml", "--data-dir=" + defaultDataDir()}},
		{
			"install server -- --api-addr 192.0.2.1:7700 --data-dir /d",
			[]string{"server", "--api-addr=192.0.2.1:7700", "--config=/home/me/.config/cloudless/config.yaml", "--data-dir=/d"},
		},
		{"install --config /etc/c.yaml -- --data-dir=/d", []string{"up", "--config=/etc/c.yaml", "--data-dir=/d"}},
		{"install agent -- --data-dir /d", []string{"agent", "--data-dir=/d"}},
		{"install --config /c -- --data-dir /d -l zone=a -l rack=1", []string{"up", "--config=/c", "--data-dir=/d", "--label=zone=a", "--label=rack=1"}},
	} {
		runLocal(t.Context(), roles, strings.Fields(test.line)...).expect(t, 0, "done\n", "")
		if slices.Sort(asked.Args[1:]); !slices.Equal(asked.Args, sortedTail(test.want)) {
			t.Errorf("%s: the service runs %q, want %q", test.line, asked.Args, test.want)
		}
		if asked.Root != "/" || asked.Name != "cloudless" || asked.BinDir != "/usr/local/bin" || !filepath.IsAbs(asked.Program) || asked.DryRun {
			t.Errorf("%s: %+v", test.line, asked)
		}
	}
	for line, want := range map[string]string{
		"install join":              "is no role of a service",
		"install up agent":          `"agent" is too much`,
		"install -- --apiaddr x":    "unknown flag: --apiaddr",
		"install -- --detach":       "--detach is not for a service",
		"install up -- extra":       `"extra" is no flag of cloudless up`,
		"install -- --label":        "flag needs an argument",
		"uninstall now":             `"now" is too much`,
		"install up --api-addr x:1": "there is no flag --api-addr",
	} {
		if got := runLocal(t.Context(), roles, strings.Fields(line)...); got.code != 2 || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: %+v, want %q", line, got, want)
		}
	}
}

func sortedTail(words []string) []string {
	slices.Sort(words[1:])
	return words
}

func TestUninstallASecondTimeDoesNoHarm(t *testing.T) {
	roles := Roles{Uninstall: func(_ context.Context, o UninstallOptions) (string, error) {
		if !o.Purge || o.Name != "second" || o.Root != "/" {
			return "", errors.New("asked for something else")
		}
		return "", fmt.Errorf("uninstall: %w", fs.ErrNotExist)
	}}
	runLocal(t.Context(), roles, "uninstall", "--purge", "--service", "second").expect(t, 0, "there is no service second to uninstall\n", "")
}

// A role tells the manager that started it when it is ready.
func TestRoleTellsTheManagerThatItIsReady(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	roles := Roles{Agent: func(_ context.Context, o AgentOptions) error {
		if os.Getenv("NOTIFY_SOCKET") != "" {
			t.Error("containers would inherit the manager's socket")
		}
		o.Progress("waiting for the cluster")
		o.Ready("node a is ready\nand more")
		return nil
	}}
	runLocal(t.Context(), roles, "agent", "--data-dir", t.TempDir()).expect(t, 0, "node a is ready\nand more\n", "")
	for _, want := range []string{"STATUS=waiting for the cluster", "STATUS=node a is ready", "READY=1"} {
		buffer := make([]byte, 256)
		n, err := socket.Read(buffer)
		if err != nil || string(buffer[:n]) != want {
			t.Errorf("the manager heard %q, %v, want %q", buffer[:n], err, want)
		}
	}
}
