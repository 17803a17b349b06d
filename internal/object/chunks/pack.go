package chunks

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/atomicfile"
)

const (
	packMagic = "CLCHUNK1"
	// A pack begins with two copies of its header, in different blocks of the disk: nothing can be found in a pack
	// whose marker is lost.
	packHeaderSize = 32
	secondHeader   = 4096
	packStart      = 2 * secondHeader
)

// pack is a file of records.
type pack struct {
	id     uint32
	file   *os.File
	marker marker
	// open is whether a lane appends to it.
	open atomic.Bool

	// state is guarded by the commits of the store.
	state packState
}

// packState is what the index knows of a pack. It changes together with the entries of the index.
type packState struct {
	marker marker
	// end is where the next record goes. The index knows everything before it.
	end int64
	// live is the size of the records of chunks that are not deleted.
	live, chunks int64
	// seq is the newest record's.
	seq uint64
	// doomed packs have nothing any more that is needed, and are removed.
	doomed bool
}

func packPath(dir string, id uint32) string {
	return filepath.Join(dir, fmt.Sprintf("%08d.pack", id))
}

// listPacks returns the numbers of the packs in a folder.
func listPacks(dir string) ([]uint32, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var ids []uint32
	for _, file := range files {
		digits, isPack := strings.CutSuffix(file.Name(), ".pack")
		id, err := strconv.ParseUint(digits, 10, 32)
		if isPack && err == nil && packPath(dir, uint32(id)) == filepath.Join(dir, file.Name()) {
			ids = append(ids, uint32(id))
		}
	}
	return ids, nil
}

// createPack makes an empty pack durable.
func createPack(dir string, id uint32) (_ *pack, err error) {
	p := &pack{id: id}
	_, _ = rand.Read(p.marker[:]) // never fails
	p.state = packState{marker: p.marker, end: packStart}
	path := packPath(dir, id)
	if p.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.file.Close(), os.Remove(path))
		}
	}()
	head := make([]byte, packStart)
	for _, at := range []int{0, secondHeader} {
		b := head[at:][:packHeaderSize]
		copy(b, packMagic)
		binary.LittleEndian.PutUint32(b[8:], id)
		copy(b[16:], p.marker[:])
		binary.LittleEndian.PutUint32(b[28:], crc32.Checksum(b[:28], castagnoli))
	}
	if _, err = p.file.WriteAt(head, 0); err != nil {
		return nil, err
	}
	if err = p.file.Sync(); err != nil {
		return nil, err
	}
	return p, atomicfile.SyncDir(dir)
}

// errNoMarker means that the records of a file cannot be found.
var errNoMarker = errors.New("the header of the pack is damaged")

// openPack opens an existing pack. The index may know its marker.
func openPack(dir string, id uint32, known *packState) (*pack, error) {
	file, err := os.OpenFile(packPath(dir, id), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	p := &pack{id: id, file: file}
	if known != nil {
		p.marker, p.state = known.marker, *known
		return p, nil
	}
	var ok bool
	if p.marker, ok = findMarker(file, id); !ok {
		return nil, errors.Join(errNoMarker, file.Close())
	}
	p.state = packState{marker: p.marker, end: packStart}
	return p, nil
}

// findMarker takes the marker from one of the headers or, if both are damaged, from the first record.
func findMarker(file *os.File, id uint32) (marker, bool) {
	var head [packStart + headerSize]byte
	n, _ := file.ReadAt(head[:], 0)
	for _, at := range []int{0, secondHeader} {
		b := head[at:][:packHeaderSize]
		intact := binary.LittleEndian.Uint32(b[28:]) == crc32.Checksum(b[:28], castagnoli)
		if intact && string(b[:8]) == packMagic && binary.LittleEndian.Uint32(b[8:]) == id {
			return marker(b[16:24]), true
		}
	}
	if n < len(head) {
		return marker{}, false
	}
	m := marker(head[packStart:][:8])
	_, ok := parseHeader(head[packStart:], m, packStart)
	return m, ok
}

// fd is valid while the pack is open.
func (p *pack) fd() int { return int(p.file.Fd()) }

// write writes buffers one after the other.
func (p *pack) write(buffers [][]byte, offset int64) error {
	for len(buffers) > 0 {
		n, err := unix.Pwritev(p.fd(), buffers[:min(len(buffers), maxVectors)], offset)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return unix.ENOSPC
		}
		offset += int64(n)
		for len(buffers) > 0 && n >= len(buffers[0]) {
			n -= len(buffers[0])
			buffers = buffers[1:]
		}
		if n > 0 {
			buffers[0] = buffers[0][n:]
		}
	}
	return nil
}

// maxVectors is how many buffers the kernel takes at once.
const maxVectors = 1024

// sync makes what was written durable.
func (p *pack) sync() error {
	for {
		if err := unix.Fdatasync(p.fd()); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// erase overwrites a range with zeros and returns its space to the file system.
func (p *pack) erase(offset, size int64) error {
	err := unix.Fallocate(p.fd(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, size)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	// This file system has no holes. Its space returns when the pack is compacted.
	zeros := make([]byte, min(size, 1<<20))
	for size > 0 {
		n, err := p.file.WriteAt(zeros[:min(size, int64(len(zeros)))], offset)
		if err != nil {
			return err
		}
		offset, size = offset+int64(n), size-int64(n)
	}
	return nil
}

// forgetCached has the kernel read a range from the disk again. It is a hint.
func (p *pack) forgetCached(offset, size int64) {
	_ = unix.Fadvise(p.fd(), offset, size, unix.FADV_DONTNEED)
}

// size is the length of the file.
func (p *pack) size() (int64, error) {
	info, err := p.file.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// allocated is how much of the disk the file takes.
func (p *pack) allocated() int64 {
	info, err := p.file.Stat()
	if err != nil {
		return 0
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Blocks * 512
	}
	return info.Size()
}

// remove deletes the file durably.
func (p *pack) remove(dir string) error {
	err := p.file.Close()
	if rmErr := os.Remove(packPath(dir, p.id)); !errors.Is(rmErr, fs.ErrNotExist) {
		err = errors.Join(err, rmErr)
	}
	return errors.Join(err, atomicfile.SyncDir(dir))
}
