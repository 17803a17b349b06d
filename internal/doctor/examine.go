package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// check judges one aspect of the machine.
type check struct {
	name  string
	judge func(View) []Finding
}

// checks are in the order in which to fix problems: prerequisites come first.
var checks = []check{
	{"kernel", kernel},
	{"root", root},
	{"runc", runc},
	{"cgroups", cgroups},
	{"overlayfs", overlay},
	{"links", links},
	{"nftables", nftablesWork},
	{"bridge rules", bridgeRules},
	{"forwarding", forwarding},
	{"disk", disk},
	{"memory", memory},
	{"clock", clock},
	{"data folder", folder},
	{"certificates", certificates},
	{"ports", ports},
	{"leftovers", leftovers},
	{"containerd", containerd},
}

// Examine runs all checks.
func Examine(v View) (all []Finding) {
	for _, c := range checks {
		for _, f := range c.judge(v) {
			f.Check = c.name
			all = append(all, f)
		}
	}
	return all
}

// oldestKernel has pidfds, which are needed to stop processes safely.
var oldestKernel = [2]int{5, 3}

func kernel(v View) []Finding {
	switch {
	case v.OS != "linux":
		return fail("containers need Linux, and this is "+v.OS, "run the server and its nodes on Linux; the command line works here")
	case v.Arch != "amd64" && v.Arch != "arm64":
		return fail("there is no container runtime for "+v.Arch+" in this program", "use a machine with amd64 or arm64")
	case olderThan(v.Kernel, oldestKernel):
		return fail(fmt.Sprintf("Linux %s is older than %d.%d", v.Kernel, oldestKernel[0], oldestKernel[1]), "install a newer kernel and start the machine again")
	}
	return ok("Linux " + v.Kernel + " on " + v.Arch)
}

// olderThan compares the first two numbers of a version. A version that cannot be parsed is not older.
func olderThan(version string, than [2]int) bool {
	major, rest, _ := strings.Cut(version, ".")
	minor := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	a, err1 := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	if err1 != nil || err2 != nil {
		return false
	}
	return slices.Compare([]int{a, b}, than[:]) < 0
}

func root(v View) []Finding {
	if !v.Root {
		return fail("containers are started by root, and you are not", "sudo cloudless doctor")
	}
	return ok("you are root")
}

func (v View) install(name string) string {
	if v.Installer == "" {
		return "install the package " + name
	}
	return v.Installer + " " + name
}

func runc(v View) []Finding {
	switch {
	case errors.Is(v.Runc.Err, fs.ErrNotExist):
		return fail("runc, which starts containers, is not installed", v.install("runc"))
	case v.Runc.Err != nil:
		return fail(fmt.Sprintf("runc at %s does not run: %v", v.Runc.Path, v.Runc.Err), v.install("runc"))
	case olderThan(v.Runc.Version, [2]int{1, 1}):
		return warn(fmt.Sprintf("runc %s at %s is older than 1.1, which is tested", v.Runc.Version, v.Runc.Path), v.install("runc"))
	}
	if found := escapeProof(v); Worst(found) != OK {
		return found
	}
	return ok(fmt.Sprintf("runc %s at %s", v.Runc.Version, v.Runc.Path))
}

func cgroups(v View) []Finding {
	if v.Cgroups.Version == "" {
		return fail("no cgroups are mounted, so that nothing can be limited", "mount -t cgroup2 none /sys/fs/cgroup")
	}
	var missing []string
	for _, needed := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(v.Cgroups.Controllers, needed) {
			missing = append(missing, needed)
		}
	}
	if len(missing) > 0 {
		return fail(fmt.Sprintf("cgroups (version %s) lack %s", v.Cgroups.Version, strings.Join(missing, " and ")),
			"add cgroup_enable="+strings.Join(missing, " cgroup_enable=")+" to the kernel's command line and start the machine again")
	}
	return ok("cgroups (version " + v.Cgroups.Version + ") with cpu, memory and pids")
}

// probed judges the result of a probe that needs root.
func (v View) probed(err error, works string, failed func() []Finding) []Finding {
	switch {
	case err == nil:
		return ok(works)
	case !v.Root && errors.Is(err, fs.ErrPermission):
		return warn("only root can try whether "+works, "sudo cloudless doctor")
	}
	return failed()
}

func overlay(v View) []Finding {
	return v.probed(v.Overlay, "images can be mounted in layers", func() []Finding {
		return warn(fmt.Sprintf("overlayfs does not work below %s, so that every container gets a full copy of its image: %v", v.Disk.Path, v.Overlay),
			"modprobe overlay, or choose a --data-dir on ext4 or xfs")
	})
}

func links(v View) []Finding {
	return v.probed(v.Links, "bridges and veth pairs can be made", func() []Finding {
		return fail(fmt.Sprintf("the network of containers cannot be made: %v", v.Links), "modprobe -a bridge veth")
	})
}

func nftablesWork(v View) []Finding {
	return v.probed(v.NFTables, "nftables can translate addresses", func() []Finding {
		return fail(fmt.Sprintf("the kernel refuses rules of nftables, which publish ports: %v", v.NFTables), "modprobe -a nf_tables nft_nat nft_masq")
	})
}

func bridgeRules(v View) []Finding {
	return v.probed(v.BridgeRules, "replicas can be held to their own addresses", func() []Finding {
		return warn(fmt.Sprintf("the kernel has no nftables rules for bridges, so a replica can pretend to be another one of this machine: %v", v.BridgeRules),
			"use a kernel with CONFIG_NF_TABLES_BRIDGE, as those of the distributions have")
	})
}

func forwarding(v View) []Finding {
	if !v.Forwarding {
		return warn("the kernel does not pass packets on yet; the agent turns that on when it starts", "sysctl -w net.ipv4.ip_forward=1")
	}
	return ok("the kernel passes packets on")
}
