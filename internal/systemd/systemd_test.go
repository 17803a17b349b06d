package systemd

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cloudless/cloudless/internal/must"
)

// manager is a fake systemd that records its calls and fails the chosen one once.
type manager struct {
	asked  []string
	refuse string
}

func (m *manager) Do(_ context.Context, args ...string) error {
	line := strings.Join(args, " ")
	m.asked = append(m.asked, line)
	if m.refuse != "" && strings.HasPrefix(line, m.refuse) {
		m.refuse = ""
		return errors.New("refused")
	}
	return nil
}

// unitOf is the unit of these tests, with its program below dir.
func unitOf(dir string) Unit {
	return Unit{Binary: filepath.Join(dir, "bin", "cloudless"), Args: []string{"up", "--data-dir=/var/lib/cloudless"}, DataDir: "/var/lib/cloudless"}
}

// program writes a file that represents a version of the program.
func program(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cloudless")
	must.Succeed(t, os.WriteFile(path, []byte(content), 0o700))
	return path
}

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must.Succeed(t, err)
	return string(data)
}

// files are all files below a folder.
func files(t *testing.T, dir string) (all []string) {
	t.Helper()
	must.Succeed(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, strings.TrimPrefix(path, dir))
		}
		return err
	}))
	return all
}

// A process that systemd has not started protects itself, if it may.
func TestProtectLowersTheScore(t *testing.T) {
	err := Protect()
	text, readErr := os.ReadFile("/proc/self/oom_score_adj")
	if readErr != nil {
		t.Fatal(readErr)
	}
	if protected := strings.TrimSpace(string(text)) == strconv.Itoa(OOMScore); protected != (err == nil) || err != nil && !errors.Is(err, fs.ErrPermission) {
		t.Errorf("the score is %s, %v", text, err)
	}
}

func TestUnitKeepsContainersAndRestarts(t *testing.T) {
	text, err := unitOf("/usr/local").Text()
	must.Succeed(t, err)
	for _, line := range []string{
		"Type=notify", "KillMode=process", "Delegate=yes", "Restart=always", "RestartPreventExitStatus=78", "TasksMax=infinity", "LimitNOFILE=1048576", "OOMScoreAdjust=-900",
		"After=network-online.target", "WantedBy=multi-user.target",
		"ExecStart=/usr/local/bin/cloudless up --data-dir=/var/lib/cloudless",
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("the unit has no line %q:\n%s", line, text)
		}
	}
	if u, ours := notes(text); !ours || u.Binary != "/usr/local/bin/cloudless" || u.DataDir != "/var/lib/cloudless" {
		t.Errorf("the unit says about itself %+v, %v", u, ours)
	}
}

