package tarcopy

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// UnpackOptions are the options of Unpack.
type UnpackOptions struct {
	// Path is the target, by the rules of cp -r: into an existing folder, or under this
	// name if nothing exists there.
	Path string
	// Content means the content of the folder in the archive instead of the folder.
	Content bool
	// Owner of the unpacked files; nil means the user of this process.
	Owner *Owner
	// Skipped gets the names of things that cannot be copied. If it is nil, such an archive
	// is refused.
	Skipped func(name, what string)
}

// Owner is a user and a group.
type Owner struct{ UID, GID int }

// tempPrefix begins the names of incomplete files and folders.
const tempPrefix = ".cloudless-cp-"

// Unpack puts the content of an archive made by Pack into its place.
func (t *Tree) Unpack(ctx context.Context, r io.Reader, o UnpackOptions) error {
	in := tar.NewReader(contextReader{ctx, r})
	first, err := in.Next()
	if errors.Is(err, io.EOF) {
		return errors.New("nothing arrived")
	}
	if err != nil {
		return broken(err)
	}
	top := strings.TrimSuffix(first.Name, "/")
	folder := first.Typeflag == tar.TypeDir
	if !oneWord(top) && (top != "." || !folder) {
		return fmt.Errorf("the archive names %q, which cannot be put anywhere", first.Name)
	}
	as := top
	if o.Content && folder {
		as = "."
	}
	root, name, err := t.place(o.Path, as, folder)
	if err != nil {
		return err
	}
	defer root.Close()
	u := &unpacker{in: in, rest: r, root: root, top: top, shown: o.Path, o: o}
	if folder {
		return u.folder(first, name)
	}
	return u.single(first, name)
}

func oneWord(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

func broken(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("what arrives is not a whole archive: %w", err)
	}
	return err
}

// place finds the folder that receives the archive, and the name in it.
func (t *Tree) place(to, top string, folder bool) (*os.Root, string, error) {
	handle, err := t.handle(to, false)
	if errors.Is(err, fs.ErrNotExist) {
		if slashed(to) && !folder {
			return nil, "", fmt.Errorf("folder %s does not exist: make it first, or leave out the slash at the end", to)
		}
		return t.parent(to)
	}
	if err != nil {
		return nil, "", err
	}
	defer handle.Close()
	st, err := stat(handle)
	if err != nil {
		return nil, "", pathError(to, err)
	}
	switch {
	case kindOf(&st) == unix.S_IFDIR:
		root, err := openRoot(handle)
		if err != nil {
			return nil, "", pathError(to, bare(err))
		}
		return root, top, nil
	case folder:
		return nil, "", fmt.Errorf("%s is a file: a folder cannot be put in its place", to)
	case kindOf(&st) != unix.S_IFREG:
		return nil, "", fmt.Errorf("%s is a %s: nothing can be put in its place", to, kindName(&st))
	}
	return t.parent(to)
}

// maxLinks is how many links the kernel follows, too.
const maxLinks = 40

// parent opens the folder in which a path ends. If its last word is a link, it follows the
// link.
func (t *Tree) parent(to string) (*os.Root, string, error) {
	name := strings.TrimRight(to, "/")
	name = strings.TrimRight(strings.TrimSuffix(name, "/."), "/")
	for range maxLinks {
		dir, base := path.Split(name)
		if dir == "" {
			dir = "."
		}
		if !oneWord(base) {
			return nil, "", fmt.Errorf("%s does not end in a name", to)
		}
		handle, err := t.handle(dir, false)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, "", fmt.Errorf("folder %s does not exist: make it first", path.Clean(dir))
		}
		if err != nil {
			return nil, "", err
		}
		root, err := openRoot(handle)
		_ = handle.Close()
		if err != nil {
			return nil, "", pathError(dir, bare(err))
		}
		target, err := root.Readlink(base)
		if err != nil {
			return root, base, nil
		}
		_ = root.Close()
		if !path.IsAbs(target) {
			target = dir + "/" + target
		}
		name = target
	}
	return nil, "", pathError(to, unix.ELOOP)
}

type unpacker struct {
	in    *tar.Reader
	rest  io.Reader // the reader behind in
	root  *os.Root
	top   string // the prefix of all names in the archive
	shown string // the target, for people
	o     UnpackOptions

	base  string   // where the folder is made
	fresh bool     // no other process knows of base yet
	made  []folder // writable for us until they get their own permissions
}

type folder struct {
	name   string
	header *tar.Header
}

// single puts one file or one link in its place.
func (u *unpacker) single(h *tar.Header, name string) error {
	return u.put(h, name, u.shown, func() error {
		if _, err := u.in.Next(); !errors.Is(err, io.EOF) {
			if err != nil {
				return broken(err)
			}
			return errors.New("the archive holds more than the file that it begins with")
		}
		return u.drain()
	})
}

// drain reads to the end of the stream, which may continue after the archive with an error.
func (u *unpacker) drain() error {
	const most = 1 << 20 // of padding
	n, err := io.CopyN(io.Discard, u.rest, most)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("more than %d bytes follow the archive", n)
}

