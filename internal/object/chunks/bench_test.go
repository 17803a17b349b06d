package chunks_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/zeebo/blake3"

	"github.com/cloudless/cloudless/internal/object/chunks"
)

var benchSizes = []struct {
	name string
	size int
}{{"4k", 4 << 10}, {"1m", 1 << 20}, {"4m", 4 << 20}}

// writers is how many goroutines put and get at the same time.
const writers = 8

// parallel runs do in several goroutines, with a buffer for each and a number that is used once.
func parallel(b *testing.B, size int, do func(n int64, data []byte) error) {
	b.Helper()
	var next atomic.Int64
	b.SetBytes(int64(size))
	b.SetParallelism((writers + 1) / 2)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		_, data := content(1, size)
		for pb.Next() {
			n := next.Add(1)
			binary.LittleEndian.PutUint64(data, uint64(n)) // every chunk is another one
			if err := do(n, data); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// benchDir is on the disk of the working folder: the usual folder for temporary files may be in memory.
func benchDir(b *testing.B) string {
	b.Helper()
	dir, err := os.MkdirTemp(".", "bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// BenchmarkPut stores chunks that are not there. The floor writes, syncs and renames a file for each, with the same
// digest.
func BenchmarkPut(b *testing.B) {
	for _, bench := range benchSizes {
		b.Run(bench.name+"/store", func(b *testing.B) {
			s := open(b, chunks.Options{Dir: benchDir(b)})
			parallel(b, bench.size, func(_ int64, data []byte) error {
				return s.Put(b.Context(), chunks.Hash(blake3.Sum256(data)), data, 1)
			})
		})
		b.Run(bench.name+"/floor", func(b *testing.B) {
			dir := benchDir(b)
			parallel(b, bench.size, func(n int64, data []byte) error {
				// The store verifies the digest that the caller has computed.
				if computed, verified := blake3.Sum256(data), blake3.Sum256(data); computed != verified {
					return fmt.Errorf("two digests")
				}
				return writeFile(filepath.Join(dir, fmt.Sprint(n)), data)
			})
		})
	}
}

// writeFile is what a plain program does to store data durably under a name.
func writeFile(path string, data []byte) error {
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// BenchmarkGet reads whole chunks, which are in the kernel's memory. One floor reads files of the same sizes, the other
// one verifies their digests, too.
func BenchmarkGet(b *testing.B) {
	for _, bench := range benchSizes {
		count := min(1000, 256<<20/bench.size)
		b.Run(bench.name+"/store", func(b *testing.B) {
			s := open(b, chunks.Options{Dir: benchDir(b)})
			hashes := make([]chunks.Hash, count)
			for n := range hashes {
				hashes[n] = put(b, s, n, bench.size, 1)
			}
			parallel(b, bench.size, func(n int64, data []byte) error {
				_, err := s.Get(hashes[n%int64(count)], 0, 0, data[:0])
				return err
			})
		})
		for _, digest := range []bool{false, true} {
			name := bench.name + "/floor"
			if digest {
				name += "-digest"
			}
			b.Run(name, func(b *testing.B) {
				dir := benchDir(b)
				for n := range count {
					_, data := content(n, bench.size)
					if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(n)), data, 0o600); err != nil {
						b.Fatal(err)
					}
				}
				parallel(b, bench.size, func(n int64, data []byte) error {
					f, err := os.Open(filepath.Join(dir, fmt.Sprint(n%int64(count))))
					if err != nil {
						return err
					}
					defer f.Close()
					if _, err := f.ReadAt(data, 0); err != nil {
						return err
					}
					if digest && blake3.Sum256(data) == [32]byte{} {
						return fmt.Errorf("no digest")
					}
					return nil
				})
			})
		}
	}
}

// BenchmarkPartOfAChunk reads 4 KiB of a chunk of 4 MiB.
func BenchmarkPartOfAChunk(b *testing.B) {
	s := open(b, chunks.Options{Dir: benchDir(b)})
	hash := put(b, s, 1, 4<<20, 1)
	parallel(b, 4<<10, func(n int64, data []byte) error {
		_, err := s.Get(hash, uint32(n%1000*4096), 4096, data[:0])
		return err
	})
}
