// Package tarcopy copies files and folders as a tar stream, for example between a
// user's disk and a container.
//
// It guarantees:
//   - Nothing outside of the given tree is read or written, whatever links,
//     archives and other processes do. The kernel resolves paths as if the tree
//     were the root, and entries of an archive stay below the target folder.
//   - A copy arrives whole or not at all. A file is written next to its target and
//     renamed, a new folder is renamed as a whole, and an aborted copy removes what
//     it had written.
//   - It needs no program inside the tree, neither tar nor a shell.
//
// It keeps permissions, times and links. It drops owners, devices, and the setuid
// and setgid bits. The package must not know of replicas or streams.
package tarcopy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Tree is the tree in which paths are resolved.
type Tree struct {
	root *os.File // nil for the machine's own
}

// Local is the machine's own tree, with the rights and the working folder of
// this process.
func Local() *Tree { return &Tree{} }

// Inside is the tree below a folder: links and dots cannot leave it. The caller closes the
// folder.
func Inside(root *os.File) *Tree { return &Tree{root: root} }

// handle returns a descriptor of a path that can be inspected but not read. It follows a
// link at the end unless link is set.
func (t *Tree) handle(name string, link bool) (*os.File, error) {
	flags := unix.O_PATH | unix.O_CLOEXEC
	if link {
		flags |= unix.O_NOFOLLOW
	}
	var fd int
	err := retry(func() (err error) {
		if t.root == nil {
			fd, err = unix.Open(name, flags, 0)
			return err
		}
		fd, err = unix.Openat2(int(t.root.Fd()), name, &unix.OpenHow{
			Flags: uint64(flags), Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
		})
		return err
	})
	if err != nil {
		return nil, pathError(name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// retry repeats a call that was interrupted: by a signal, or, for openat2, by a rename
// elsewhere on the path.
func retry(do func() error) error {
	const attempts = 128
	var err error
	for range attempts {
		if err = do(); !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
	return err
}

// openRoot opens a folder by its handle, so that a rename cannot replace it.
func openRoot(handle *os.File) (*os.Root, error) {
	return os.OpenRoot(procPath(handle))
}

func procPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

func stat(f *os.File) (st unix.Stat_t, err error) {
	err = retry(func() error { return unix.Fstat(int(f.Fd()), &st) })
	return st, err
}

func kindOf(st *unix.Stat_t) uint32 { return st.Mode & unix.S_IFMT }

// permissions are the bits that a copy keeps. The bits that change the user would mean
// something else elsewhere.
func permissions(st *unix.Stat_t) int64 { return int64(st.Mode & (0o777 | unix.S_ISVTX)) }

// virtual reports whether the kernel generates the content of a folder.
func virtual(dir *os.File) bool {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(int(dir.Fd()), &st) }); err != nil {
		return false
	}
	switch uint32(st.Type) { // the width differs by architecture
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
		unix.DEVPTS_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC,
		unix.BPF_FS_MAGIC, unix.PSTOREFS_MAGIC, mqueueMagic:
		return true
	}
	return false
}

const mqueueMagic = 0x19800202

// pathError explains what is wrong with a path.
func pathError(name string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s does not exist%w", name, silent{err})
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%s leads through something that is not a folder%w", name, silent{err})
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return fmt.Errorf("%s leads through a link that cannot be followed%w", name, silent{err})
	}
	return fmt.Errorf("%s: %w", name, bare(err))
}

// silent adds an error for errors.Is without changing the message.
type silent struct{ error }

func (s silent) Error() string { return "" }
func (s silent) Unwrap() error { return s.error }

// bare removes the names that the os package adds, which users do not know.
func bare(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return err
}

// Base returns the last word of a path, or "." if it has none.
func Base(name string) string {
	if base := path.Base(path.Clean("/" + name)); base != "/" {
		return base
	}
	return "."
}

// slashed reports whether a path can only name a folder.
func slashed(name string) bool {
	return strings.HasSuffix(name, "/") || strings.HasSuffix(name, "/.") || name == "."
}
