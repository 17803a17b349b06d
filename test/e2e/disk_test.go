package e2e

import (
	"os"
	"path/filepath"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// smallDisk mounts a small file system on a folder until the script ends:
//
//	small-disk $DATA 700m
func smallDisk(ts *testscript.TestScript, _ bool, args []string) {
	dir := args[0]
	ts.Check(os.MkdirAll(dir, 0o700))
	ts.Check(unix.Mount("none", dir, "tmpfs", 0, "mode=0700,size="+args[1]))
	ts.Defer(func() {
		// The cloud of the script uses it, so stop the cloud first.
		purge(ts.Getenv("CLOUDLESS_CONFIG"), dir, ts.Logf)
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	})
}

// fillDisk leaves only a few bytes free. rm $DATA/filler frees the space:
//
//	fill-disk $DATA
func fillDisk(ts *testscript.TestScript, _ bool, args []string) {
	const left = 2 << 20
	var s unix.Statfs_t
	ts.Check(unix.Statfs(args[0], &s))
	filler, err := os.Create(filepath.Join(args[0], "filler"))
	ts.Check(err)
	defer filler.Close()
	ts.Check(unix.Fallocate(int(filler.Fd()), 0, 0, int64(s.Bavail)*s.Bsize-left))
}
