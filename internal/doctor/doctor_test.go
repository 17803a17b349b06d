package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// healthy is a machine on which everything is right.
func healthy() View {
	return View{
		OS: "linux", Arch: "arm64", Kernel: "6.1.0-13-arm64", Root: true, Installer: "apt-get install -y",
		Runc:       Runc{Path: "/usr/bin/runc", Version: "1.3.3"},
		Forwarding: true,
		Cgroups:    Cgroups{Version: "2", Controllers: []string{"cpuset", "cpu", "io", "memory", "pids"}},
		Disk:       Disk{Path: "/data", Free: 30 << 30, Total: 50 << 30, FreeInodes: 900_000, Inodes: 1_000_000},
		Memory:     Memory{Available: 1 << 30, Total: 4 << 30},
		Ports:      []Port{{What: "the API", Network: "tcp", Number: 7700}},
		Clock:      Clock{Now: now, Synchronized: true},
		Folder:     Folder{Path: "/data", Exists: true, Cluster: "c1", Member: "c1", Holder: 12},
		Certificates: []Certificate{{
			What: "the node's certificate", NotBefore: now.Add(-time.Hour), NotAfter: now.Add(23 * time.Hour), Life: 24 * time.Hour, Mend: "cloudless join",
		}},
		Containerd: &Containerd{Address: "/run/c.sock"},
	}
}

func TestHealthyMachineHasNothingWrong(t *testing.T) {
	found := Examine(healthy())
	for _, f := range found {
		if f.Level != OK || f.Text == "" || f.Mend != "" {
			t.Errorf("%+v", f)
		}
	}
	if Worst(found) != OK || len(found) != len(checks) {
		t.Errorf("%d findings of %d checks, the worst %s", len(found), len(checks), Worst(found))
	}
}

