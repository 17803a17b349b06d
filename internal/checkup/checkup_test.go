package checkup

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/datadir/datadirtest"
	"github.com/cloudless/cloudless/internal/doctor"
	"github.com/cloudless/cloudless/internal/must"
)

func TestMain(m *testing.M) {
	datadirtest.Main()
	m.Run()
}

func TestDoctorReportsReplicasOfARemovedNode(t *testing.T) {
	t.Parallel()
	for want, left := range map[string]doctor.Folder{
		"so nothing runs on this machine":                    {Holder: 7},
		"and process 7 is stopping 1 replica":                {Holder: 7, Orphans: 1},
		"but it has left 2 replicas running on this machine": {Orphans: 2},
	} {
		if got := afterRemoval(left); got != want {
			t.Errorf("%+v: %q, want %q", left, got, want)
		}
	}
}

func TestDoctorChecksTheDataFolder(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	if got := lookFolder(filepath.Join(path, "none")); got.Exists || got.Err != nil {
		t.Errorf("a folder that is not there: %+v", got)
	}
	if got := lookFolder(path); got.Exists || got.Err != nil {
		t.Errorf("an empty folder: %+v", got)
	}
	if made, err := os.ReadDir(path); err != nil || len(made) > 0 {
		t.Errorf("the doctor has left %v in the folder, %v", made, err)
	}
	holder := datadirtest.Hold(t, path)
	if got := lookFolder(path); !got.Exists || got.Holder != holder.Process.Pid || got.Err != nil {
		t.Errorf("a held folder: %+v", got)
	}
	must.Succeed(t, holder.Process.Kill())
	_ = holder.Wait()
	f, err := datadir.Open(path)
	must.Succeed(t, err)
	must.Succeed(t, f.Update(func(id *datadir.Record) { id.Cluster = "11111111-1111-7111-8111-111111111111" }))
	datadirtest.Enroll(t, f, "22222222-2222-7222-8222-222222222222", time.Now())
	f.Release()
	got := lookFolder(path)
	if got.Holder != 0 || got.Cluster == got.Member || got.Member != "22222222-2222-7222-8222-222222222222" {
		t.Errorf("a folder with a node of another cluster: %+v", got)
	}
	must.Succeed(t, os.WriteFile(filepath.Join(path, "cloud.json"), []byte(`{"format":99,"id":"abcdefgh"}`), 0o600))
	if got := lookFolder(path); got.Err == nil || !strings.Contains(got.Err.Error(), "newer version") {
		t.Errorf("a folder of a newer version: %+v", got)
	}
	must.Succeed(t, os.Chmod(path, 0o777))
	if got := lookFolder(path); got.Err == nil || !strings.Contains(got.Err.Error(), "can be written by others") {
		t.Errorf("a folder that others can write: %+v", got)
	}
}

func TestDoctorChecksCertificates(t *testing.T) {
	t.Parallel()
	f, err := datadir.Open(t.TempDir())
	must.Succeed(t, err)
	defer f.Release()
	if got := lookCertificates(f.Path()); got != nil {
		t.Errorf("without credentials: %+v", got)
	}
	datadirtest.Enroll(t, f, "11111111-1111-7111-8111-111111111111", time.Now().Add(-365*24*time.Hour))
	got := lookCertificates(f.Path())
	if len(got) != 2 || !got[0].NotAfter.Before(time.Now()) || !got[1].NotAfter.After(time.Now()) || !strings.Contains(got[0].Mend, "cloudless join") {
		t.Errorf("saw %+v", got)
	}
	must.Succeed(t, os.Mkdir(f.Path("server"), 0o700))
	if got := lookCertificates(f.Path()); got[0].Mend != "cloudless up" {
		t.Errorf("saw %+v", got)
	}
}

