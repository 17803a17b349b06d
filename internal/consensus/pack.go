package consensus

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// The files of a folder as one stream, whose size is known before it is read: each one is the length of its path (2
// bytes), the path, its size (8 bytes) and its bytes. The end is a path of length zero.
const maxPath = 1 << 12

// packed reads the files of a folder as a stream.
type packed struct {
	size  int64
	dir   string
	files []packedFile
	open  *os.File
	now   io.Reader // what is being read; nil before the next file
	ended bool
}

type packedFile struct {
	path string
	size int64
}

func (f packedFile) header() []byte {
	data := binary.BigEndian.AppendUint16(nil, uint16(len(f.path)))
	return binary.BigEndian.AppendUint64(append(data, f.path...), uint64(f.size))
}

func bytesReader(data []byte) io.Reader { return bytes.NewReader(data) }

// pack returns the stream of a folder, whose files must not change.
func pack(dir string) (*packed, error) {
	p := &packed{dir: dir, size: 2}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		about, err := entry.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f := packedFile{path: filepath.ToSlash(name), size: about.Size()}
		if len(f.path) > maxPath || !about.Mode().IsRegular() {
			return fmt.Errorf("%s is no file that can be sent", name)
		}
		p.files = append(p.files, f)
		p.size += int64(len(f.header())) + f.size
		return nil
	})
	return p, err
}

// Read implements io.Reader.
func (p *packed) Read(to []byte) (int, error) {
	for {
		if p.now == nil {
			if err := p.next(); err != nil {
				return 0, err
			}
		}
		n, err := p.now.Read(to)
		if n > 0 || !errors.Is(err, io.EOF) {
			return n, err
		}
		p.now = nil
	}
}

// next begins the next file, or the end.
func (p *packed) next() error {
	if err := p.Close(); err != nil {
		return err
	}
	if p.ended {
		return io.EOF
	}
	if len(p.files) == 0 {
		p.ended, p.now = true, bytes.NewReader(make([]byte, 2))
		return nil
	}
	f := p.files[0]
	p.files = p.files[1:]
	var err error
	if p.open, err = os.Open(filepath.Join(p.dir, filepath.FromSlash(f.path))); err != nil {
		return err
	}
	p.now = io.MultiReader(bytes.NewReader(f.header()), io.LimitReader(p.open, f.size))
	return nil
}

// Close implements io.Closer.
func (p *packed) Close() error {
	if p.open == nil {
		return nil
	}
	err := p.open.Close()
	p.open = nil
	return err
}

// unpack writes the files of a stream to a new folder, and makes them durable.
func unpack(from io.Reader, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	folders := map[string]bool{dir: true, filepath.Dir(dir): true}
	for {
		path, err := unpackFile(from, dir)
		if err != nil {
			return fmt.Errorf("receive the files of another server: %w", err)
		}
		if path == "" {
			break
		}
		folders[filepath.Dir(path)] = true
	}
	for folder := range folders {
		if err := syncFolder(folder); err != nil {
			return err
		}
	}
	return nil
}

// unpackFile returns the path of the file that it wrote; empty at the end of the stream.
func unpackFile(from io.Reader, dir string) (string, error) {
	var length uint16
	if err := binary.Read(from, binary.BigEndian, &length); err != nil || length == 0 {
		return "", err
	}
	if length > maxPath {
		return "", errors.New("the name of a file is too long")
	}
	about := make([]byte, int(length)+8)
	if _, err := io.ReadFull(from, about); err != nil {
		return "", err
	}
	name, size := filepath.FromSlash(string(about[:length])), int64(binary.BigEndian.Uint64(about[length:]))
	if !filepath.IsLocal(name) || size < 0 {
		return "", fmt.Errorf("%q is no name of a file", name)
	}
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	return path, writeFile(path, from, size)
}

func writeFile(path string, from io.Reader, size int64) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	buffered := bufio.NewWriterSize(file, 1<<20)
	_, err = io.CopyN(buffered, from, size)
	return errors.Join(err, buffered.Flush(), file.Sync(), file.Close())
}

func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
