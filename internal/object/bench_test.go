package object_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"testing"

	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/objecttest"
)

// instant are nodes that take no time to store a chunk, and have it always.
type instant struct {
	*objecttest.Disks
	data []byte
}

func (instant) Put(context.Context, string, object.Hash, []byte, uint64) error { return nil }

func (i instant) Get(_ context.Context, _ string, _ object.Hash, offset, length uint32, buf []byte) ([]byte, error) {
	return append(buf, i.data[offset:offset+length]...), nil
}

// What the store itself costs: the nodes take no time here.
func BenchmarkStore(b *testing.B) {
	for _, size := range []int{4 << 10, 1 << 20, 64 << 20} {
		data := content(min(size, object.ChunkSize), 1)
		body := func() io.Reader { return io.LimitReader(repeating(data), int64(size)) }
		for _, nodes := range [][]string{{"a"}, {"a", "b", "c"}} {
			disks := instant{objecttest.NewDisks(nodes...), data}
			c := newClusterOver(b, objecttest.NewNames(b), disks.Disks, object.Options{Disks: disks})
			var number atomic.Int64
			b.Run(fmt.Sprintf("put/%d/%d", size, len(nodes)), func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.RunParallel(func(p *testing.PB) {
					for p.Next() {
						key := fmt.Sprint(number.Add(1) % 1000)
						if _, err := c.store.Put(b.Context(), photos, object.PutRequest{Key: key, Body: body(), Size: int64(size)}); err != nil {
							b.Error(err)
						}
					}
				})
			})
			b.Run(fmt.Sprintf("get/%d/%d", size, len(nodes)), func(b *testing.B) {
				c.putInto(photos, "1", bytes.Repeat(data, size/len(data)))
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.RunParallel(func(p *testing.PB) {
					for p.Next() {
						_, r, err := c.store.Open(b.Context(), photos, "1", "")
						if err != nil {
							b.Error(err)
							return
						}
						g := r.ReadRange(b.Context(), 0, -1)
						if _, err := g.(io.WriterTo).WriteTo(io.Discard); err != nil {
							b.Error(err)
						}
						g.Close()
						r.Close()
					}
				})
			})
		}
	}
}
