package tarcopy

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// PackOptions are the options of Pack.
type PackOptions struct {
	// As is the name of the packed file or folder in the archive; everything in a folder is
	// named below it. It is one word, or "." for the folder's content instead of the
	// folder.
	As string
	// Total gets the number of bytes of files to come, before the first one.
	Total func(bytes int64)
	// Skipped gets the names of things that are no file, folder or link and are left out.
	// If it is nil, the archive names these things, without content.
	Skipped func(name, what string)
}

// maxDepth limits how many folders are open at a time.
const maxDepth = 512

// Pack writes a file or folder as an archive. If the path itself is a link, it is followed;
// links in a folder are kept as links.
func (t *Tree) Pack(ctx context.Context, w io.Writer, name string, o PackOptions) error {
	handle, err := t.handle(name, false)
	if err != nil {
		return err
	}
	defer handle.Close()
	st, err := stat(handle)
	if err != nil {
		return pathError(name, err)
	}
	p := &packer{ctx: ctx, out: tar.NewWriter(w), o: o}
	switch kindOf(&st) {
	case unix.S_IFDIR:
		err = p.folder(name, handle)
	case unix.S_IFREG:
		err = p.single(name, handle)
	default:
		return fmt.Errorf("%s is a %s: only files, folders and links can be copied", name, kindName(&st))
	}
	if err != nil {
		return err
	}
	return p.out.Close()
}

type packer struct {
	ctx context.Context
	out *tar.Writer
	o   PackOptions
}

// single packs one file.
func (p *packer) single(name string, handle *os.File) error {
	f, err := os.Open(procPath(handle))
	if err != nil {
		return pathError(name, bare(err))
	}
	defer f.Close()
	if virtual(f) {
		return madeUp(name)
	}
	st, err := stat(f)
	if err != nil {
		return pathError(name, err)
	}
	p.total(st.Size)
	return p.file(name, p.o.As, f, &st)
}

func madeUp(name string) error {
	return fmt.Errorf("%s is made up by the kernel and cannot be copied: read it from a command inside", name)
}

func (p *packer) total(bytes int64) {
	if p.o.Total != nil {
		p.o.Total(bytes)
	}
}

// folder packs a folder and all below it.
func (p *packer) folder(name string, handle *os.File) error {
	dir, err := os.Open(procPath(handle))
	if err != nil {
		return pathError(name, bare(err))
	}
	defer dir.Close()
	if virtual(dir) {
		return madeUp(name)
	}
	st, err := stat(dir)
	if err != nil {
		return pathError(name, err)
	}
	if p.o.Total != nil {
		var total int64
		err := p.walk(dir, name, "", &st, 0, func(_ *os.File, entry *entry) error {
			if kindOf(&entry.st) == unix.S_IFREG {
				total += entry.st.Size
			}
			return nil
		})
		if err != nil {
			return err
		}
		p.total(total)
	}
	if err := p.header(tar.TypeDir, p.o.As+"/", &st, 0, ""); err != nil {
		return err
	}
	return p.walk(dir, name, "", &st, 0, p.add)
}

// entry is one thing in a folder.
type entry struct {
	base  string // its name in its folder
	rel   string // its path below the packed folder
	shown string // its path for people
	st    unix.Stat_t
}

