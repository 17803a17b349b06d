package names

import (
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

var benchKeys = flag.Int("names.keys", 50_000, "objects that benchmarks of listings have")

// smallObjects are entries that each put one object with one chunk on two nodes, as a client of S3 does.
func smallObjects(b *testing.B, from, count int) []Entry {
	entries := make([]Entry, count)
	target := bucketWith("")
	for i := range entries {
		n := from + i
		seed := binary.BigEndian.AppendUint64(nil, uint64(n))
		hash := sha256.Sum256(seed)
		version := &objectv1.Version{
			Id: hash[:idSize], Etag: fmt.Sprintf("%x", hash[:16]), Size: 4096, Time: 1_700_000_000_000_000_000 + int64(n),
			Headers: &objectv1.Headers{ContentType: "image/jpeg"},
			Blocks:  []*objectv1.Block{{Hash: hash[:], Size: 4096}},
		}
		put := putOf(target, fmt.Sprintf("album-%03d/photo-%08d.jpg", n%1000, n), version, 1, 1, 2)
		entries[i] = Entry{uint64(n) + 10, encode(b, &objectv1.Entry{Operations: []*objectv1.Operation{put}})}
	}
	return entries
}

func benchStore(b *testing.B) (n *Names, dir string) {
	b.Helper()
	dir = filepath.Join(b.TempDir(), "names")
	n, err := Open(Options{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := n.Close(); err != nil {
			b.Error(err)
		}
	})
	for i := range uint64(2) {
		register := &objectv1.Operation{What: &objectv1.Operation_RegisterNode{RegisterNode: &objectv1.RegisterNode{Uid: fmt.Sprint(i)}}}
		apply(b, n, []Entry{{i + 1, encode(b, &objectv1.Entry{Operations: []*objectv1.Operation{register}})}})
	}
	return n, dir
}

func apply(b *testing.B, n *Names, entries []Entry) {
	results, err := n.Apply(entries)
	if err != nil {
		b.Fatal(err)
	}
	for _, result := range results {
		if refused := result.GetResults()[0].GetRefused(); refused != "" {
			b.Fatal(refused)
		}
	}
}

// BenchmarkApply puts small objects, in batches as a busy group of servers has them.
func BenchmarkApply(b *testing.B) {
	for _, batch := range []int{1, 64} {
		b.Run(fmt.Sprint("batch=", batch), func(b *testing.B) {
			n, _ := benchStore(b)
			entries := smallObjects(b, 0, b.N)
			b.ReportAllocs()
			b.ResetTimer()
			for len(entries) > 0 {
				size := min(batch, len(entries))
				apply(b, n, entries[:size])
				entries = entries[size:]
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "puts/s")
		})
	}
}

// BenchmarkList lists all objects in pages of 1,000, and reports what an object costs on disk and in memory.
func BenchmarkList(b *testing.B) {
	n, dir := benchStore(b)
	before := heap()
	for from := 0; from < *benchKeys; from += 1000 {
		for entries := smallObjects(b, from, 1000); len(entries) > 0; entries = entries[64:] {
			if len(entries) < 64 {
				apply(b, n, entries)
				break
			}
			apply(b, n, entries[:64])
		}
	}
	if _, err := n.Checkpoint(filepath.Join(b.TempDir(), "copy")); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	for b.Loop() {
		listed := 0
		request := ListRequest{Limit: 1000}
		for more := true; more; {
			v := n.View()
			page, err := v.List("photos", request)
			v.Close()
			if err != nil {
				b.Fatal(err)
			}
			listed += len(page.Items)
			request.After, more = page.Last, page.More
		}
		if listed != *benchKeys {
			b.Fatalf("%d of %d objects were listed", listed, *benchKeys)
		}
	}
	b.ReportMetric(float64(*benchKeys)*float64(b.N)/b.Elapsed().Seconds(), "keys/s")
	b.ReportMetric(float64(heap()-before)/float64(*benchKeys), "heap-B/object")
	b.ReportMetric(float64(size(b, dir))/float64(*benchKeys), "disk-B/object")
}

func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func size(b *testing.B, dir string) int64 {
	var bytes int64
	err := filepath.WalkDir(dir, func(_ string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return bytes
}
