package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Source is an image that was opened from a local file or folder.
type Source struct {
	Content
	// Kind is what it was: "program", "layout" or "archive".
	Kind string
	// Platforms it is for, such as linux/amd64.
	Platforms []string

	close func() error
}

// Close closes the file. Nothing of the image can be read any more.
func (s *Source) Close() error { return s.close() }

// Open opens what can be pushed: a static Linux program, a folder that is an OCI image
// layout, or an archive as docker save and skopeo write it, which may be compressed with
// gzip. It leaves nothing on disk, not even after a crash.
func Open(name string) (*Source, error) {
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s does not exist: build the program or the image first, or correct the path", name)
	case err != nil:
		return nil, fmt.Errorf("look at the image: %w", err)
	case info.IsDir():
		return openFolder(name)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file: name a program, an image layout or an archive", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open the image: %w", err)
	}
	if isArchive(f) {
		return openArchive(name, f)
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	img, err := FromBinary(name, Options{})
	if err != nil {
		return nil, err
	}
	return newSource(img, "program", func() error { return nil })
}

func newSource(content Content, kind string, close func() error) (*Source, error) {
	platforms, err := platformsOf(content)
	if err != nil {
		return nil, errors.Join(err, close())
	}
	return &Source{Content: content, Kind: kind, Platforms: platforms, close: close}, nil
}

func openFolder(name string) (*Source, error) {
	if _, err := os.Stat(filepath.Join(name, layoutFile)); err != nil {
		return nil, fmt.Errorf("%s is a folder but not an OCI image layout, since it has no file %s: name a program, a layout or an archive", name, layoutFile)
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, fmt.Errorf("open the image layout: %w", err)
	}
	content, err := readLayout(root.FS())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s cannot be pushed: %w", name, err), root.Close())
	}
	return newSource(content, "layout", root.Close)
}

// isArchive distinguishes tar files and compressed files from programs.
func isArchive(f io.ReaderAt) bool {
	var head [263]byte
	n, _ := f.ReadAt(head[:], 0)
	return bytes.HasPrefix(head[:n], gzipMagic) || n >= 262 && string(head[257:262]) == "ustar"
}

var gzipMagic = []byte{0x1f, 0x8b}

// openArchive owns the file.
func openArchive(name string, f *os.File) (*Source, error) {
	plain, err := decompressed(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s cannot be read: %w", name, err), f.Close())
	}
	content, err := readArchive(plain)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s cannot be pushed: %w", name, err), plain.Close())
	}
	return newSource(content, "archive", plain.Close)
}

// decompressed is the archive itself, or its decompressed content as an unnamed file:
// layers are read in any order, which compressed files do not allow.
func decompressed(f *os.File) (*os.File, error) {
	var head [2]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return nil, err
	}
	if !bytes.Equal(head[:], gzipMagic) {
		return f, nil
	}
	from, err := gzip.NewReader(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return nil, err
	}
	plain, err := os.CreateTemp("", "cloudless-archive-*")
	if err != nil {
		return nil, err
	}
	err = os.Remove(plain.Name())
	if err == nil {
		_, err = io.Copy(plain, from)
	}
	if err != nil {
		return nil, errors.Join(err, plain.Close())
	}
	return plain, f.Close()
}

// readArchive finds out what kind of archive it is. Newer versions of docker save write
// both kinds at once; the layout says more.
func readArchive(r io.ReaderAt) (Content, error) {
	files, err := indexTar(r)
	if err != nil {
		return nil, err
	}
	if _, ok := files.entries[layoutFile]; ok {
		return readLayout(files)
	}
	if _, ok := files.entries[savedFile]; ok {
		return readSaved(files)
	}
	return nil, fmt.Errorf("it is an archive but not of an image, since it has neither %s nor %s: make one with docker save or skopeo copy", layoutFile, savedFile)
}

// tarFiles are the regular files of a tar file, read in place.
type tarFiles struct {
	r       io.ReaderAt
	entries map[string]tarEntry
}

type tarEntry struct {
	offset, size int64
	link         string // what else holds the content
}

// maxEntries bounds the memory that an archive can use.
const maxEntries = 1 << 20

func indexTar(r io.ReaderAt) (*tarFiles, error) {
	files := &tarFiles{r: r, entries: map[string]tarEntry{}}
	from := io.NewSectionReader(r, 0, 1<<62)
	entries := tar.NewReader(from)
	for {
		header, err := entries.Next()
		if err == io.EOF {
			return files, nil
		}
		if err != nil {
			return nil, fmt.Errorf("it is a damaged archive: %w", err)
		}
		if len(files.entries) == maxEntries {
			return nil, fmt.Errorf("it has more than %d files", maxEntries)
		}
		name := path.Clean(header.Name)
		switch header.Typeflag {
		case tar.TypeReg:
			// The reader consumes only headers, so its position is the content.
			offset, err := from.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			files.entries[name] = tarEntry{offset: offset, size: header.Size}
		case tar.TypeSymlink: // how older versions of docker save share layers
			files.entries[name] = tarEntry{link: path.Join(path.Dir(name), header.Linkname)}
		case tar.TypeLink:
			files.entries[name] = tarEntry{link: path.Clean(header.Linkname)}
		}
	}
}

// section is the content of a file.
func (t *tarFiles) section(name string) (*io.SectionReader, error) {
	name = path.Clean(name)
	entry, ok := t.entries[name]
	if ok && entry.link != "" {
		entry, ok = t.entries[entry.link]
		ok = ok && entry.link == ""
	}
	if !ok {
		return nil, fmt.Errorf("%.200q is missing in it", name)
	}
	return io.NewSectionReader(t.r, entry.offset, entry.size), nil
}

// Open makes it a file system of files without folders.
func (t *tarFiles) Open(name string) (fs.File, error) {
	section, err := t.section(name)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return tarFile{section, name}, nil
}

type tarFile struct {
	*io.SectionReader
	name string
}

func (f tarFile) Stat() (fs.FileInfo, error) {
	return (&tar.Header{Name: f.name, Size: f.Size(), Mode: 0o400}).FileInfo(), nil
}

func (f tarFile) Close() error { return nil }

// platformsOf are those that an index lists beside its images, or that of the image.
func platformsOf(content Content) ([]string, error) {
	var names []string
	add := func(p *v1.Platform) {
		if p != nil && p.OS != "" && p.OS != "unknown" && p.Architecture != "" {
			if name := strings.TrimSuffix(p.OS+"/"+p.Architecture+"/"+p.Variant, "/"); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	switch content := content.(type) {
	case v1.Image:
		config, err := content.ConfigFile()
		if err != nil {
			return nil, fmt.Errorf("read the configuration: %w", err)
		}
		add(config.Platform())
	case v1.ImageIndex:
		list, err := content.IndexManifest()
		if err != nil {
			return nil, fmt.Errorf("read the index: %w", err)
		}
		for _, d := range list.Manifests {
			if d.Platform != nil {
				add(d.Platform)
			} else if d.MediaType.IsImage() {
				img, err := content.Image(d.Digest)
				if err != nil {
					return nil, err
				}
				if config, err := img.ConfigFile(); err == nil {
					add(config.Platform())
				}
			}
		}
	}
	return names, nil
}

// gunzipped is the content, decompressed if necessary.
func gunzipped(r *io.SectionReader) (io.ReadCloser, error) {
	var head [2]byte
	if n, _ := r.ReadAt(head[:], 0); n < len(head) || !bytes.Equal(head[:], gzipMagic) {
		return io.NopCloser(r), nil
	}
	return gzip.NewReader(r)
}