// walk calls visit for everything below a folder, first for the folder itself and then for
// what is in it. Every step starts at the open folder, goes down by one name and follows no
// link, so that renames during the walk cannot lead elsewhere.
func (p *packer) walk(dir *os.File, shown, rel string, at *unix.Stat_t, depth int, visit func(*os.File, *entry) error) error {
	if depth > maxDepth {
		return fmt.Errorf("%s lies more than %d folders deep", shown, maxDepth)
	}
	// A second walk starts from the beginning.
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return pathError(shown, bare(err))
	}
	words, err := dir.Readdirnames(-1)
	if err != nil {
		return pathError(shown, bare(err))
	}
	slices.Sort(words)
	for _, word := range words {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		e := &entry{base: word, rel: rel + "/" + word, shown: shown + "/" + word}
		err := retry(func() error { return unix.Fstatat(int(dir.Fd()), word, &e.st, unix.AT_SYMLINK_NOFOLLOW) })
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted since it was listed
		}
		if err != nil {
			return pathError(e.shown, err)
		}
		if err := visit(dir, e); err != nil {
			return err
		}
		if kindOf(&e.st) != unix.S_IFDIR {
			continue
		}
		if err := p.descend(dir, e, at, depth, visit); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) descend(dir *os.File, e *entry, at *unix.Stat_t, depth int, visit func(*os.File, *entry) error) error {
	below, err := openAt(dir, e, unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer below.Close()
	if e.st.Dev != at.Dev && virtual(below) {
		return nil
	}
	return p.walk(below, e.shown, e.rel, &e.st, depth+1, visit)
}

// openAt opens an entry for reading if it is still the same. It never blocks, as a pipe
// would.
func openAt(dir *os.File, e *entry, flags int) (*os.File, error) {
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat(int(dir.Fd()), e.base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|flags, 0)
		return err
	})
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENXIO) {
		return nil, changed(e.shown)
	}
	if err != nil {
		return nil, pathError(e.shown, err)
	}
	return os.NewFile(uintptr(fd), e.shown), nil
}

func changed(shown string) error {
	return fmt.Errorf("%s was changed while it was read: try again", shown)
}

// add writes an entry to the archive.
func (p *packer) add(dir *os.File, e *entry) error {
	name := p.o.As + e.rel
	switch kindOf(&e.st) {
	case unix.S_IFDIR:
		return p.header(tar.TypeDir, name+"/", &e.st, 0, "")
	case unix.S_IFLNK:
		return p.link(dir, e, name)
	case unix.S_IFREG:
		f, err := openAt(dir, e, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		st, err := stat(f)
		if err != nil {
			return pathError(e.shown, err)
		}
		if kindOf(&st) != unix.S_IFREG {
			return changed(e.shown)
		}
		return p.file(e.shown, name, f, &st)
	}
	if p.o.Skipped != nil {
		p.o.Skipped(e.shown, kindName(&e.st))
		return nil
	}
	return p.header(tar.TypeFifo, name, &e.st, 0, "")
}

func (p *packer) link(dir *os.File, e *entry, name string) error {
	target := make([]byte, unix.PathMax)
	var n int
	err := retry(func() (err error) {
		n, err = unix.Readlinkat(int(dir.Fd()), e.base, target)
		return err
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.EINVAL):
		return changed(e.shown)
	case err != nil:
		return pathError(e.shown, err)
	}
	return p.header(tar.TypeSymlink, name, &e.st, 0, string(target[:n]))
}

// file writes a file of the size that it had when it was opened.
func (p *packer) file(shown, name string, f *os.File, st *unix.Stat_t) error {
	if err := p.header(tar.TypeReg, name, st, st.Size, ""); err != nil {
		return err
	}
	n, err := io.CopyN(p.out, contextReader{p.ctx, f}, st.Size)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s became shorter while it was read, %d bytes instead of %d: try again", shown, n, st.Size)
	}
	if err != nil {
		return fmt.Errorf("copy %s: %w", shown, bare(err))
	}
	return nil
}

func (p *packer) header(kind byte, name string, st *unix.Stat_t, size int64, target string) error {
	err := p.out.WriteHeader(&tar.Header{
		Typeflag: kind, Name: name, Linkname: target, Size: size, Mode: permissions(st),
		ModTime: time.Unix(st.Mtim.Unix()).Truncate(time.Second),
	})
	if err != nil {
		return fmt.Errorf("copy %s: %w", name, err)
	}
	return nil
}

func kindName(st *unix.Stat_t) string {
	switch kindOf(st) {
	case unix.S_IFIFO:
		return "pipe"
	case unix.S_IFSOCK:
		return "socket"
	}
	return "device"
}

// contextReader stops reading when ctx ends.
type contextReader struct {
	ctx context.Context
	io.Reader
}

func (r contextReader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(b)
}
