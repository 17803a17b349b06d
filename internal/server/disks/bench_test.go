package disks_test

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/zeebo/blake3"

	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/chunks"
)

// The store itself, and the store behind TLS and gRPC, in turns.
func BenchmarkPut(b *testing.B) {
	for _, size := range []int{4 << 10, 4 << 20} {
		floor, through := pair(b)
		for name, put := range map[string]func(object.Hash, []byte) error{
			"floor":   func(hash object.Hash, data []byte) error { return floor.Put(b.Context(), chunks.Hash(hash), data, 1) },
			"through": func(hash object.Hash, data []byte) error { return through.Put(b.Context(), "a", hash, data, 1) },
		} {
			b.Run(fmt.Sprintf("%d/%s", size, name), func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.SetParallelism(4)
				var number atomic.Uint64
				b.RunParallel(func(pb *testing.PB) {
					data, _ := random(number.Add(1), size)
					for pb.Next() {
						binary.LittleEndian.PutUint64(data, number.Add(1)) // so that it is not there already
						if err := put(blake3.Sum256(data), data); err != nil {
							b.Fatal(err)
						}
					}
				})
			})
		}
	}
}

func BenchmarkGet(b *testing.B) {
	for _, size := range []int{4 << 10, 4 << 20} {
		floor, through := pair(b)
		var hashes []object.Hash
		for i := range uint64(64) {
			data, hash := random(i, size)
			must(b, floor.Put(b.Context(), chunks.Hash(hash), data, 1))
			must(b, through.Put(b.Context(), "a", hash, data, 1))
			hashes = append(hashes, hash)
		}
		for name, get := range map[string]func(object.Hash, []byte) ([]byte, error){
			"floor": func(hash object.Hash, buf []byte) ([]byte, error) {
				return floor.Get(chunks.Hash(hash), 0, uint32(size), buf)
			},
			"through": func(hash object.Hash, buf []byte) ([]byte, error) {
				return through.Get(b.Context(), "a", hash, 0, uint32(size), buf)
			},
		} {
			b.Run(fmt.Sprintf("%d/%s", size, name), func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.SetParallelism(4)
				b.RunParallel(func(pb *testing.PB) {
					buf := make([]byte, 0, size)
					for i := 0; pb.Next(); i++ {
						if _, err := get(hashes[i%len(hashes)], buf); err != nil {
							b.Fatal(err)
						}
					}
				})
			})
		}
	}
}

// pair is a store, and a cluster whose node a has another one on the same disk.
func pair(b *testing.B) (*chunks.Store, *cluster) {
	b.Helper()
	floor, err := chunks.Open(chunks.Options{Dir: filepath.Join(b.TempDir(), "floor")})
	must(b, err)
	b.Cleanup(func() { _ = floor.Close() })
	c := newCluster(b)
	c.start("a")
	return floor, c
}
