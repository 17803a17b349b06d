package machine

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/agent/storage"
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

// Disk is the part of the disk of the data folder that the node may use.
func (m *Machine) Disk() (storage.Disk, error) {
	disk, reserved, err := readDisk(m.dataDir)
	return storage.Disk{Total: disk.total - reserved, Used: disk.used}, err
}
