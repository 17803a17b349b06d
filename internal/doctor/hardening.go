package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// Hardening is what a hardening guide asks about a machine, besides its [View].
type Hardening struct {
	View
	Files []File
	// Settings of the kernel, by their names in sysctl; those that it has not are missing.
	Settings map[string]string
	// Seccomp is whether the kernel filters system calls.
	Seccomp bool
	// AppArmor and SELinux are whether the kernel uses them; AppArmorParser is whether profiles can be loaded.
	AppArmor, AppArmorParser, SELinux bool
	// RuncMaps is whether runc can show folders with other owners.
	RuncMaps bool
	Swap     bool
	// Encrypted is whether the disk of the data folder is encrypted; nil if that cannot be seen.
	Encrypted *bool
	// Listen is the address of the API on this machine; empty if it has no server.
	Listen string
	// Runsc is the path of gVisor's runsc; empty if it is not installed.
	Runsc string
	// Server is whether the data folder has a server.
	Server bool
}

// File is a file or a folder that others must not change, or not even read.
type File struct {
	Path string
	Mode fs.FileMode
	UID  uint32
	// Secret is whether others must not read it.
	Secret bool
	Err    error
}

// hardening are the items of the guide that are about the machine.
var hardening = []struct {
	name  string
	judge func(Hardening) []Finding
}{
	{"files", privateFiles},
	{"runc", func(h Hardening) []Finding {
		if found := runc(h.View); Worst(found) == Fail {
			return found
		}
		return escapeProof(h.View)
	}},
	{"seccomp", seccompFilters},
	{"mandatory access", mandatoryAccess},
	{"user namespaces", userNamespaces},
	{"sandbox", sandbox},
	{"cgroups", cgroupVersion},
	{"swap", swap},
	{"kernel settings", kernelSettings},
	{"API address", exposure},
	{"clock", func(h Hardening) []Finding { return clock(h.View) }},
	{"disk encryption", encryption},
	{"backup of keys", keyBackup},
}

// Harden judges the machine by the guide.
func Harden(h Hardening) (all []Finding) {
	for _, item := range hardening {
		for _, f := range item.judge(h) {
			f.Check = item.name
			all = append(all, f)
		}
	}
	return all
}

func unknown(text, mend string) []Finding { return []Finding{{Level: Unknown, Text: text, Mend: mend}} }

const (
	writableByOthers fs.FileMode = 0o022
	readableByOthers fs.FileMode = 0o044
)

func privateFiles(h Hardening) (all []Finding) {
	good, closed := 0, 0
	for _, f := range h.Files {
		switch {
		case errors.Is(f.Err, fs.ErrPermission):
			closed++
		case f.Err != nil:
			all = append(all, unknown(fmt.Sprintf("%s cannot be read: %v", f.Path, f.Err), "ls -l "+f.Path)...)
		case f.UID != 0:
			all = append(all, fail(fmt.Sprintf("%s belongs to user %d, who can change what root runs", f.Path, f.UID), "chown root:root "+f.Path)...)
		case f.Mode&writableByOthers != 0:
			all = append(all, fail(fmt.Sprintf("%s can be changed by others than root (mode %#o)", f.Path, f.Mode.Perm()), "chmod go-w "+f.Path)...)
		case f.Secret && f.Mode&readableByOthers != 0:
			all = append(all, fail(fmt.Sprintf("%s can be read by others than root (mode %#o), and holds keys", f.Path, f.Mode.Perm()), "chmod go-rwx "+f.Path)...)
		default:
			good++
		}
	}
	if closed > 0 {
		all = append(all, unknown(fmt.Sprintf("%d of %d files and folders with keys and data cannot be seen by you", closed, len(h.Files)), "sudo cloudless doctor --security")...)
	}
	switch {
	case len(h.Files) == 0:
		return ok("there is no data folder on this machine")
	case len(all) == 0:
		return ok(fmt.Sprintf("all %d files and folders with keys and data are root's alone", good))
	}
	return all
}

func seccompFilters(h Hardening) []Finding {
	if !h.Seccomp {
		return fail("the kernel does not filter system calls, so that programs can try all of them", "use a kernel with CONFIG_SECCOMP_FILTER, as those of the distributions have")
	}
	return ok("the kernel filters system calls; every replica has a filter unless it is privileged")
}

func mandatoryAccess(h Hardening) []Finding {
	switch {
	case h.AppArmor && !h.AppArmorParser:
		return fail("the kernel uses AppArmor, and no profile can be loaded, so that replicas do not start", h.install("apparmor"))
	case h.AppArmor:
		return ok("AppArmor confines replicas")
	case h.SELinux:
		return warn("SELinux is on, and Cloudless gives its replicas no labels of it", "keep it on for the rest of the machine; profiles and user namespaces confine replicas")
	}
	return warn("the kernel has neither AppArmor nor SELinux in use", "add apparmor=1 security=apparmor to the kernel's command line, and start the machine again")
}

// mapsOverlay is the first version of Linux whose overlayfs shows files with other owners.
var mapsOverlay = [2]int{5, 19}

