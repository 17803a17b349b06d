package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// LookHardening inspects this machine for [Harden]. It leaves the data folder's own facts and the address of the API to
// the caller.
func LookHardening(ctx context.Context, v View, files []File) Hardening {
	h := Hardening{
		View: v, Files: files, Settings: map[string]string{},
		Seccomp:  strings.Contains(read("/proc/self/status"), "\nSeccomp:") && read("/proc/sys/kernel/seccomp/actions_avail") != "",
		AppArmor: strings.HasPrefix(read("/sys/module/apparmor/parameters/enabled"), "Y"),
		SELinux:  strings.HasPrefix(read("/sys/fs/selinux/enforce"), "1"),
		Swap:     strings.Count(strings.TrimSpace(read("/proc/swaps")), "\n") > 0,
		RuncMaps: runcMaps(ctx, v.Runc.Path),
	}
	for _, program := range []struct{ name, other string }{{"apparmor_parser", "/sbin/apparmor_parser"}, {"runsc", "/usr/local/bin/runsc"}} {
		path, err := exec.LookPath(program.name)
		if err != nil {
			if _, err := os.Stat(program.other); err != nil {
				continue
			}
			path = program.other
		}
		if program.name == "runsc" {
			h.Runsc = path
		} else {
			h.AppArmorParser = true
		}
	}
	names := []string{"user.max_user_namespaces", "kernel.unprivileged_userns_clone", "fs.suid_dumpable"}
	for _, s := range kernelSettingsWanted {
		names = append(names, s.name)
	}
	for _, name := range names {
		if value, err := os.ReadFile(filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))); err == nil {
			h.Settings[name] = strings.TrimSpace(string(value))
		}
	}
	h.Encrypted = lookEncryption(v.Disk.Path)
	return h
}

// LookFile reads who may do what with a file.
func LookFile(path string, secret bool) File {
	info, err := os.Stat(path)
	if err != nil {
		return File{Path: path, Secret: secret, Err: err}
	}
	f := File{Path: path, Mode: info.Mode(), Secret: secret}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		f.UID = stat.Uid
	}
	return f
}

// runcMaps asks runc whether it has idmapped mounts. Old versions cannot be asked, and have none.
func runcMaps(ctx context.Context, path string) bool {
	if path == "" {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "features").Output()
	if err != nil {
		return false
	}
	var features struct {
		Linux struct {
			MountExtensions struct {
				IDMap struct{ Enabled bool } `json:"idmap"`
			} `json:"mountExtensions"`
		} `json:"linux"`
	}
	return json.Unmarshal(out, &features) == nil && features.Linux.MountExtensions.IDMap.Enabled
}

// lookEncryption reports whether a folder is on a volume of dm-crypt; nil if the device shows nothing of the kind. A disk
// that is encrypted below the machine, as those of clouds, cannot be seen.
func lookEncryption(path string) *bool {
	var stat unix.Stat_t
	if err := unix.Stat(existing(path), &stat); err != nil {
		return nil
	}
	device := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev))
	for range 8 { // volumes on volumes
		if strings.HasPrefix(read(filepath.Join(device, "dm/uuid")), "CRYPT-") {
			yes := true
			return &yes
		}
		below, err := os.ReadDir(filepath.Join(device, "slaves"))
		if err != nil || len(below) == 0 {
			return nil
		}
		device = filepath.Join(device, "slaves", below[0].Name())
	}
	return nil
}

// IsMissing reports whether a file does not exist.
func (f File) IsMissing() bool {
	return f.Err != nil && os.IsNotExist(f.Err) || f.Mode&fs.ModeSymlink != 0
}
