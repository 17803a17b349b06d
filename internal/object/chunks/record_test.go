package chunks

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

func TestHeaderIsReadWhereItWasWritten(t *testing.T) {
	data := bytes.Repeat([]byte("data"), 50_000)
	h := header{kind: kindChunk, size: uint32(len(data)), seq: 7, epoch: 8, hash: Hash{1, 2, 3}}
	m := marker{1, 2, 3, 4, 5, 6, 7, 8}
	head := appendHead(nil, h, data)
	if int64(len(head)) != headSize(h.size) {
		t.Fatalf("the head has %d bytes", len(head))
	}
	place(head, m, 4096, true)
	got, ok := parseHeader(head, m, 4096)
	h.first, h.sum = true, got.sum
	if !ok || got != h {
		t.Fatalf("read %+v, %t, want %+v", got, ok, h)
	}
	if !blocksIntact(head, h.size, 0, data) || !blocksIntact(head, h.size, 2, data[2*blockSize:]) {
		t.Error("intact blocks are damaged")
	}
	if _, ok := parseHeader(head, m, 4104); ok {
		t.Error("a header is read at another offset")
	}
	if _, ok := parseHeader(head, marker{8}, 4096); ok {
		t.Error("a header is read in another pack")
	}
	for i := range headerSize {
		damaged := bytes.Clone(head)
		damaged[i] ^= 1 << (i % 8)
		if _, ok := parseHeader(damaged, m, 4096); ok {
			t.Errorf("a wrong bit in byte %d is not noticed", i)
		}
	}
	for _, i := range []int{0, blockSize - 1, blockSize, len(data) - 1} {
		data[i] ^= 1
		if blocksIntact(head, h.size, 0, data) {
			t.Errorf("a wrong bit in byte %d of the data is not noticed", i)
		}
		data[i] ^= 1
	}
}

// packOf is a pack with these bytes behind its header.
func packOf(t testing.TB, content []byte, m marker) *pack {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "pack"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	if _, err := file.WriteAt(content, packStart); err != nil {
		t.Fatal(err)
	}
	return &pack{id: 1, file: file, marker: m}
}

// fuzzMarker begins the records of the packs in these tests.
var fuzzMarker = marker{'m', 'a', 'r', 'k', 'e', 'r', 0, 1}

// records are some behind each other, as a lane writes them.
func records(sizes ...int) []byte {
	var b []byte
	for i, size := range sizes {
		data := bytes.Repeat([]byte{byte(i + 1)}, size)
		head := appendHead(nil, header{kind: kindChunk, size: uint32(size), seq: uint64(i), hash: Hash{byte(i)}}, data)
		place(head, fuzzMarker, packStart+int64(len(b)), i%2 == 0)
		b = append(append(b, head...), data...)
		b = append(b, make([]byte, -len(b)&(alignment-1))...)
	}
	return b
}

// A walk visits ranges that are in the pack, in order and apart from each other, whatever is in the pack.
func FuzzWalk(f *testing.F) {
	f.Add(records(10, 0, 70_000, 5))
	f.Add(append(make([]byte, 5000), records(1)...))
	f.Add([]byte("marker\x00\x01 and no record"))
	f.Fuzz(func(t *testing.T, content []byte) {
		p := packOf(t, content, fuzzMarker)
		to := packStart + int64(len(content))
		at := int64(packStart)
		check := func(from, until int64) {
			if from < at || until <= from || until > to {
				t.Fatalf("visited %d to %d after %d of %d", from, until, at, to)
			}
			at = until
		}
		w := walker{
			pack: p, from: packStart, to: to,
			visit: func(offset int64, h header) error {
				check(offset, offset+recordSize(h.size))
				return nil
			},
			lost: check,
		}
		if err := w.walk(); err != nil {
			t.Fatal(err)
		}
	})
}

// A walk finds every record whose header is intact, whatever happened to the others.
func TestWalkContinuesBehindDamage(t *testing.T) {
	sizes := make([]int, 200)
	for i := range sizes {
		sizes[i] = i * i * 3
	}
	whole := records(sizes...)
	var offsets []int64
	visit := func(offset int64, _ header) error {
		offsets = append(offsets, offset)
		return nil
	}
	run := func(content []byte) (got []int64, lost int) {
		offsets = nil
		w := walker{
			pack: packOf(t, content, fuzzMarker), from: packStart, to: packStart + int64(len(content)), visit: visit,
			lost: func(_, _ int64) { lost++ },
		}
		if err := w.walk(); err != nil {
			t.Fatal(err)
		}
		return offsets, lost
	}
	all, lost := run(whole)
	if len(all) != len(sizes) || lost != 0 {
		t.Fatalf("found %d records of %d, and %d ranges are lost", len(all), len(sizes), lost)
	}
	for range 100 {
		victim := rand.IntN(len(all))
		content := bytes.Clone(whole)
		content[all[victim]-packStart+rand.Int64N(headerSize)] ^= 4
		if got, lost := run(content); len(got) != len(all)-1 || lost != 1 {
			t.Errorf("with damage in record %d, %d of %d are found, and %d ranges are lost", victim, len(got), len(all), lost)
		}
		// Erased records are not lost.
		content = bytes.Clone(whole)
		size := recordSize(uint32(sizes[victim]))
		clear(content[all[victim]-packStart:][:size])
		if got, lost := run(content); len(got) != len(all)-1 || lost != 0 {
			t.Errorf("with record %d erased, %d of %d are found, and %d ranges are lost", victim, len(got), len(all), lost)
		}
	}
}
