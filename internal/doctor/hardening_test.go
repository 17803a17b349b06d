package doctor

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
)

func TestOpenEscapes(t *testing.T) {
	const old, fds, race, masked = "CVE-2019-5736", "CVE-2024-21626", "CVE-2024-45310", "CVE-2025-31133"
	for _, test := range []struct {
		runc    Runc
		open    []string // some of them
		closed  []string
		unknown bool
	}{
		{Runc{Version: "1.0.0-rc6"}, []string{old, race, masked}, []string{fds}, false},
		{Runc{Version: "1.0.0~rc93+ds1"}, []string{fds, race}, []string{old}, false},
		{Runc{Version: "1.1.11"}, []string{fds, race, masked}, []string{old}, false},
		{Runc{Version: "1.1.12"}, []string{race, masked}, []string{fds}, false},
		{Runc{Version: "1.1.15"}, []string{masked}, []string{fds, race}, false},
		{Runc{Version: "1.2.0-rc.2"}, []string{race, masked}, []string{fds}, false},
		{Runc{Version: "1.2.7"}, []string{masked}, []string{fds, race}, false},
		{Runc{Version: "1.2.8"}, nil, []string{fds, race, masked}, false},
		{Runc{Version: "1.3.2"}, []string{masked}, []string{race}, false},
		{Runc{Version: "1.3.3"}, nil, []string{masked}, false},
		{Runc{Version: "1.4.0-rc.2"}, []string{masked}, []string{race}, false},
		{Runc{Version: "1.4.0"}, nil, []string{masked}, false},
		{Runc{Version: "2.0.0"}, nil, []string{masked}, false},
		{Runc{Version: "1.1.5+ds1", Package: "1.1.5+ds1-1", Patched: []string{"CVE-2023-27561"}, ChangelogRead: true}, []string{fds, race}, nil, false},
		{Runc{Version: "1.1.5+ds1", Package: "1.1.5+ds1-1+deb12u1", Patched: []string{fds}, ChangelogRead: true}, []string{race, masked}, []string{fds}, false},
		{Runc{Version: "1.1.5+ds1", Package: "1.1.5+ds1-1+deb12u9", Patched: []string{fds, race, masked, "CVE-2025-52565", "CVE-2025-52881"}, ChangelogRead: true}, nil, []string{fds, race, masked}, false},
		{Runc{Version: "1.1.5+ds1", Package: "1.1.5+ds1-1+deb12u1"}, nil, []string{fds}, true},
		{Runc{Version: "1.1.7-0ubuntu1", Package: "1.1.7-0ubuntu1~22.04.1"}, nil, nil, true},
		{Runc{Version: "unknown"}, nil, nil, true},
	} {
		open, unknown := test.runc.OpenEscapes()
		for _, cve := range test.open {
			if !slices.Contains(open, cve) {
				t.Errorf("%+v: %s is not open, but %v", test.runc, cve, open)
			}
		}
		for _, cve := range test.closed {
			if slices.Contains(open, cve) || slices.Contains(unknown, cve) {
				t.Errorf("%+v: %s is open or unknown", test.runc, cve)
			}
		}
		if test.open == nil && len(open) > 0 || test.unknown != (len(unknown) > 0) {
			t.Errorf("%+v: open %v, unknown %v", test.runc, open, unknown)
		}
	}
}