// systemd-analyze parses the unit like systemd. test/e2e runs the service under a real systemd.
func TestSystemdAcceptsTheUnit(t *testing.T) {
	if testing.Short() {
		t.Skip("needs the package systemd; make test installs it")
	}
	dir := t.TempDir()
	u := unitOf(dir)
	u.Args = append(u.Args, `--label=note=50% of "everything" for $HOME\`)
	must.Succeed(t, os.MkdirAll(filepath.Dir(u.Binary), 0o755))
	must.Succeed(t, os.WriteFile(u.Binary, nil, 0o755))
	path := filepath.Join(dir, "cloudless.service")
	text, err := u.Text()
	must.Succeed(t, err)
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
	out, err := exec.Command("systemd-analyze", "verify", "--man=no", path).CombinedOutput()
	if err != nil || strings.Contains(string(out), "cloudless.service:") {
		t.Errorf("systemd-analyze: %v\n%s", err, out)
	}
	must.Succeed(t, os.WriteFile(path, []byte(strings.Replace(text, "KillMode=process", "KillMode=nonsense", 1)), 0o600))
	if out, _ := exec.Command("systemd-analyze", "verify", "--man=no", path).CombinedOutput(); !strings.Contains(string(out), "nonsense") {
		t.Errorf("systemd-analyze has not read the unit: %s", out)
	}
}

func TestArgumentsAreQuoted(t *testing.T) {
	for word, want := range map[string]string{
		"up":             `up`,
		"--name=a b":     `"--name=a b"`,
		"50%":            `"50%%"`,
		"$HOME":          `"$$HOME"`,
		`say "hi" \ bye`: `"say \"hi\" \\ bye"`,
		"":               `""`,
		"größe":          `"größe"`,
	} {
		if got, err := quote(word); err != nil || got != want {
			t.Errorf("quote(%q) = %s, %v, want %s", word, got, err, want)
		}
	}
	for _, word := range []string{"a\nb", "a\x00b", "\xff"} {
		if got, err := quote(word); err == nil {
			t.Errorf("quote(%q) = %s", word, got)
		}
	}
}

func TestInstallUpgradeUninstall(t *testing.T) {
	root := t.TempDir()
	var m manager
	var before []string
	i := Installer{Service: "cloudless", Root: "/", Manager: &m, BeforeStart: func(context.Context) error {
		before = slices.Clone(m.asked)
		return nil
	}}
	// The real root, so that the service is started; the unit alone is elsewhere.
	i.units = filepath.Join(root, "units")
	u := unitOf(root)

	result, err := i.Install(t.Context(), program(t, "one"), u)
	must.Succeed(t, err)
	if result.Upgraded || !result.Started || content(t, u.Binary) != "one" {
		t.Errorf("installed %+v", result)
	}
	if want := []string{"daemon-reload", "enable cloudless.service", "restart cloudless.service"}; !slices.Equal(m.asked, want) {
		t.Errorf("systemd was asked %q, want %q", m.asked, want)
	}
	if len(before) != 2 {
		t.Errorf("BeforeStart came after %q", before)
	}
	if info, err := os.Stat(u.Binary); err != nil || info.Mode() != 0o755 {
		t.Errorf("the program has mode %v, %v", info.Mode(), err)
	}
	running, err := os.Open(u.Binary)
	must.Succeed(t, err)
	defer running.Close()

	m.asked = nil
	result, err = i.Install(t.Context(), program(t, "two"), u)
	must.Succeed(t, err)
	if !result.Upgraded || content(t, u.Binary) != "two" || m.asked[len(m.asked)-1] != "restart cloudless.service" {
		t.Errorf("upgraded %+v, asking %q", result, m.asked)
	}
	old := make([]byte, 3)
	if _, err := running.Read(old); err != nil || string(old) != "one" {
		t.Errorf("the program that was running is now %q, %v", old, err)
	}
	// From itself: the command that people run a second time.
	if _, err := i.Install(t.Context(), u.Binary, u); err != nil || content(t, u.Binary) != "two" {
		t.Errorf("installed from itself: %v, %q", err, content(t, u.Binary))
	}
	if got := files(t, root); len(got) != 2 {
		t.Errorf("there are %q, want unit and program", got)
	}

	m.asked = nil
	_, err = i.Uninstall(t.Context(), func(got Unit) error {
		if got.DataDir != u.DataDir || len(m.asked) != 1 || m.asked[0] != "disable --now cloudless.service" || content(t, u.Binary) != "two" {
			t.Errorf("before anything is removed: %+v, %q", got, m.asked)
		}
		return nil
	})
	must.Succeed(t, err)
	if got := files(t, root); len(got) != 0 || m.asked[len(m.asked)-1] != "daemon-reload" {
		t.Errorf("left are %q, asked was %q", got, m.asked)
	}
	if _, err := i.Uninstall(t.Context(), func(Unit) error { return nil }); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("uninstalled twice: %v", err)
	}
}

func TestFailedInstallationRestoresThePreviousState(t *testing.T) {
	for _, refused := range []string{"daemon-reload", "enable", "restart"} {
		root := t.TempDir()
		m := manager{refuse: refused}
		i := Installer{Service: "cloudless", Root: "/", Manager: &m, units: filepath.Join(root, "units")}
		u := unitOf(root)
		if _, err := i.Install(t.Context(), program(t, "one"), u); err == nil {
			t.Errorf("%s refused: installed", refused)
		}
		if got := files(t, root); len(got) != 0 {
			t.Errorf("%s refused: left are %q", refused, got)
		}
		_, err := i.Install(t.Context(), program(t, "one"), u)
		must.Succeed(t, err)
		unit := content(t, i.unitPath())

		m.refuse, m.asked = refused, nil
		next := u
		next.Args = append(next.Args, "--api-addr=0.0.0.0:7700")
		if _, err := i.Install(t.Context(), program(t, "two"), next); err == nil {
			t.Errorf("%s refused: upgraded", refused)
		}
		if content(t, u.Binary) != "one" || content(t, i.unitPath()) != unit || len(files(t, root)) != 2 {
			t.Errorf("%s refused: the program is %q, the files are %q", refused, content(t, u.Binary), files(t, root))
		}
		if last := m.asked[len(m.asked)-1]; last != "restart cloudless.service" {
			t.Errorf("%s refused: the version of before was not started again, last was %q", refused, last)
		}
	}
}

func TestForeignUnitIsNotTouched(t *testing.T) {
	root := t.TempDir()
	i := Installer{Service: "nginx", Root: "/", Manager: &manager{}, units: root}
	must.Succeed(t, os.WriteFile(i.unitPath(), []byte("[Service]\nExecStart=/bin/nginx\n"), 0o600))
	if _, err := i.Install(t.Context(), program(t, "one"), unitOf(root)); err == nil || !strings.Contains(err.Error(), "was not made by cloudless install") {
		t.Errorf("installed over it: %v", err)
	}
	if _, err := i.Uninstall(t.Context(), func(Unit) error { return nil }); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("uninstalled it: %v", err)
	}
	if got := files(t, root); len(got) != 1 {
		t.Errorf("there are %q", got)
	}
	for _, name := range []string{"", "../x", "A", "a b"} {
		if _, err := (Installer{Service: name, Root: "/", Manager: &manager{}}).Installed(); err == nil || !strings.Contains(err.Error(), "no name of a service") {
			t.Errorf("service %q: %v", name, err)
		}
	}
}

// The image of another machine: the real systemctl enables the unit in it.
func TestInstallIntoAnImage(t *testing.T) {
	if testing.Short() {
		t.Skip("needs the package systemd; make test installs it")
	}
	root := t.TempDir()
	i := Installer{Service: "cloudless", Root: root, Manager: Systemctl{}, BeforeStart: func(context.Context) error {
		t.Error("the service would be started")
		return nil
	}}
	result, err := i.Install(t.Context(), program(t, "one"), unitOf("/usr/local"))
	must.Succeed(t, err)
	wanted := filepath.Join(root, "etc/systemd/system/multi-user.target.wants/cloudless.service")
	if _, err := os.Lstat(wanted); err != nil || result.Started || content(t, filepath.Join(root, "usr/local/bin/cloudless")) != "one" {
		t.Errorf("installed %+v, enabled: %v", result, err)
	}
	_, err = i.Uninstall(t.Context(), func(Unit) error { return nil })
	must.Succeed(t, err)
	if got := files(t, root); len(got) != 0 {
		t.Errorf("left are %q", got)
	}
}

func TestReadyNotifiesSystemd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	for _, name := range []string{path, "@cloudless-test-" + filepath.Base(t.TempDir()) + filepath.Base(filepath.Dir(path))} {
		socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		must.Succeed(t, err)
		t.Setenv("NOTIFY_SOCKET", name)
		n, err := NewNotifier()
		must.Succeed(t, err)
		if _, still := os.LookupEnv("NOTIFY_SOCKET"); still {
			t.Error("what this process starts could speak in its name")
		}
		must.Succeed(t, n.Status("two\nlines"))
		must.Succeed(t, n.Ready())
		for _, want := range []string{"STATUS=two; lines", "READY=1"} {
			buffer := make([]byte, 64)
			count, err := socket.Read(buffer)
			if err != nil || string(buffer[:count]) != want {
				t.Errorf("the manager heard %q, %v, want %q", buffer[:count], err, want)
			}
		}
		must.Succeed(t, socket.Close())
		if name == path {
			if err := n.Ready(); err == nil {
				t.Error("without a listener there is no error")
			}
		}
	}
	must.Succeed(t, Notifier{}.Ready())
}
