package chaos

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/cloudless/cloudless/test/chaos/consistency"
	s3 "github.com/cloudless/cloudless/test/s3/client"
)

const (
	// sharedKeys are those that all clients change. Each client has further ones of its own.
	sharedKeys = 12
	// objectTimeout ends a call. The store gives a node half a minute to store a chunk, but asks another one earlier.
	objectTimeout = 20 * time.Second
	// partSize is that of all parts of an upload but the last: the least that S3 permits.
	partSize = 5 << 20
	// partTries is how often a part is put.
	partTries = 8
	// largeBudget is how many bytes are put in large objects. Nothing that was overwritten is deleted within minutes.
	largeBudget = 700 << 20
	// listPage is the size of a page of a listing: less than there are keys.
	listPage = 50
)

// writer is a client of the object store. It calls one server after the other, in any order.
type writer struct {
	*objects
	number  int
	servers []*s3.Client
	random  *rand.Rand
	count   uint32
	// own are the keys that only this client changes, and last is what it has put last.
	own  []string
	last consistency.Content
	// twins are the keys that have the last content.
	twins map[string]bool
}

func newWriter(o *objects, number int, seed uint64, key, secret string) *writer {
	w := &writer{objects: o, number: number, random: rand.New(rand.NewPCG(seed, 1000+uint64(number)))}
	for _, server := range o.lab.servers {
		w.servers = append(w.servers, s3.New("https://"+apiAddress(server), key, secret, 2))
	}
	return w
}

// chores are the kinds of calls, with how often they are made among all.
var chores = []struct {
	name  string
	often int
	do    func(*writer) bool
}{
	{"a put under a shared key", 6, func(w *writer) bool { return w.put(w.shared(), w.newContent(w.size())) }},
	{"a put under a new key", 6, (*writer).putNew},
	{"a put of the same bytes", 2, (*writer).putTwin},
	{"an upload in parts", 2, (*writer).upload},
	{"a read", 8, func(w *writer) bool { return w.get(w.any()) == nil }},
	{"a read of a part", 3, func(w *writer) bool { return w.getRange(w.any()) == nil }},
	{"a look", 3, func(w *writer) bool { return w.head(w.any()) == nil }},
	{"a deletion", 2, func(w *writer) bool { return w.remove(w.any()) }},
	{"a listing", 2, func(w *writer) bool { return w.list(w.after(), w.server) == nil }},
}

// work makes calls until ctx ends. The last one is not interrupted, so that its outcome is known.
func (w *writer) work(ctx context.Context) {
	var deck []func(*writer) bool
	for _, one := range chores {
		for range one.often {
			deck = append(deck, one.do)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(w.random.IntN(int(120 * time.Millisecond)))):
			deck[w.random.IntN(len(deck))](w)
		}
	}
}

func (w *writer) server() *s3.Client { return w.servers[w.random.IntN(len(w.servers))] }

func (w *writer) shared() string { return fmt.Sprintf("shared/%02d", w.random.IntN(sharedKeys)) }

// any is a shared key, or one of its own, which may be deleted.
func (w *writer) any() string {
	if len(w.own) == 0 || w.random.IntN(2) == 0 {
		return w.shared()
	}
	return w.own[w.random.IntN(len(w.own))]
}

// after is a key after which a listing begins, mostly none.
func (w *writer) after() string {
	if w.random.IntN(3) > 0 {
		return ""
	}
	return w.any()
}

// size is mostly small.
func (w *writer) size() int64 {
	w.mu.Lock()
	poor := w.spent > largeBudget
	w.mu.Unlock()
	switch n := w.random.IntN(20); {
	case n < 14 || poor:
		return 1<<10 + w.random.Int64N(64<<10)
	case n < 19:
		return 64<<10 + w.random.Int64N(1<<20)
	}
	return 1<<20 + w.random.Int64N(8<<20)
}

func (w *writer) newContent(size int64) consistency.Content {
	w.count++
	return consistency.Content{Writer: uint32(w.number), Number: w.count, Size: size}
}

func (w *writer) newKey() string {
	key := fmt.Sprintf("own/%d/%04d", w.number, w.count)
	w.own = append(w.own, key)
	return key
}

// announce makes an ETag known before anybody can see it.
func (w *writer) announce(etag string, c consistency.Content) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known[etag] = c
	w.spent += c.Size
}

// change makes a call that changes a key, and records what is known of its outcome.
func (w *writer) change(verb consistency.Verb, key string, content consistency.Content, do func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(context.Background(), objectTimeout)
	defer cancel()
	made := consistency.Call{Client: w.number, Verb: verb, Key: key, Outcome: consistency.Done, Seen: consistency.Seen{Content: content}}
	made.Begin = w.lab.told.now()
	err := do(ctx)
	made.End = w.lab.told.now()
	if err != nil {
		made.Outcome = w.judge(fmt.Sprintf("%s of %s", verb, key), err)
	}
	w.history.Add(made)
	return err == nil
}

