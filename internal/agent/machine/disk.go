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

// Disk is the part of the disk of the data folder that the node may use. A disk without room for more files is as full as
// one without room for more bytes, so the scarcer of both counts.
func (m *Machine) Disk() (storage.Disk, error) {
	disk, reserved, err := readDisk(m.dataDir)
	if err != nil {
		return storage.Disk{}, err
	}
	usable := storage.Disk{Total: disk.total - reserved, Used: disk.used}
	var stat unix.Statfs_t
	if err := unix.Statfs(m.dataDir, &stat); err == nil && stat.Files > 0 { // some filesystems have no limit
		files := float64(stat.Files-stat.Ffree) / float64(stat.Files)
		usable.Used = max(usable.Used, int64(files*float64(usable.Total)))
	}
	return usable, nil
}
