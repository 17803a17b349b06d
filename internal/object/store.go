package object

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/semaphore"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

const (
	// defaultMemory keeps a server under load below 300 MB: connections and the names need the rest.
	defaultMemory = 64 << 20
	// defaultCopies is how many nodes should have a chunk of a bucket that does not say it. Where there are fewer nodes
	// now, others get it when they join.
	defaultCopies = 3
	// inlineBlocks is how many blocks a version has itself. Longer lists are under keys of their own.
	inlineBlocks = 8
	// listBlocks is how many blocks one staged list has.
	listBlocks = 1024
	// maxKey is S3's limit of a key, in bytes.
	maxKey = 1024
	// defaultUploadTTL is how long an upload may stay unfinished.
	defaultUploadTTL = 7 * 24 * time.Hour
)

// Options configures a store.
type Options struct {
	Names  Names
	Disks  Disks
	Logger *slog.Logger
	// Now is the clock of versions; time.Now if nil.
	Now func() time.Time
	// OverQuota is called for whatever a quota refuses, and must return at once; it may be nil.
	OverQuota func(Bucket, *QuotaError)
	// Memory is how many bytes of content all requests together may have in memory; 64 MiB if 0.
	Memory int64
}

// Store puts and gets objects. All methods may be called at once.
type Store struct {
	names  Names
	disks  Disks
	logger *slog.Logger
	now    func() time.Time
	told   func(Bucket, *QuotaError)

	memory *memory
	// late bounds the memory of writes that go on after their quorum.
	late    *semaphore.Weighted
	fleet   *fleet
	numbers numbers
	epoch   epochs
	reads   latencies
	writes  latencies

	// background is the context of what no request waits for, and work counts it.
	background context.Context
	end        context.CancelFunc
	work       sync.WaitGroup
	located    chan *objectv1.Located
	damages    chan damage
}

// New returns a store. Close ends what it does in the background.
func New(o Options) (*Store, error) {
	if o.Names == nil || o.Disks == nil || o.Logger == nil {
		return nil, errors.New("an object store needs names, disks and a logger")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.OverQuota == nil {
		o.OverQuota = func(Bucket, *QuotaError) {}
	}
	if o.Memory == 0 {
		o.Memory = defaultMemory
	}
	if o.Memory < 4*ChunkSize {
		return nil, errors.New("an object store needs memory for at least four chunks")
	}
	s := &Store{
		names: o.Names, disks: o.Disks, logger: o.Logger, now: o.Now, told: o.OverQuota,
		memory: newMemory(o.Memory), late: semaphore.NewWeighted(o.Memory / 2), fleet: newFleet(o.Disks, o.Logger),
		located: make(chan *objectv1.Located, 4096), damages: make(chan damage, 256),
	}
	s.background, s.end = context.WithCancel(context.Background())
	s.work.Go(s.report)
	s.work.Go(s.repair)
	return s, nil
}

// Close ends all work in the background and waits for it. Requests must have ended before.
func (s *Store) Close() {
	s.end()
	s.work.Wait()
}

// copies is how many nodes should have each chunk of a bucket.
func (b Bucket) copies() int {
	if b.Replicas == 0 {
		return defaultCopies
	}
	return b.Replicas
}

func (b Bucket) target() *objectv1.Target {
	return &objectv1.Target{
		Bucket: b.UID, Namespace: b.NamespaceUID, Quota: b.Quota, NamespaceQuota: b.NamespaceQuota,
		Versioning: b.Versioning, Copies: uint32(b.copies()),
	}
}

// expiry returns when an object that is put now expires, in Unix nanoseconds, or 0.
func (b Bucket) expiry(key string, now time.Time) int64 {
	var first int64
	for _, rule := range b.Expiry {
		if len(key) < len(rule.Prefix) || key[:len(rule.Prefix)] != rule.Prefix {
			continue
		}
		if at := now.Add(rule.After).UnixNano(); first == 0 || at < first {
			first = at
		}
	}
	return first
}

// check refuses a key that S3 would not have either.
func check(b Bucket, key string) error {
	if key == "" || len(key) > maxKey || !utf8.ValidString(key) {
		return aboutKey(b, key, ErrBadKey)
	}
	return nil
}
