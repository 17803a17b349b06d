package names

import (
	"errors"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// ListRequest selects a page of a bucket's keys, in the order of their bytes.
type ListRequest struct {
	Prefix, Delimiter string
	// After is the last key or common prefix of the page before; AfterVersion the last version of that key.
	After        string
	AfterVersion []byte
	// Versions lists all versions and delete markers, the newest of a key first; otherwise only current versions.
	Versions bool
	Limit    int
}

// Listing is a page.
type Listing struct {
	Items []Listed
	// More is whether another page follows. It begins after Last and LastVersion.
	More        bool
	Last        string
	LastVersion []byte
}

// Listed is a version or a common prefix.
type Listed struct {
	// Key is the common prefix if Version is nil.
	Key     string
	Version *objectv1.Version
	// Latest is whether it is the current version.
	Latest bool
}

// List returns a page of a bucket.
func (v *View) List(bucket string, request ListRequest) (Listing, error) {
	if v.err != nil || request.Limit <= 0 {
		return Listing{}, v.err
	}
	p, err := v.newPage(bucket, request)
	if err != nil {
		return Listing{}, err
	}
	if err := errors.Join(p.fill(), p.close()); err != nil {
		return Listing{}, err
	}
	return p.listing, nil
}

// page is a page that is being filled.
type page struct {
	ListRequest
	view   *View
	bucket string
	// current goes through the current versions. The key of an object is behind the first strip bytes of a row's key.
	current *pebble.Iterator
	strip   int
	// older goes through the older versions of one key after the other. It is nil until it is needed.
	older   *pebble.Iterator
	listing Listing
}

func (v *View) newPage(bucket string, request ListRequest) (*page, error) {
	all := objectPrefix(tableCurrent, bucket, request.Prefix)
	current, err := v.snapshot.NewIter(&pebble.IterOptions{LowerBound: all, UpperBound: after(all)})
	if err != nil {
		return nil, err
	}
	strip := len(objectPrefix(tableCurrent, bucket, ""))
	return &page{ListRequest: request, view: v, bucket: bucket, current: current, strip: strip}, nil
}

func (p *page) close() error {
	err := p.current.Close()
	if p.older != nil {
		err = errors.Join(err, p.older.Close())
	}
	return err
}

func (p *page) fill() error {
	ok, err := p.begin()
	for ; ok && err == nil && !p.listing.More; ok, err = p.step() {
	}
	return errors.Join(err, p.current.Error())
}

// begin finds the first row behind the page before.
func (p *page) begin() (bool, error) {
	switch {
	case p.After == "":
		return p.current.First(), nil
	case p.After == p.common(p.After):
		return p.passPrefix(p.After), nil
	case !p.Versions || len(p.AfterVersion) == 0 || p.common(p.After) != "":
		return p.current.SeekGE(after(currentKey(p.bucket, p.After))), nil
	}
	if !p.current.SeekGE(currentKey(p.bucket, p.After)) {
		return false, nil
	}
	if key, err := p.key(); err != nil || key != p.After {
		return true, err
	}
	return p.resume()
}

// resume continues in the middle of a key's versions. If the last version of the page before was deleted meanwhile, as by
// someone who empties the bucket page by page, the page begins with the key's newest version.
func (p *page) resume() (bool, error) {
	s, err := p.row()
	if err != nil {
		return false, err
	}
	if !s.is(string(p.AfterVersion)) {
		last, err := readOlder(p.view.snapshot, p.bucket, p.After, string(p.AfterVersion))
		if err != nil || last == nil {
			return err == nil, err
		}
		s.Version, s.operation = last.Version, last.operation
	}
	if s.older {
		from := position{index: s.GetIndex(), operation: s.operation}
		if err := p.addOlder(p.After, append(olderKey(p.bucket, p.After, from), 0)); err != nil {
			return false, err
		}
	}
	return p.current.Next(), nil
}

// step adds what the current row stands for, and goes to the next one.
func (p *page) step() (bool, error) {
	row, err := p.current.ValueAndErr()
	if err != nil {
		return false, err
	}
	if isMarker(row) && !p.Versions {
		return p.current.Next(), nil
	}
	key, err := p.key()
	if err != nil {
		return false, err
	}
	if common := p.common(key); common != "" {
		p.add(Listed{Key: common}, nil)
		return p.passPrefix(common), nil
	}
	if p.full() { // without decoding the row
		return true, nil
	}
	s := new(stored)
	if err := s.decode(row); err != nil {
		return false, err
	}
	p.add(Listed{Key: key, Version: s.Version, Latest: true}, s.GetId())
	if p.Versions && s.older {
		prefix := objectKey(tableOlder, p.bucket, key, 0)
		if err := p.addOlder(key, prefix); err != nil {
			return false, err
		}
	}
	return p.current.Next(), nil
}

// addOlder adds the older versions of a key from a row on.
func (p *page) addOlder(key string, from []byte) error {
	prefix := objectKey(tableOlder, p.bucket, key, 0)
	if p.older == nil {
		var err error
		if p.older, err = p.view.snapshot.NewIter(&pebble.IterOptions{}); err != nil {
			return err
		}
	}
	p.older.SetBounds(from, after(prefix))
	for ok := p.older.First(); ok && !p.full(); ok = p.older.Next() {
		row, err := p.older.ValueAndErr()
		if err != nil {
			return err
		}
		s := new(stored)
		if err := s.decode(row); err != nil {
			return err
		}
		p.add(Listed{Key: key, Version: s.Version}, s.GetId())
	}
	return p.older.Error()
}

// full reports whether the page has no room for another item, which then is on the next page.
func (p *page) full() bool {
	p.listing.More = p.listing.More || len(p.listing.Items) >= p.Limit
	return p.listing.More
}

func (p *page) add(item Listed, version []byte) {
	if !p.full() {
		p.listing.Items = append(p.listing.Items, item)
		p.listing.Last, p.listing.LastVersion = item.Key, version
	}
}

// common is the common prefix that stands for a key, or nothing.
func (p *page) common(key string) string {
	if p.Delimiter == "" || !strings.HasPrefix(key, p.Prefix) {
		return ""
	}
	end := strings.Index(key[len(p.Prefix):], p.Delimiter)
	if end < 0 {
		return ""
	}
	return key[:len(p.Prefix)+end+len(p.Delimiter)]
}

// passPrefix goes to the first key behind all that begin with a prefix.
func (p *page) passPrefix(prefix string) bool {
	return p.current.SeekGE(after(objectPrefix(tableCurrent, p.bucket, prefix)))
}

// key is the object's key of the current row.
func (p *page) key() (string, error) {
	key, _, ok := cutString(p.current.Key()[p.strip:])
	if !ok {
		return "", errDamagedRow
	}
	return key, nil
}

func (p *page) row() (*stored, error) {
	row, err := p.current.ValueAndErr()
	if err != nil {
		return nil, err
	}
	s := new(stored)
	return s, s.decode(row)
}