func TestChangelogNamesWhatItFixes(t *testing.T) {
	got := cves("runc (1.1.5) bookworm-security\n  * CVE-2024-21626: several\n  * fixes CVE-2023-25809, CVE-2024-21626\n")
	if want := []string{"CVE-2023-25809", "CVE-2024-21626"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// hardened is a machine that follows the guide.
func hardened() Hardening {
	yes := true
	return Hardening{
		View:     healthy(),
		Files:    []File{{Path: "/data", Mode: fs.ModeDir | 0o700}, {Path: "/data/server/kek.json", Mode: 0o600, Secret: true}},
		Settings: map[string]string{"user.max_user_namespaces": "9000", "kernel.kptr_restrict": "1", "kernel.dmesg_restrict": "1"},
		Seccomp:  true, AppArmor: true, AppArmorParser: true, RuncMaps: true, Encrypted: &yes,
		Listen: "10.0.0.1:7700", Runsc: "/usr/bin/runsc",
	}
}

func TestHardenedMachineHasNothingToMend(t *testing.T) {
	found := Harden(hardened())
	for _, f := range found {
		if f.Level != OK || f.Mend != "" || f.Check == "" {
			t.Errorf("%+v", f)
		}
	}
	if len(found) != len(hardening) {
		t.Errorf("%d findings of %d items", len(found), len(hardening))
	}
}

func TestEveryItemOfTheGuideFindsItsProblem(t *testing.T) {
	no := false
	for _, test := range []struct {
		item  string
		level Level
		spoil func(*Hardening)
		text  string
		mend  string
	}{
		{"files", Fail, func(h *Hardening) { h.Files[1].Mode = 0o644 }, "/data/server/kek.json can be read by others than root (mode 0644)", "chmod go-rwx"},
		{"files", Fail, func(h *Hardening) { h.Files[0].Mode = fs.ModeDir | 0o770 }, "can be changed by others", "chmod go-w /data"},
		{"files", Fail, func(h *Hardening) { h.Files[0].UID = 1000 }, "belongs to user 1000", "chown root:root /data"},
		{"files", Unknown, func(h *Hardening) { h.Files[0].Err = fmt.Errorf("x: %w", fs.ErrPermission) }, "cannot be seen by you", "sudo"},
		{"runc", Fail, func(h *Hardening) { h.Runc.Err = fs.ErrNotExist }, "is not installed", "apt-get install -y runc"},
		{"runc", Warn, func(h *Hardening) { h.Runc.Version = "1.2.7" }, "has no fix for CVE-2025-31133", "1.3.3 or newer"},
		{"seccomp", Fail, func(h *Hardening) { h.Seccomp = false }, "does not filter", "CONFIG_SECCOMP_FILTER"},
		{"mandatory access", Fail, func(h *Hardening) { h.AppArmorParser = false }, "no profile can be loaded", "apt-get install -y apparmor"},
		{"mandatory access", Warn, func(h *Hardening) { h.AppArmor = false }, "neither AppArmor nor SELinux", "apparmor=1"},
		{"mandatory access", Warn, func(h *Hardening) { h.AppArmor, h.SELinux = false, true }, "SELinux is on", "keep it on"},
		{"user namespaces", Warn, func(h *Hardening) { h.Settings["user.max_user_namespaces"] = "0" }, "gives no user namespaces", "sysctl"},
		{"user namespaces", Warn, func(h *Hardening) { h.Kernel = "5.15.0" }, "Linux 5.15.0 has no idmapped mounts", "5.19"},
		{"user namespaces", Warn, func(h *Hardening) { h.RuncMaps = false }, "only where their workload says userNamespace: true", "runc 1.2"},
		{"sandbox", Warn, func(h *Hardening) { h.Runsc = "" }, "runsc is not installed", "apt-get install -y runsc"},
		{"cgroups", Warn, func(h *Hardening) { h.Cgroups.Version = "hybrid" }, "version hybrid", "unified_cgroup_hierarchy"},
		{"swap", Warn, func(h *Hardening) { h.Swap = true }, "can write secrets in memory to it", "swapoff"},
		{"swap", Warn, func(h *Hardening) { h.Swap, h.Kernel = true, "6.6.0" }, "files with secrets are kept out", "swapoff"},
		{"kernel settings", Warn, func(h *Hardening) { h.Settings["kernel.kptr_restrict"] = "0" }, "kernel.kptr_restrict is 0", "sysctl -w kernel.kptr_restrict=1"},
		{"kernel settings", Warn, func(h *Hardening) { h.Settings["kernel.unprivileged_userns_clone"] = "1" }, "all users of the machine", "=0"},
		{"API address", Warn, func(h *Hardening) { h.Listen = "0.0.0.0:7700" }, "on all addresses", "firewall"},
		{"API address", Warn, func(h *Hardening) { h.Listen = "[::]:7700" }, "on all addresses", "firewall"},
		{"clock", Warn, func(h *Hardening) { h.Clock.Synchronized = false }, "follows no other one", "timedatectl"},
		{"disk encryption", Unknown, func(h *Hardening) { h.Encrypted = nil }, "nothing tells whether the disk", "LUKS"},
		{"disk encryption", Warn, func(h *Hardening) { h.Encrypted = &no }, "is not encrypted", "LUKS"},
		{"backup of keys", Unknown, func(h *Hardening) { h.Server = true }, "copy of server/kek.json", "copy /data/server/kek.json"},
	} {
		h := hardened()
		test.spoil(&h)
		bad := slices.DeleteFunc(Harden(h), func(f Finding) bool { return f.Level == OK })
		if len(bad) != 1 || bad[0].Check != test.item || bad[0].Level != test.level ||
			!strings.Contains(bad[0].Text, test.text) || !strings.Contains(bad[0].Mend, test.mend) {
			t.Errorf("want %s %s %q, mend with %q; got %+v", test.item, test.level, test.text, test.mend, bad)
		}
	}
}
