package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/suggest"
)

// The profiles of what programs may do on their machine, from the strictest one.
const (
	ProfileRestricted = "restricted"
	ProfileDefault    = "default"
	ProfilePrivileged = "privileged"
)

// The filters of system calls and the AppArmor profiles that are not the cluster's own.
const (
	FilterDefault    = "default"
	FilterUnconfined = "unconfined"
)

// SandboxGVisor runs programs on a kernel of their own, as a process of the machine.
const SandboxGVisor = "gvisor"

// allCapabilities stands for every capability in a list.
const allCapabilities = "ALL"

// bindService is the only capability that the profile "restricted" can have.
const bindService = "NET_BIND_SERVICE"

// capabilities are those of Linux. The value tells whether a workload of the profile "default" may add it: the others
// reach beyond its own container.
var capabilities = map[string]bool{
	"AUDIT_CONTROL": false, "AUDIT_READ": false, "AUDIT_WRITE": true, "BLOCK_SUSPEND": false, "BPF": false,
	"CHECKPOINT_RESTORE": false, "CHOWN": true, "DAC_OVERRIDE": true, "DAC_READ_SEARCH": false, "FOWNER": true,
	"FSETID": true, "IPC_LOCK": true, "IPC_OWNER": false, "KILL": true, "LEASE": true, "LINUX_IMMUTABLE": false,
	"MAC_ADMIN": false, "MAC_OVERRIDE": false, "MKNOD": true, "NET_ADMIN": false, bindService: true,
	"NET_BROADCAST": false, "NET_RAW": true, "PERFMON": false, "SETFCAP": true, "SETGID": true, "SETPCAP": true,
	"SETUID": true, "SYSLOG": false, "SYS_ADMIN": false, "SYS_BOOT": false, "SYS_CHROOT": true, "SYS_MODULE": false,
	"SYS_NICE": true, "SYS_PACCT": false, "SYS_PTRACE": false, "SYS_RAWIO": false, "SYS_RESOURCE": false,
	"SYS_TIME": false, "SYS_TTY_CONFIG": false, "WAKE_ALARM": false,
}

// ProfileOf is the security profile of a workload. The server writes that of the namespace into a workload that names
// none.
func ProfileOf(s *v1.WorkloadSpec) string {
	if p := s.GetSecurity().GetProfile(); p != "" {
		return p
	}
	return ProfileDefault
}

// SeccompName is the name of a filter in the cluster's configuration that a workload names; empty if it names none.
func SeccompName(s *v1.WorkloadSpec) string {
	switch name := s.GetSecurity().GetSeccomp(); name {
	case FilterDefault, FilterUnconfined:
		return ""
	default:
		return name
	}
}

// SeccompOf is the filter of system calls that a workload names, as JSON; empty if it names none of the cluster's.
func SeccompOf(s *v1.WorkloadSpec, c *v1.ClusterSpec) (string, error) {
	name := SeccompName(s)
	if name == "" {
		return "", nil
	}
	known := c.GetSecurity().GetSeccompProfiles()
	if text, found := known[name]; found {
		return text, nil
	}
	hint := "the configuration has none; add it with: cloudless cluster config set -f FILE"
	if near := suggest.To(name, maps.Keys(known)); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	} else if len(known) > 0 {
		hint = "it has " + strings.Join(slices.Sorted(maps.Keys(known)), ", ")
	}
	return "", fmt.Errorf("security.seccomp %q is neither %q, %q nor a filter in security.seccompProfiles of the cluster's configuration: %s",
		name, FilterDefault, FilterUnconfined, hint)
}

// normalSecurity returns nil for an empty message, so that "nothing set" has one form.
func normalSecurity(s *v1.Security) *v1.Security {
	if s == nil {
		return nil
	}
	if c := s.Capabilities; c != nil {
		c.Add, c.Drop = normalCapabilities(c.Add), normalCapabilities(c.Drop)
		s.Capabilities = unlessEmpty(c)
	}
	slices.Sort(s.Devices)
	s.Devices = slices.Compact(s.Devices)
	return unlessEmpty(s)
}