// Every check can fail or warn, with a finding and a way to fix it.
func TestEveryCheckFindsItsProblem(t *testing.T) {
	skew := func(d time.Duration) *time.Duration { return &d }
	seen := map[string]bool{}
	for _, test := range []struct {
		check string
		level Level
		spoil func(*View)
		text  string
		mend  string
	}{
		{"kernel", Fail, func(v *View) { v.OS = "darwin" }, "containers need Linux, and this is darwin", "on Linux"},
		{"kernel", Fail, func(v *View) { v.Arch = "riscv64" }, "no container runtime for riscv64", "amd64 or arm64"},
		{"kernel", Fail, func(v *View) { v.Kernel = "4.19.0" }, "Linux 4.19.0 is older than 5.3", "newer kernel"},
		{"root", Fail, func(v *View) { v.Root = false }, "started by root", "sudo cloudless doctor"},
		{"runc", Fail, func(v *View) { v.Runc = Runc{Err: fs.ErrNotExist} }, "runc, which starts containers, is not installed", "apt-get install -y runc"},
		{"runc", Fail, func(v *View) { v.Runc = Runc{Err: fs.ErrNotExist}; v.Installer = "" }, "not installed", "install the package runc"},
		{"runc", Fail, func(v *View) { v.Runc.Err = errors.New("exec format error") }, "runc at /usr/bin/runc does not run: exec format error", "apt-get install -y runc"},
		{"runc", Warn, func(v *View) { v.Runc.Version = "1.0.3" }, "older than 1.1", "apt-get install -y runc"},
		{"runc", Warn, func(v *View) { v.Runc.Version = "1.1.11" }, "runc 1.1.11 has no fix for CVE-2024-21626, CVE-2024-45310", "apt-get install -y runc"},
		{"runc", Unknown, func(v *View) {
			v.Runc.Version, v.Runc.Package = "1.1.5+ds1", "1.1.5+ds1-1+deb12u1"
		}, "nothing tells whether runc 1.1.5+ds1 (package 1.1.5+ds1-1+deb12u1) has the fixes for CVE-2024-45310", "ask your distribution"},
		{"cgroups", Fail, func(v *View) { v.Cgroups = Cgroups{} }, "no cgroups are mounted", "mount -t cgroup2"},
		{"cgroups", Fail, func(v *View) { v.Cgroups.Controllers = []string{"cpu", "pids"} }, "cgroups (version 2) lack memory", "cgroup_enable=memory"},
		{"overlayfs", Warn, func(v *View) { v.Overlay = syscall.EINVAL }, "overlayfs does not work below /data", "modprobe overlay"},
		{"overlayfs", Warn, func(v *View) { v.Overlay = fmt.Errorf("make a namespace: %w", syscall.EPERM); v.Root = false }, "only root can try whether images", "sudo"},
		{"links", Fail, func(v *View) { v.Links = syscall.EOPNOTSUPP }, "the network of containers cannot be made", "modprobe -a bridge veth"},
		{"bridge rules", Warn, func(v *View) { v.BridgeRules = syscall.EOPNOTSUPP }, "a replica can pretend to be another one", "CONFIG_NF_TABLES_BRIDGE"},
		{"nftables", Fail, func(v *View) { v.NFTables = syscall.EOPNOTSUPP }, "the kernel refuses rules of nftables", "modprobe -a nf_tables"},
		{"forwarding", Warn, func(v *View) { v.Forwarding = false }, "does not pass packets on", "sysctl -w net.ipv4.ip_forward=1"},
		{"disk", Fail, func(v *View) { v.Disk.Err = syscall.EIO }, "file system of /data cannot be read", "--data-dir"},
		{"disk", Fail, func(v *View) { v.Disk.Free = 100 << 20 }, "only 100 MiB of 50.0 GiB are free for /data", "make room below /data"},
		{"disk", Warn, func(v *View) { v.Disk.Free = 1 << 30 }, "only 1.0 GiB of 50.0 GiB", "make room"},
		{"disk", Fail, func(v *View) { v.Disk.FreeInodes = 500 }, "only 500 of 1000000 inodes", "make room"},
		{"disk", Warn, func(v *View) { v.Disk.FreeInodes = 40_000 }, "only 40000 of 1000000 inodes", "make room"},
		{"memory", Warn, func(v *View) { v.Memory.Available = 100 << 20 }, "only 100 MiB of 4.0 GiB memory", "more memory"},
		{"clock", Fail, func(v *View) { v.Clock.Now = time.Unix(0, 0); v.Certificates = nil }, "the clock says 1970-01-01", "timedatectl set-ntp true"},
		{"clock", Fail, func(v *View) { v.Clock.Skew = skew(2 * time.Hour) }, "the clock is 2h0m0s behind the server's", "timedatectl"},
		{"clock", Fail, func(v *View) { v.Clock.Skew = skew(-30 * time.Hour) }, "30h0m0s ahead of the server's, so that certificates are refused", "timedatectl"},
		{"clock", Warn, func(v *View) { v.Clock.Skew = skew(-20 * time.Second) }, "the clock is 20s ahead of the server's", "timedatectl"},
		{"clock", Warn, func(v *View) { v.Clock.Synchronized = false }, "follows no other one", "timedatectl"},
		{"data folder", Fail, func(v *View) {
			v.Folder.Err = errors.New("data folder /data was written by a newer version: use the newer version")
		}, "written by a newer version", "use the newer version"},
		{"data folder", Warn, func(v *View) { v.Folder.Err = fmt.Errorf("read: %w", fs.ErrPermission) }, "/data cannot be read by you", "sudo cloudless doctor"},
		{"data folder", Fail, func(v *View) { v.Folder.Member = "c2" }, "is of cluster c1, and the certificate in it of cluster c2", "cloudless down --purge --data-dir /data"},
		{"data folder", Warn, func(v *View) { v.Folder.Holder, v.Folder.Orphans = 0, 3 }, "3 containers of /data run while no process", "cloudless up"},
		{"certificates", Fail, func(v *View) { v.Certificates[0].NotAfter = now.Add(-time.Hour) }, "the node's certificate has expired on 2026-05-01 11:00:00", "cloudless join"},
		{"certificates", Warn, func(v *View) {
			v.Certificates[0].NotAfter = now.Add(time.Hour)
		}, "and has not been renewed", "cloudless join"},
		{"certificates", Fail, func(v *View) { v.Certificates[0].NotBefore = now.Add(time.Minute) }, "the clock is behind", "timedatectl"},
		{"ports", Fail, func(v *View) { v.Ports[0].UsedBy = "process 7 (nginx)" }, "port 7700/tcp for the API is used by process 7 (nginx)", "another port"},
		{"leftovers", Warn, func(v *View) { v.Leftovers = []Leftover{{"/run/cloudless/x", "rm -rf /run/cloudless/x"}} }, "/run/cloudless/x was left behind", "rm -rf /run/cloudless/x"},
		{"containerd", Fail, func(v *View) { v.Containerd.Err = syscall.ECONNREFUSED }, "containerd at /run/c.sock cannot be reached", "systemctl start containerd"},
	} {
		v := healthy()
		test.spoil(&v)
		var bad []Finding
		for _, f := range Examine(v) {
			if f.Level != OK && (f.Check == test.check || f.Check != "root") {
				bad = append(bad, f)
			}
		}
		if len(bad) != 1 || bad[0].Check != test.check || bad[0].Level != test.level ||
			!strings.Contains(bad[0].Text, test.text) || !strings.Contains(bad[0].Mend, test.mend) {
			t.Errorf("want %s %s %q, mend with %q; got %+v", test.check, test.level, test.text, test.mend, bad)
		}
		seen[test.check] = true
	}
	for _, c := range checks {
		if !seen[c.name] {
			t.Errorf("the check %q is never seen to find something", c.name)
		}
	}
}

func TestMissingFactsAreNoProblem(t *testing.T) {
	v := healthy()
	v.Folder = Folder{Path: "/data"}
	v.Containerd, v.Certificates, v.Ports = nil, nil, nil
	v.Disk.Inodes, v.Disk.FreeInodes = 0, 0 // btrfs
	if found := Examine(v); Worst(found) != OK {
		t.Errorf("%+v", found)
	}
	v.Ports = []Port{{What: "the API", Network: "tcp", Number: 7700, UsedBy: "process 12 (cloudless)", Ours: true}}
	if found := ports(v); found[0].Level != OK {
		t.Errorf("%+v", found)
	}
}

func TestWorst(t *testing.T) {
	if got := Worst([]Finding{{Level: OK}, {Level: Fail}, {Level: Warn}}); got != Fail {
		t.Errorf("got %s", got)
	}
	if got := Worst([]Finding{{Level: OK}, {Level: Warn}}); got != Warn {
		t.Errorf("got %s", got)
	}
}
