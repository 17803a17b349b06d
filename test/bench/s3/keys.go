package s3

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/names"
	"github.com/cloudless/cloudless/internal/object/objecttest"
	gateway "github.com/cloudless/cloudless/internal/server/s3"
	"github.com/cloudless/cloudless/internal/server/s3/s3test"
)

const (
	keysNamespace = "default"
	// entryPuts is how many objects one entry of the log puts.
	entryPuts = 1000
	// cache is what the names have on a server.
	cache = 64 << 20
)

// Keys are what many objects cost that are nothing but names.
type Keys struct {
	// List is how long it takes to list all of them in pages of 1,000.
	List  time.Duration
	Pages int
	// Disk and Memory are bytes for each.
	Disk, Memory float64
	Write        time.Duration
}

// MeasureKeys writes so many names, as the log of the names would have them applied, and lists them by S3 over TLS. Server
// and client are this process.
func MeasureKeys(ctx context.Context, dir string, count int) (_ Keys, err error) {
	logger := slog.New(slog.DiscardHandler)
	before := heap()
	store, err := names.Open(names.Options{Dir: filepath.Join(dir, "names"), Logger: logger, Cache: cache})
	if err != nil {
		return Keys{}, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	objects, err := object.New(object.Options{Names: &applied{store}, Disks: objecttest.NewDisks("a"), Logger: logger})
	if err != nil {
		return Keys{}, err
	}
	defer objects.Close()
	directory := s3test.NewDirectory(objects)
	directory.AddKey(otherKey, otherSecret, keysNamespace, "operator")
	handler, err := gateway.New(gateway.Options{Store: objects, Directory: directory, Logger: logger})
	if err != nil {
		return Keys{}, err
	}
	defer handler.Close()
	server := httptest.NewTLSServer(handler)
	defer server.Close()
	e := &Endpoint{Name: "the object store", URL: server.URL, Key: otherKey, Secret: otherSecret}
	defer e.Close()
	if err := e.CreateBucket(ctx, "keys"); err != nil {
		return Keys{}, err
	}
	bucket, _, err := directory.FindBucket(ctx, keysNamespace, "keys")
	if err != nil {
		return Keys{}, err
	}
	k := Keys{}
	began := time.Now()
	if err := write(ctx, store, bucket, count); err != nil {
		return Keys{}, err
	}
	k.Write = time.Since(began)
	began = time.Now()
	listed, pages, err := e.ListAll(ctx, "keys")
	k.List, k.Pages = time.Since(began), pages
	if err == nil && listed != count {
		err = fmt.Errorf("%d of %d keys were listed", listed, count)
	}
	if err != nil {
		return Keys{}, err
	}
	k.Memory = float64(heap()-before) / float64(count)
	size, err := diskUse(filepath.Join(dir, "names"))
	k.Disk = float64(size) / float64(count)
	return k, err
}

// applied are names whose proposals are applied at once.
type applied struct{ *names.Names }

func (a *applied) View(context.Context) (*names.View, error) { return a.Names.View(), nil }

func (a *applied) Propose(_ context.Context, entry *objectv1.Entry) (*objectv1.Results, error) {
	view := a.Names.View()
	index := view.Index() + 1
	view.Close()
	data, err := proto.Marshal(entry)
	if err != nil {
		return nil, err
	}
	results, err := a.Apply([]names.Entry{{Index: index, Data: data}})
	if err != nil {
		return nil, err
	}
	return results[0], nil
}

// write puts objects of one chunk each.
func write(ctx context.Context, store *names.Names, bucket object.Bucket, count int) error {
	a := &applied{store}
	registered, err := a.Propose(ctx, &objectv1.Entry{Operations: []*objectv1.Operation{{
		Time: 1, What: &objectv1.Operation_RegisterNode{RegisterNode: &objectv1.RegisterNode{Uid: "uid-a"}},
	}}})
	if err != nil {
		return err
	}
	node := registered.GetResults()[0].GetNode()
	for first := 0; first < count; first += entryPuts {
		entry := &objectv1.Entry{}
		for number := first; number < min(count, first+entryPuts); number++ {
			entry.Operations = append(entry.Operations, putKey(bucket, number, node))
		}
		results, err := a.Propose(ctx, entry)
		if err != nil {
			return err
		}
		for _, result := range results.GetResults() {
			if result.GetRefused() != "" {
				return fmt.Errorf("a key was refused: %s %s", result.GetRefused(), result.GetAbout())
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// putKey is the operation of a put of 4 KiB.
func putKey(bucket object.Bucket, number int, node uint32) *objectv1.Operation {
	id, hash := make([]byte, 16), make([]byte, 32)
	binary.BigEndian.PutUint64(id, uint64(number)+1)
	binary.LittleEndian.PutUint64(hash, (uint64(number)+1)*0x9e3779b97f4a7c15)
	block := &objectv1.Block{Hash: hash, Size: 4096}
	return &objectv1.Operation{Time: time.Now().UnixNano(), What: &objectv1.Operation_Put{Put: &objectv1.Put{
		Target: &objectv1.Target{Bucket: bucket.UID, Namespace: bucket.NamespaceUID, Copies: 1},
		Key:    fmt.Sprintf("photos/2026/%03d/img-%09d.jpg", number/1000%365, number), Epoch: 1,
		Version: &objectv1.Version{
			Id: id, Size: 4096, Etag: fmt.Sprintf("%032x", number), Time: time.Now().UnixNano(),
			Headers: &objectv1.Headers{ContentType: "image/jpeg"}, Blocks: []*objectv1.Block{block}, Charged: 4096,
		},
		Chunks: []*objectv1.StoredChunk{{Hash: hash, Size: 4096, Nodes: []uint32{node}}},
	}}}
}

func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// diskUse is what a folder takes on the disk.
func diskUse(dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was compacted meanwhile
		}
		if err != nil {
			return err
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			total += stat.Blocks * 512
		}
		return nil
	})
	return total, err
}