func normalCapabilities(names []string) []string {
	for i, name := range names {
		names[i] = strings.TrimPrefix(name, "CAP_")
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// checkSecurity refuses settings that contradict each other or do not exist.
func checkSecurity(s *v1.WorkloadSpec, found *violations) {
	const at = "spec.security"
	checkWorkingDir("spec.workingDir", s.GetWorkingDir(), found)
	o, profile := s.GetSecurity(), ProfileOf(s)
	checkCapabilities(o.GetCapabilities(), profile, found)
	if profile != ProfilePrivileged {
		for name, value := range map[string]string{"seccomp": o.GetSeccomp(), "apparmor": o.GetApparmor()} {
			if value == FilterUnconfined {
				found.add(at+"."+name, "must not be %q unless the profile is %q", FilterUnconfined, ProfilePrivileged)
			}
		}
	}
	for i, device := range o.GetDevices() {
		if path.Clean(device) != device {
			found.add(indexPath(at+".devices", i), "must be a plain path: write %s", path.Clean(device))
		}
	}
	if profile == ProfileRestricted {
		checkRestricted(s, found)
	}
	if o.GetUserNamespace() {
		switch {
		case profile == ProfilePrivileged:
			found.add(at+".userNamespace", "contradicts the profile %q; leave one of them out", ProfilePrivileged)
		case s.GetNetwork() == "host":
			found.add(at+".userNamespace", "cannot be with network host, which belongs to the machine's own users; use network node")
		}
	}
	checkSandbox(s, found)
}

func checkRestricted(s *v1.WorkloadSpec, found *violations) {
	const at = "spec.security"
	user, _, _ := strings.Cut(s.GetUser(), ":")
	if user == "root" || user != "" && strings.Trim(user, "0") == "" {
		found.add("spec.user", "must not be root with the profile %q; name another one, such as 1000:1000", ProfileRestricted)
	}
	if s.GetNetwork() == "host" {
		found.add("spec.network", "must not be host with the profile %q; use network node", ProfileRestricted)
	}
	if s.GetSecurity().GetAllowPrivilegeEscalation() {
		found.add(at+".allowPrivilegeEscalation", "must not be true with the profile %q", ProfileRestricted)
	}
	if len(s.GetSecurity().GetDevices()) > 0 {
		found.add(at+".devices", "must be empty with the profile %q", ProfileRestricted)
	}
}

// checkSandbox refuses what would be ignored in a sandbox, or would lead out of it.
func checkSandbox(s *v1.WorkloadSpec, found *violations) {
	if s.GetSandbox() == "" {
		return
	}
	o := s.GetSecurity()
	refuse := func(broken bool, field, why string) {
		if broken {
			found.add(field, "cannot be with sandbox %s: %s", s.GetSandbox(), why)
		}
	}
	refuse(ProfileOf(s) == ProfilePrivileged, "spec.security.profile", "a privileged program is not to be kept in")
	refuse(s.GetNetwork() == "host", "spec.network", "the sandbox would have the network of the machine; use network node")
	refuse(o.GetUserNamespace(), "spec.security.userNamespace", "the sandbox has users of its own; leave it out")
	refuse(SeccompName(s) != "", "spec.security.seccomp", "its system calls do not reach the kernel of the machine; leave it out")
	refuse(len(o.GetDevices()) > 0, "spec.security.devices", "the sandbox has no access to devices")
	refuse(s.GetResources().GetGpu().GetCount() > 0, "spec.resources.gpu", "the sandbox has no access to devices")
}

func checkCapabilities(c *v1.Capabilities, profile string, found *violations) {
	const at = "spec.security.capabilities"
	for list, names := range map[string][]string{"add": c.GetAdd(), "drop": c.GetDrop()} {
		for i, name := range names {
			field := indexPath(at+"."+list, i)
			allowed, known := capabilities[name]
			switch {
			case name == allCapabilities && (list == "drop" || profile == ProfilePrivileged):
			case name == allCapabilities:
				found.add(field, "must not be %s unless the profile is %q", allCapabilities, ProfilePrivileged)
			case !known:
				found.add(field, "%s is no capability of Linux%s", name, didYouMean(name))
			case list == "drop":
			case profile == ProfileRestricted && name != bindService:
				found.add(field, "must be %s with the profile %q, which allows no other one", bindService, ProfileRestricted)
			case profile == ProfileDefault && !allowed:
				found.add(field, "%s reaches beyond the container, and needs the profile %q", name, ProfilePrivileged)
			}
			if list == "drop" && slices.Contains(c.GetAdd(), name) {
				found.add(field, "%s is also added; leave one of them out", name)
			}
		}
	}
}

func didYouMean(capability string) string {
	if near := suggest.To(capability, maps.Keys(capabilities)); near != "" {
		return fmt.Sprintf("; did you mean %s?", near)
	}
	return "; man 7 capabilities lists them"
}

// Capabilities are those that a program has, in order and with the prefix of Linux, given those of its profile.
func Capabilities(of []string, change *v1.Capabilities) []string {
	has := map[string]bool{}
	for _, name := range of {
		has[strings.TrimPrefix(name, "CAP_")] = true
	}
	if slices.Contains(change.GetDrop(), allCapabilities) {
		clear(has)
	}
	for _, name := range change.GetDrop() {
		delete(has, name)
	}
	for _, name := range change.GetAdd() {
		if name == allCapabilities {
			for name := range capabilities {
				has[name] = true
			}
			continue
		}
		has[name] = true
	}
	all := make([]string, 0, len(has))
	for _, name := range slices.Sorted(maps.Keys(has)) {
		all = append(all, "CAP_"+name)
	}
	return all
}

// AllCapabilities are all of Linux, in order and with the prefix.
func AllCapabilities() []string {
	return Capabilities(nil, &v1.Capabilities{Add: []string{allCapabilities}})
}

// KernelFolder returns the folder of the kernel that a working folder is in, /proc or /sys, or nothing. Such a folder can
// be a way out of the container (CVE-2024-21626).
func KernelFolder(dir string) string {
	// A leading slash is there in any case, so that ".." does not get above it.
	switch first, _, _ := strings.Cut(path.Clean("/" + dir)[1:], "/"); first {
	case "proc", "sys":
		return "/" + first
	}
	// As it is written, too: behind a link in /proc, ".." leads elsewhere.
	parts := slices.DeleteFunc(strings.Split(dir, "/"), func(part string) bool { return part == "" || part == "." })
	if len(parts) > 0 && (parts[0] == "proc" || parts[0] == "sys") {
		return "/" + parts[0]
	}
	return ""
}

func checkWorkingDir(field, dir string, found *violations) {
	if in := KernelFolder(dir); in != "" {
		found.add(field, "must not be in %s, which leads to the kernel and not to files; choose another folder", in)
	}
}

// checkSeccompProfiles refuses filters that no node could load.
func checkSeccompProfiles(profiles map[string]string, found *violations) {
	for _, name := range slices.Sorted(maps.Keys(profiles)) {
		at := keyPath(clusterPath+".security.seccompProfiles", name)
		if name == FilterDefault || name == FilterUnconfined {
			found.add(at, "has a name that is taken by the cluster; choose another one")
		}
		if _, err := ParseSeccomp(profiles[name]); err != nil {
			found.add(at, "%s", err)
		}
	}
}

var (
	seccompActions = []specs.LinuxSeccompAction{
		specs.ActKill, specs.ActKillProcess, specs.ActKillThread, specs.ActTrap, specs.ActErrno, specs.ActTrace, specs.ActAllow, specs.ActLog,
	}
	seccompOperators = []specs.LinuxSeccompOperator{
		specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpEqualTo, specs.OpGreaterEqual, specs.OpGreaterThan, specs.OpMaskedEqual,
	}
)

// maxSeccompArguments is how many arguments a system call has.
const maxSeccompArguments = 6

// ParseSeccomp reads a filter of system calls in the format of OCI runtimes.
func ParseSeccomp(text string) (*specs.LinuxSeccomp, error) {
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	var filter specs.LinuxSeccomp
	if err := decoder.Decode(&filter); err != nil {
		return nil, fmt.Errorf("is not a filter in the format of OCI runtimes, {\"defaultAction\": …, \"syscalls\": [{\"names\": …, \"action\": …}]}: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("has more after its end")
	}
	if !slices.Contains(seccompActions, filter.DefaultAction) {
		return nil, fmt.Errorf("has the default action %q; write one such as %s or %s", filter.DefaultAction, specs.ActErrno, specs.ActAllow)
	}
	if filter.ListenerPath != "" || filter.ListenerMetadata != "" {
		return nil, errors.New("names a listener, which no node has")
	}
	for _, arch := range filter.Architectures {
		if !strings.HasPrefix(string(arch), "SCMP_ARCH_") {
			return nil, fmt.Errorf("has the architecture %q; write one such as %s", arch, specs.ArchX86_64)
		}
	}
	for i, call := range filter.Syscalls {
		if err := checkSyscall(call); err != nil {
			return nil, fmt.Errorf("syscalls[%d] %w", i, err)
		}
	}
	return &filter, nil
}

func checkSyscall(call specs.LinuxSyscall) error {
	switch {
	case len(call.Names) == 0 || slices.Contains(call.Names, ""):
		return errors.New("names no system call")
	case !slices.Contains(seccompActions, call.Action):
		return fmt.Errorf("has the action %q; write one such as %s or %s", call.Action, specs.ActErrno, specs.ActAllow)
	}
	for _, arg := range call.Args {
		switch {
		case arg.Index >= maxSeccompArguments:
			return fmt.Errorf("compares argument %d; a system call has %d, and the first one is 0", arg.Index, maxSeccompArguments)
		case !slices.Contains(seccompOperators, arg.Op):
			return fmt.Errorf("compares by %q; write one such as %s", arg.Op, specs.OpEqualTo)
		}
	}
	return nil
}

// SecurityInWords is one line about what the program of a workload may do; empty if nothing is set.
func SecurityInWords(s *v1.WorkloadSpec) string {
	o := s.GetSecurity()
	var words []string
	add := func(when bool, format string, args ...any) {
		if when {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	add(o.GetProfile() != "", "profile %s", o.GetProfile())
	add(len(o.GetCapabilities().GetAdd()) > 0, "with %s", strings.Join(o.GetCapabilities().GetAdd(), ", "))
	add(len(o.GetCapabilities().GetDrop()) > 0, "without %s", strings.Join(o.GetCapabilities().GetDrop(), ", "))
	add(o != nil && o.UserNamespace != nil && o.GetUserNamespace(), "in a user namespace")
	add(o != nil && o.UserNamespace != nil && !o.GetUserNamespace(), "in no user namespace")
	add(o.GetSeccomp() != "", "seccomp %s", o.GetSeccomp())
	add(o.GetApparmor() != "", "AppArmor %s", o.GetApparmor())
	add(o.GetAllowPrivilegeEscalation(), "may gain privileges")
	add(len(o.GetDevices()) > 0, "devices %s", strings.Join(o.GetDevices(), ", "))
	return strings.Join(words, "; ")
}