// judge says what a failure reveals about a change, and notes what no fault explains: a fault makes a server unavailable,
// or it takes the answer away.
func (w *writer) judge(what string, err error) consistency.Outcome {
	refused, ok := errors.AsType[*s3.Refusal](err)
	if !ok || refused.Status == http.StatusServiceUnavailable {
		return consistency.Unknown
	}
	w.strange("%s: %v", what, err)
	if refused.Status >= 500 {
		return consistency.Unknown
	}
	return consistency.Failed
}

func (w *writer) strange(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.odd = append(w.odd, fmt.Sprintf("%.3fs, client %d: ", w.lab.told.now().Seconds(), w.number)+fmt.Sprintf(format, args...))
}

// sum is the ETag of content that is put at once.
func sum(body []byte) string {
	digest := md5.Sum(body)
	return hex.EncodeToString(digest[:])
}

func (w *writer) put(key string, content consistency.Content) bool {
	body := content.Bytes()
	etag := sum(body)
	w.announce(etag, content)
	done := w.change(consistency.Put, key, content, func(ctx context.Context) error {
		answered, err := w.server().Put(ctx, objectBucket, key, body)
		if err == nil && answered != etag {
			w.strange("the put of %s is answered with ETag %s and not %s", key, answered, etag)
		}
		return err
	})
	w.last, w.twins = content, map[string]bool{key: true}
	return done
}

func (w *writer) putNew() bool {
	content := w.newContent(w.size())
	return w.put(w.newKey(), content)
}

// putTwin puts what it has put last under another key as well, so that two objects share their chunks. A content is put
// under a key only once: it says which put it is of.
func (w *writer) putTwin() bool {
	key := w.shared()
	if w.last == consistency.None || w.twins[key] {
		return w.putNew()
	}
	twins := w.twins
	done := w.put(key, w.last)
	for twin := range twins {
		w.twins[twin] = true
	}
	return done
}

// upload puts an object in parts, through several servers. In the middle, it gives faults a chance.
func (w *writer) upload() bool {
	key := w.shared()
	content := w.newContent(partSize + 1<<10 + w.random.Int64N(7<<20))
	if w.random.IntN(2) == 0 {
		key = w.newKey()
	}
	body := content.Bytes()
	digests, count := []byte(nil), 0
	for part := range slices.Chunk(body, partSize) {
		digest := md5.Sum(part)
		digests = append(digests, digest[:]...)
		count++
	}
	etag := fmt.Sprintf("%s-%d", sum(digests), count)
	w.announce(etag, content)
	up, err := w.begin(key)
	if err != nil {
		return false
	}
	bereft := false
	for part := range slices.Chunk(body, partSize) {
		if err := w.putPart(up, part); err != nil {
			w.abort(up)
			return false
		}
		bereft = w.offer() || bereft
	}
	done := w.change(consistency.Complete, key, content, func(ctx context.Context) error {
		answered, err := up.By(w.server()).Complete(ctx)
		if err == nil && answered != etag {
			w.strange("the upload of %s is answered with ETag %s and not %s", key, answered, etag)
		}
		return err
	})
	if bereft && done {
		w.mu.Lock()
		w.bereft++
		w.mu.Unlock()
	}
	return done
}

// begin begins an upload.
func (w *writer) begin(key string) (*s3.Upload, error) {
	ctx, cancel := context.WithTimeout(context.Background(), objectTimeout)
	defer cancel()
	up, err := w.server().Begin(ctx, objectBucket, key)
	if err != nil {
		w.judge("the beginning of an upload of "+key, err)
	}
	return up, err
}

// putPart puts the next part, again if it fails.
func (w *writer) putPart(up *s3.Upload, part []byte) (err error) {
	for range partTries {
		ctx, cancel := context.WithTimeout(context.Background(), objectTimeout)
		by := up.By(w.server())
		err = by.Put(ctx, part)
		cancel()
		if err == nil {
			*up = *by
			return nil
		}
		w.judge("the put of a part", err)
		time.Sleep(time.Duration(w.random.IntN(int(time.Second))))
	}
	return err
}

// offer lets a fault happen now, if one waits for that.
func (w *writer) offer() bool {
	over := make(chan struct{})
	select {
	case w.midway <- over:
		<-over
		w.mu.Lock()
		defer w.mu.Unlock()
		w.lost++
		return true
	default:
		return false
	}
}

func (w *writer) abort(up *s3.Upload) {
	ctx, cancel := context.WithTimeout(context.Background(), objectTimeout)
	defer cancel()
	if err := up.By(w.server()).Abort(ctx); err != nil {
		w.judge("the end of an upload", err)
	}
}

