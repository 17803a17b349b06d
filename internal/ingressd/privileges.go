package ingressd

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// confinedEnv says that the process has given its privileges away already.
const confinedEnv = "CLOUDLESS_INGRESS_CONFINED"

// Confine gives away what the ingress process does not need, and runs its program again, because only a new program
// begins without the threads that would keep it: all capabilities but that to open ports below 1024, the right to gain
// others, and the right to write anywhere but below its folders. It returns in the program that runs again. What the
// kernel does not support is left out: the process serves in any case.
func Confine(folders ...string) error {
	if os.Getenv(confinedEnv) != "" {
		return os.Unsetenv(confinedEnv)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program of this process: %w", err)
	}
	runtime.LockOSThread() // what follows is of this thread, and of the program that it runs
	// Every connection needs a file descriptor.
	limit := unix.Rlimit{Cur: files, Max: files}
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) // otherwise it has as many as it has
	// The score of the agent would be inherited. Traffic matters almost as much as the network.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-700"), 0)
	if err := dropCapabilities(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	if err := confineWrites(folders); err != nil {
		return err
	}
	if err := os.Setenv(confinedEnv, "1"); err != nil {
		return err
	}
	// The name that the agent knows it by is the first argument.
	return fmt.Errorf("run the program again: %w", syscall.Exec(self, os.Args, os.Environ()))
}

// files is how many file descriptors the process may have.
const files = 1 << 20

// dropCapabilities leaves the capability for low ports to the programs that this thread runs.
func dropCapabilities() error {
	last := 63
	if b, err := os.ReadFile("/proc/sys/kernel/cap_last_cap"); err == nil && len(b) > 1 {
		if n, err := strconv.Atoi(string(b[:len(b)-1])); err == nil {
			last = n
		}
	}
	for c := range last + 1 {
		if c == unix.CAP_NET_BIND_SERVICE {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if errors.Is(err, unix.EPERM) {
			return nil // it is not root, and has none
		}
		if err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	return nil
}

// writes are the accesses to files that only the folders of the process allow: all but reading.
const writes = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
	unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
	unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_SYM

// confineWrites lets the programs that this thread runs write below some folders only, if the kernel has Landlock.
func confineWrites(folders []string) error {
	rules := unix.LandlockRulesetAttr{Access_fs: writes}
	// Only the first member: older kernels know no others.
	ruleset, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&rules)), unsafe.Sizeof(rules.Access_fs), 0)
	if errno != 0 {
		return nil // no Landlock
	}
	defer func() { _ = unix.Close(int(ruleset)) }()
	for _, folder := range folders {
		dir, err := unix.Open(folder, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", folder, err)
		}
		below := unix.LandlockPathBeneathAttr{Allowed_access: writes, Parent_fd: int32(dir)}
		_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, ruleset, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&below)), 0, 0, 0)
		_ = unix.Close(dir)
		if errno != 0 {
			return fmt.Errorf("confine the process to %s: %w", folder, errno)
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0, 0); errno != 0 {
		return fmt.Errorf("confine the process: %w", errno)
	}
	return nil
}
