package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// killShims kills the shims whose program is in dir; only that of task id, unless id is
// empty.
func killShims(dir, id string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("look for shims: %w", err)
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if err := killShim(pid, dir, id); err != nil {
			return err
		}
	}
	return nil
}

// killShim does nothing if the process is not such a shim.
func killShim(pid int, dir, id string) error {
	return killIf(pid, func() (bool, error) { return isShim(pid, dir, id), nil })
}

// killIf opens the process before it checks it, so that it never kills another one with the
// same pid. It returns when the process is dead.
func killIf(pid int, ours func() (bool, error)) error {
	handle, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at process %d: %w", pid, err)
	}
	defer unix.Close(handle)
	if ok, err := ours(); !ok || err != nil {
		return err
	}
	if err := unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return waitGone(handle)
}

func isShim(pid int, dir, id string) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	exe, err := os.Readlink(filepath.Join(proc, "exe"))
	if err != nil || filepath.Dir(exe) != dir {
		return false
	}
	if id == "" {
		return true
	}
	args, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	words := bytes.Split(args, []byte{0})
	at := slices.IndexFunc(words, func(word []byte) bool { return string(word) == "-id" })
	return err == nil && at >= 0 && at+1 < len(words) && string(words[at+1]) == id
}

// waitGone returns when the process has ended.
func waitGone(handle int) error {
	poll := []unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, int(killTime.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for a killed process: %w", err)
		case n == 0:
			return errors.New("a killed process does not die")
		default:
			return nil
		}
	}
}

// parentOf is 0 if the process has ended.
func parentOf(pid int) (int, error) {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look at process %d: %w", pid, err)
	}
	// The name of the program comes before, in brackets, and may contain anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0, fmt.Errorf("look at process %d: it has no parent", pid)
	}
	return strconv.Atoi(string(fields[1]))
}