// folder puts a folder in its place: a new one at once, into an existing one file by file.
func (u *unpacker) folder(h *tar.Header, name string) (err error) {
	u.base = name
	if _, err := u.root.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		u.fresh, u.base = true, temporary(name)
		defer func() {
			if err != nil {
				_ = u.root.RemoveAll(u.base)
			}
		}()
	}
	if err := u.mkdir(h, u.base, u.shown); err != nil {
		return err
	}
	for {
		h, err := u.in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return broken(err)
		}
		if err := u.entry(h); err != nil {
			return err
		}
	}
	if err := errors.Join(u.finish(""), u.drain()); err != nil {
		return err
	}
	if !u.fresh {
		return nil
	}
	if err := u.root.Rename(u.base, name); err != nil {
		return u.failed(u.shown, err)
	}
	return nil
}

// entry puts one entry below the folder.
func (u *unpacker) entry(h *tar.Header) error {
	rel, below := strings.CutPrefix(strings.TrimSuffix(h.Name, "/"), u.top+"/")
	if !below || !filepath.IsLocal(rel) || rel == "." {
		return fmt.Errorf("the archive names %q, which lies outside of what is copied", h.Name)
	}
	name, shown := path.Join(u.base, rel), path.Join(u.shown, rel)
	if err := u.finish(name); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return u.mkdir(h, name, shown)
	}
	return u.put(h, name, shown, func() error { return nil })
}

// mkdir makes a folder that is writable for us, or takes an existing one.
func (u *unpacker) mkdir(h *tar.Header, name, shown string) error {
	err := u.root.Mkdir(name, 0o700)
	if errors.Is(err, fs.ErrExist) {
		info, statErr := u.root.Stat(name)
		if statErr != nil {
			return u.failed(shown, statErr)
		}
		if !info.IsDir() {
			return fmt.Errorf("%s is a file: a folder cannot be put in its place", shown)
		}
		return nil
	}
	if err != nil {
		return u.failed(shown, err)
	}
	u.made = append(u.made, folder{name, h})
	return nil
}

// finish gives the folders that do not contain next their final permissions.
func (u *unpacker) finish(next string) error {
	for len(u.made) > 0 {
		last := u.made[len(u.made)-1]
		if strings.HasPrefix(next, last.name+"/") {
			return nil
		}
		u.made = u.made[:len(u.made)-1]
		f, err := u.root.OpenFile(last.name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return u.failed(last.name, err)
		}
		err = errors.Join(u.setAttributes(f, last.header), f.Close())
		if err != nil {
			return u.failed(last.name, err)
		}
	}
	return nil
}

// put writes a file or link. If others may see the folder, it writes beside the final
// place first, and renames after confirm.
func (u *unpacker) put(h *tar.Header, name, shown string, confirm func() error) (err error) {
	write := u.write
	switch h.Typeflag {
	case tar.TypeReg:
		if isSparse(h) {
			return fmt.Errorf("the archive holds %q with holes: its real content could be far larger than what arrives", h.Name)
		}
	case tar.TypeSymlink:
		write = u.link
	case tar.TypeFifo, tar.TypeChar, tar.TypeBlock:
		if u.o.Skipped == nil {
			return fmt.Errorf("%s is no file, folder or link: only these can be copied", shown)
		}
		u.o.Skipped(strings.TrimPrefix(h.Name, "./"), "device, pipe or socket")
		return nil
	default:
		return fmt.Errorf("the archive holds %q in a way that is not understood", h.Name)
	}
	if u.fresh {
		if err := write(h, name); err != nil {
			return u.failed(shown, err)
		}
		return nil
	}
	if info, err := u.root.Lstat(name); err == nil && info.IsDir() {
		return fmt.Errorf("%s is a folder: a file cannot be put in its place", shown)
	}
	temp := temporary(name)
	defer func() {
		if err != nil {
			_ = u.root.Remove(temp)
		}
	}()
	if err := write(h, temp); err != nil {
		return u.failed(shown, err)
	}
	if err := confirm(); err != nil {
		return err
	}
	if err := u.root.Rename(temp, name); err != nil {
		return u.failed(shown, err)
	}
	return nil
}

// isSparse reports whether an archive leaves zeros of a file out. A few bytes could then fill any disk. [Tree.Pack] never
// does.
func isSparse(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

func (u *unpacker) write(h *tar.Header, name string) (err error) {
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.Copy(f, u.in); err != nil {
		return broken(err)
	}
	return u.setAttributes(f, h)
}

// setAttributes sets the owner, permissions and time of a file or folder.
func (u *unpacker) setAttributes(f *os.File, h *tar.Header) error {
	if u.o.Owner != nil {
		if err := f.Chown(u.o.Owner.UID, u.o.Owner.GID); err != nil {
			return err
		}
	}
	mode := fs.FileMode(h.Mode & 0o777)
	if h.Typeflag == tar.TypeDir && h.Mode&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	at := unix.NsecToTimespec(h.ModTime.UnixNano())
	return retry(func() error {
		return unix.UtimesNanoAt(unix.AT_FDCWD, procPath(f), []unix.Timespec{at, at}, 0)
	})
}

func (u *unpacker) link(h *tar.Header, name string) error {
	if err := u.root.Symlink(h.Linkname, name); err != nil {
		return err
	}
	if u.o.Owner == nil {
		return nil
	}
	return u.root.Lchown(name, u.o.Owner.UID, u.o.Owner.GID)
}

func (u *unpacker) failed(shown string, err error) error {
	return fmt.Errorf("write %s: %w", shown, bare(err))
}

// temporary returns a new name beside another one.
func temporary(name string) string {
	return path.Join(path.Dir(name), tempPrefix+rand.Text()[:16])
}
