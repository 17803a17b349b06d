package machine

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// readDisk measures the filesystem that holds dir. The reserve for root counts neither as
// used nor as free.
func readDisk(dir string) (disk amount, reserved int64, err error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return amount{}, 0, fmt.Errorf("read the disk of %s: %w", dir, err)
	}
	size := int64(stat.Bsize)
	disk = amount{
		total: int64(stat.Blocks) * size,
		used:  int64(stat.Blocks-stat.Bfree) * size,
	}
	return disk, int64(stat.Bfree-stat.Bavail) * size, nil
}