func (w *writer) remove(key string) bool {
	return w.change(consistency.Delete, key, consistency.None, func(ctx context.Context) error {
		return w.server().Delete(ctx, objectBucket, key)
	})
}

// read makes a call that reads a key, and records what it found.
func (w *writer) read(key string, do func(context.Context) (consistency.Seen, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), objectTimeout)
	defer cancel()
	made := consistency.Call{Client: w.number, Verb: consistency.Read, Key: key, Outcome: consistency.Done, Begin: w.lab.told.now()}
	seen, err := do(ctx)
	made.End, made.Seen = w.lab.told.now(), seen
	if refused, ok := errors.AsType[*s3.Refusal](err); ok && refused.Status == http.StatusNotFound && refused.Code != "NoSuchBucket" {
		err = nil // there is no object
	}
	if err != nil {
		w.judge("read of "+key, err)
		return err
	}
	w.history.Add(made)
	return nil
}

// torn is what is seen if content cannot be identified.
func torn(c consistency.Content, err error) (seen consistency.Seen, _ error) {
	if err != nil {
		return consistency.Seen{Torn: err.Error()}, nil
	}
	return consistency.Seen{Content: c}, nil
}

func (w *writer) get(key string) error {
	return w.read(key, func(ctx context.Context) (seen consistency.Seen, err error) {
		body, err := w.server().Get(ctx, objectBucket, key)
		if err != nil {
			return seen, err
		}
		return torn(consistency.Identify(body))
	})
}

// leastObject is the size of the smallest object, and rangeSize that of a range.
const leastObject, rangeSize = 1 << 10, 1 << 10

// getRange reads a part: at the beginning, or where large objects are cut into chunks if the object is so large.
func (w *writer) getRange(key string) error {
	first := w.random.Int64N(leastObject - 2*consistency.LeastSize)
	if w.random.IntN(2) == 0 {
		_, size, err := w.headers(key)
		if err == nil && size > 4<<20+rangeSize {
			first = 4<<20 - w.random.Int64N(rangeSize)
		}
	}
	return w.read(key, func(ctx context.Context) (seen consistency.Seen, err error) {
		body, err := w.server().GetRange(ctx, objectBucket, key, first, first+rangeSize-1)
		if refused, ok := errors.AsType[*s3.Refusal](err); ok && refused.Status == http.StatusRequestedRangeNotSatisfiable {
			return seen, errSmaller // it was overwritten with less
		}
		if err == nil && len(body) < 2*consistency.LeastSize {
			err = errSmaller
		}
		if err != nil {
			return seen, err
		}
		return torn(consistency.IdentifyRange(body, first))
	})
}

var errSmaller = errors.New("the object is too small for the range")

func (w *writer) headers(key string) (etag string, size int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), objectTimeout)
	defer cancel()
	return w.server().Head(ctx, objectBucket, key)
}

// head looks at an object without its content.
func (w *writer) head(key string) error {
	return w.read(key, func(ctx context.Context) (seen consistency.Seen, err error) {
		etag, size, err := w.server().Head(ctx, objectBucket, key)
		if err != nil {
			return seen, err
		}
		return w.identified(etag, size), nil
	})
}

// identified is what an ETag and a size say of an object.
func (w *writer) identified(etag string, size int64) consistency.Seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, known := w.known[etag]
	switch {
	case !known:
		return consistency.Seen{Torn: fmt.Sprintf("nobody put what has the ETag %q", etag)}
	case c.Size != size:
		return consistency.Seen{Torn: fmt.Sprintf("it has the ETag of %v, and %d bytes", c, size)}
	}
	return consistency.Seen{Content: c}
}

// list lists all keys after one, in pages. Each page is a call of its own, to a server that is chosen anew.
func (w *writer) list(after string, choose func() *s3.Client) error {
	next := ""
	for {
		made := consistency.Call{Client: w.number, Verb: consistency.List, Outcome: consistency.Done, Begin: w.lab.told.now()}
		ctx, cancel := context.WithTimeout(context.Background(), objectTimeout)
		page, err := choose().List(ctx, objectBucket, next, after, listPage)
		cancel()
		made.End = w.lab.told.now()
		if err != nil {
			w.judge("listing", err)
			return err
		}
		made.Listing = consistency.Listing{After: after, Found: map[string]consistency.Seen{}}
		for _, object := range page.Contents {
			made.Listing.Found[object.Key] = w.identified(object.ETag, object.Size)
			after = object.Key
		}
		if next = page.Next; next != "" {
			made.Listing.Through = after
		}
		w.history.Add(made)
		if next == "" {
			return nil
		}
	}
}