func userNamespaces(h Hardening) []Finding {
	switch limit := h.Settings["user.max_user_namespaces"]; {
	case limit == "" || limit == "0":
		return warn("the kernel gives no user namespaces, so that root in a replica is root of the machine, with few rights", "sysctl -w user.max_user_namespaces=10000")
	case olderThan(h.Kernel, mapsOverlay):
		return warn(fmt.Sprintf("Linux %s has no idmapped mounts of overlayfs, which user namespaces need", h.Kernel), "install Linux 5.19 or newer")
	case !h.RuncMaps:
		return warn(fmt.Sprintf("runc %s has no idmapped mounts: replicas have user namespaces only where their workload says userNamespace: true", h.Runc.Version),
			"install runc 1.2 or newer; then they are the default")
	}
	return ok("replicas have user namespaces, so that their root is nobody on this machine")
}

func sandbox(h Hardening) []Finding {
	if h.Runsc == "" {
		return warn("runsc is not installed, so that sandbox: gvisor cannot run here", h.install("runsc")+" (Debian, Ubuntu), or see https://gvisor.dev/docs/user_guide/install; then start the agent again")
	}
	return ok("sandbox: gvisor runs with " + h.Runsc)
}

func cgroupVersion(h Hardening) []Finding {
	switch h.Cgroups.Version {
	case "2":
		return ok("cgroups are of version 2")
	case "":
		return cgroups(h.View)
	}
	return warn(fmt.Sprintf("cgroups are of version %s: limits of memory and disk are weaker than in version 2", h.Cgroups.Version),
		"add systemd.unified_cgroup_hierarchy=1 to the kernel's command line, and start the machine again")
}

// noSwapTmpfs is the first version of Linux that keeps a tmpfs out of the swap.
var noSwapTmpfs = [2]int{6, 4}

func swap(h Hardening) []Finding {
	switch {
	case !h.Swap:
		return ok("there is no swap, to which secrets in memory could be written")
	case olderThan(h.Kernel, noSwapTmpfs):
		return warn(fmt.Sprintf("there is swap, and Linux %s can write secrets in memory to it", h.Kernel), "swapoff -a, an encrypted swap, or Linux 6.4 or newer")
	}
	return warn("there is swap: files with secrets are kept out of it, but not the memory of programs", "swapoff -a, or an encrypted swap")
}

// kernelSetting is one that should have at least a value.
type kernelSetting struct {
	name  string
	least int
	why   string
}

var kernelSettingsWanted = []kernelSetting{
	{"kernel.kptr_restrict", 1, "shows addresses of the kernel to all users"},
	{"kernel.dmesg_restrict", 1, "shows the kernel's log to all users"},
	{"kernel.unprivileged_bpf_disabled", 1, "lets all users load programs into the kernel"},
	{"kernel.yama.ptrace_scope", 1, "lets programs read the memory of others of the same user"},
	{"fs.protected_hardlinks", 1, "lets users link to files that they cannot read"},
	{"fs.protected_symlinks", 1, "follows links of others in shared folders"},
	{"net.ipv4.tcp_syncookies", 1, "lets floods of connections block ports"},
}

func kernelSettings(h Hardening) (all []Finding) {
	weak := func(name, value, why, better string) {
		all = append(all, warn(fmt.Sprintf("%s is %s, which %s", name, value, why), fmt.Sprintf("sysctl -w %s=%s, and the same in /etc/sysctl.d", name, better))...)
	}
	for _, s := range kernelSettingsWanted {
		value, has := h.Settings[s.name]
		if n, err := strconv.Atoi(value); has && err == nil && n < s.least {
			weak(s.name, value, s.why, strconv.Itoa(s.least))
		}
	}
	if h.Settings["kernel.unprivileged_userns_clone"] == "1" {
		weak("kernel.unprivileged_userns_clone", "1", "lets all users of the machine make user namespaces, a frequent first step of attacks", "0")
	}
	if h.Settings["fs.suid_dumpable"] == "1" {
		weak("fs.suid_dumpable", "1", "lets users read the memory of crashed programs of root", "0")
	}
	if len(all) == 0 {
		return ok("the kernel's settings keep users apart")
	}
	return all
}

func exposure(h Hardening) []Finding {
	host := h.Listen
	if at := strings.LastIndexByte(host, ':'); at >= 0 {
		host = strings.Trim(host[:at], "[]")
	}
	switch {
	case h.Listen == "":
		return ok("no API listens on this machine")
	case host == "127.0.0.1" || host == "::1" || host == "localhost":
		return ok("the API listens on " + h.Listen + ", which only this machine reaches")
	case slices.Contains([]string{"", "0.0.0.0", "::"}, host):
		return warn("the API listens on all addresses of this machine, at "+h.Listen+"; TLS, certificates and tokens protect it, but nothing else does",
			"cloudless up --listen ADDRESS with one of a private network, or let your firewall pass only those who use it")
	}
	return ok("the API listens on " + h.Listen + " only")
}

func encryption(h Hardening) []Finding {
	switch {
	case h.Encrypted == nil:
		return unknown("nothing tells whether the disk of "+h.Disk.Path+" is encrypted", "ask who runs the machine, or move the data folder to a volume of LUKS")
	case !*h.Encrypted:
		return warn("the disk of "+h.Disk.Path+" is not encrypted: whoever gets it has the keys of this machine", "move the data folder to a volume of LUKS")
	}
	return ok("the disk of " + h.Disk.Path + " is encrypted")
}

func keyBackup(h Hardening) []Finding {
	if !h.Server {
		return ok("this machine has no server, and so no keys that would have to be kept")
	}
	return unknown("nothing tells whether you have a copy of server/kek.json, without which a backup of the cluster cannot be opened",
		"copy "+h.Folder.Path+"/server/kek.json to a place that is not on a machine of the cluster, after every rotation")
}