func TestDoctorFindsLeftovers(t *testing.T) {
	t.Parallel()
	run, mine := t.TempDir(), t.TempDir()
	living, own := "", ""
	path := t.TempDir()
	datadirtest.Hold(t, path)
	if id, err := datadir.ReadRecord(path); err == nil {
		living = id.ID
	}
	f, err := datadir.Open(mine)
	must.Succeed(t, err)
	own = f.ID
	f.Release()
	for _, name := range []string{living, own, "deadbeef", "not-an-id"} {
		must.Succeed(t, os.Mkdir(filepath.Join(run, name), 0o700))
	}
	got := lookLeftovers(run, mine)
	dead := filepath.Join(run, "deadbeef")
	if len(got) != 1 || got[0].Path != dead || got[0].Mend != "rm -rf "+dead {
		t.Errorf("saw %+v", got)
	}
	if got := lookLeftovers(filepath.Join(run, "none"), mine); got != nil {
		t.Errorf("saw %+v", got)
	}
}

func TestDoctorComparesTheClockWithTheServers(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(2*time.Hour).UTC().Format(http.TimeFormat))
	}))
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
	server.StartTLS()
	defer server.Close()
	o := local.DoctorOptions{ConfigPath: filepath.Join(t.TempDir(), "config.yaml")}
	if got := serverSkew(t.Context(), o); got != nil {
		t.Errorf("without a context the clock is off by %v", got)
	}
	if got := clusterAnswers(t.Context(), o); got != nil {
		t.Errorf("without a context: %+v", got)
	}
	must.Succeed(t, client.UpdateConfig(o.ConfigPath, func(c *client.Config) error {
		c.Set(client.Context{Name: "home", Addresses: []string{server.Listener.Addr().String()}})
		return nil
	}))
	if got := serverSkew(t.Context(), o); got == nil || (*got-2*time.Hour).Abs() > 10*time.Second {
		t.Errorf("the clock is off by %v", got)
	}
	if got := clusterAnswers(t.Context(), o); got[0].Level != doctor.OK {
		t.Errorf("%+v", got)
	}
	server.Close()
	if got := serverSkew(t.Context(), o); got != nil {
		t.Errorf("a server that is away says %v", got)
	}
	if got := clusterAnswers(t.Context(), o); got[0].Level != doctor.Warn || !strings.Contains(got[0].Text, "does not answer") {
		t.Errorf("%+v", got)
	}
}

func TestDoctorExaminesThisMachine(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and runc; make test runs it")
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer taken.Close()
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	o := local.DoctorOptions{DataDir: filepath.Join(t.TempDir(), "data"), APIAddr: "127.0.0.1:" + port, Ports: []string{"1/udp"}, ConfigPath: filepath.Join(t.TempDir(), "none")}
	found, err := Examine(t.Context(), o)
	must.Succeed(t, err)
	for _, f := range found {
		if f.Check == "ports" && strings.Contains(f.Text, port) {
			if f.Level != doctor.Fail || !strings.Contains(f.Text, "(checkup.test)") {
				t.Errorf("%+v", f)
			}
			continue
		}
		if f.Level == doctor.Fail {
			t.Errorf("%+v", f)
		}
	}
	if _, err := os.Stat(o.DataDir); !errors.Is(err, os.ErrNotExist) {
		t.Error("the doctor has made the data folder")
	}
}

// Doctor recognizes the process of a cluster's server by the folder that it holds.
func TestDoctorRecognizesTheProcessOfACluster(t *testing.T) {
	t.Parallel()
	f, err := datadir.Open(t.TempDir())
	must.Succeed(t, err)
	defer f.Release()
	must.Succeed(t, f.Update(func(id *datadir.Record) { id.Cluster = "11111111-1111-7111-8111-111111111111" }))
	if !servesCluster(os.Getpid(), f.Cluster) {
		t.Error("the process that holds the folder is not known")
	}
	for _, other := range []string{"", "22222222-2222-7222-8222-222222222222"} {
		if servesCluster(os.Getpid(), other) {
			t.Errorf("it is taken for a server of cluster %q", other)
		}
	}
}
