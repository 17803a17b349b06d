package secrets

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Size is how large the file system is at most, for a machine with that much memory in bytes.
func Size(memory int64) int64 { return max(32<<20, memory/16) }

// Mount makes a folder with a file system in memory, of at most so many bytes. One that an earlier process has mounted
// there stays, with what is in it.
func Mount(dir string, size int64) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of secrets: %w", err)
	}
	mounted, err := isMounted(dir)
	if err != nil || mounted {
		return err
	}
	// Without noswap, which needs Linux 6.4, the kernel may move it to a swap device.
	for _, more := range []string{",noswap", ""} {
		err = unix.Mount("cloudless-secrets", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, fmt.Sprintf("mode=0700,size=%d%s", size, more))
		if !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("mount a file system in memory for secrets at %s: %w", dir, err)
	}
	return nil
}

// Unmount removes the folder with everything in it.
func Unmount(dir string) error {
	for {
		mounted, err := isMounted(dir)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if !mounted {
			break
		}
		if err := empty(dir); err != nil { // a container may still have a folder of it mounted
			return err
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount the secrets at %s: %w", dir, err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the folder of secrets: %w", err)
	}
	return nil
}

// isMounted reports whether a file system in memory is mounted at the folder. It refuses any other one.
func isMounted(dir string) (bool, error) {
	var here, above unix.Stat_t
	if err := unix.Lstat(dir, &here); err != nil {
		return false, fmt.Errorf("look at the folder of secrets %s: %w", dir, err)
	}
	if here.Mode&unix.S_IFMT != unix.S_IFDIR {
		return false, fmt.Errorf("%s is not a folder: remove it, so that secrets can be kept there", dir)
	}
	if err := unix.Lstat(filepath.Dir(dir), &above); err != nil {
		return false, fmt.Errorf("look at the folder of secrets %s: %w", dir, err)
	}
	if here.Dev == above.Dev {
		return false, nil
	}
	var system unix.Statfs_t
	if err := unix.Statfs(dir, &system); err != nil {
		return false, fmt.Errorf("look at the folder of secrets %s: %w", dir, err)
	}
	if system.Type != unix.TMPFS_MAGIC {
		return false, fmt.Errorf("another file system is mounted at %s, where secrets must be kept in memory: unmount it", dir)
	}
	return true, nil
}

// empty removes everything in a folder.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("empty a folder of secrets: %w", err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return fmt.Errorf("empty a folder of secrets: %w", err)
		}
	}
	return nil
}
