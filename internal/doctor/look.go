package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Options say what to look at.
type Options struct {
	// DataDir is the data folder, which need not exist.
	DataDir string
	// Ports to check; Look finds out which process uses them.
	Ports []Port
	// Containerd is the address of an external containerd; empty if there is none.
	Containerd string
}

// Look inspects this machine. It leaves the facts that only the caller knows empty: the folder, the certificates, the
// server's clock, leftovers.
func Look(ctx context.Context, o Options) View {
	v := View{
		OS: runtime.GOOS, Arch: runtime.GOARCH, Kernel: kernelRelease(), Root: os.Geteuid() == 0,
		Installer: installer(exec.LookPath),
		Runc:      lookRunc(ctx),
		Memory:    parseMemory(read("/proc/meminfo")),
		Cgroups:   parseCgroups(read("/proc/self/mounts"), os.ReadFile),
		Disk:      lookDisk(o.DataDir),
		Clock:     lookClock(),
		Ports:     lookPorts(o.Ports),
	}
	v.Forwarding = strings.TrimSpace(read("/proc/sys/net/ipv4/ip_forward")) == "1"
	v.NFTables = inThrowaway(tryNFTables)
	v.BridgeRules = inThrowaway(tryBridgeRules)
	v.Links = inThrowaway(tryLinks)
	v.Overlay = tryOverlay(o.DataDir)
	if o.Containerd != "" {
		v.Containerd = &Containerd{Address: o.Containerd, Err: reach(ctx, o.Containerd)}
	}
	return v
}

// read returns a file's content, empty if it cannot be read.
func read(path string) string {
	data, _ := os.ReadFile(path)
	return string(data)
}

func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

// installer is the command that installs packages on this machine.
func installer(look func(string) (string, error)) string {
	for _, command := range []string{"apt-get install -y", "dnf install -y", "zypper install -y", "apk add", "pacman -S --noconfirm"} {
		program, _, _ := strings.Cut(command, " ")
		if _, err := look(program); err == nil {
			return command
		}
	}
	return ""
}

func lookRunc(ctx context.Context) Runc {
	path, err := exec.LookPath("runc")
	if err != nil {
		return Runc{Err: fs.ErrNotExist}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	r := Runc{Path: path, Version: parseRuncVersion(out), Err: err}
	if err == nil && r.Version == "" {
		r.Err = fmt.Errorf("it says %q when it is asked for its version", bytes.TrimSpace(out[:min(len(out), 80)]))
	}
	if r.Err == nil {
		r.lookPackage(ctx)
	}
	return r
}

// parseRuncVersion finds "1.1.5" in "runc version 1.1.5+ds1".
func parseRuncVersion(out []byte) string {
	_, rest, found := strings.Cut(string(out), "version ")
	if !found {
		return ""
	}
	if fields := strings.Fields(rest); len(fields) > 0 {
		return fields[0]
	}
	return ""
}

// parseMemory parses /proc/meminfo.
func parseMemory(file string) (m Memory) {
	for line := range strings.Lines(file) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		n, err := strconv.ParseUint(fields[1], 10, 54) // so that the number of bytes does not overflow
		if err != nil {
			continue
		}
		switch fields[0] {
		case "MemTotal:":
			m.Total = n << 10
		case "MemAvailable:":
			m.Available = n << 10
		}
	}
	return m
}

// parseCgroups parses the table of mounts.
func parseCgroups(mounts string, readFile func(string) ([]byte, error)) Cgroups {
	var one, two bool
	var controllers []string
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			continue
		}
		switch fields[2] {
		case "cgroup":
			one = true
			controllers = append(controllers, strings.Split(fields[3], ",")...)
		case "cgroup2":
			two = true
			if data, err := readFile(filepath.Join(fields[1], "cgroup.controllers")); err == nil {
				controllers = append(controllers, strings.Fields(string(data))...)
			}
		}
	}
	version := map[[2]bool]string{{true, true}: "hybrid", {true, false}: "1", {false, true}: "2"}[[2]bool{one, two}]
	return Cgroups{Version: version, Controllers: controllers}
}

// existing is path or its nearest parent that exists.
func existing(path string) string {
	for ; path != "/" && path != "."; path = filepath.Dir(path) {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return path
		}
	}
	return path
}

func lookDisk(path string) Disk {
	d := Disk{Path: path}
	var s unix.Statfs_t
	if d.Err = unix.Statfs(existing(path), &s); d.Err != nil {
		return d
	}
	d.Free, d.Total = s.Bavail*uint64(s.Bsize), s.Blocks*uint64(s.Bsize)
	d.FreeInodes, d.Inodes = s.Ffree, s.Files
	return d
}

func lookClock() Clock {
	var t unix.Timex // nothing is changed
	_, err := unix.ClockAdjtime(unix.CLOCK_REALTIME, &t)
	return Clock{Now: time.Now(), Synchronized: err == nil && t.Status&unix.STA_UNSYNC == 0}
}

// reach connects to a socket and disconnects.
func reach(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(address, "unix://"))
	if err != nil {
		if inner, ok := errors.AsType[*os.SyscallError](err); ok {
			return inner.Err
		}
		return err
	}
	return conn.Close()
}
