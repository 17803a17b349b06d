package names

import (
	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// What Target.versioning says.
const (
	versioningEnabled   = "enabled"
	versioningSuspended = "suspended"
)

// object is a key of a bucket, as an operation finds it.
type object struct {
	bucket *bucket
	key    string
	// current is nil if the key has no version.
	current *stored
}

func (c *change) object(target *objectv1.Target, key string) (*object, error) {
	b, err := c.open(target)
	if err != nil {
		return nil, err
	}
	current, err := readCurrent(c, b.uid, key)
	return &object{bucket: b, key: key, current: current}, err
}

// find returns a version by its id or by "null", or nil.
func (c *change) find(o *object, id string) (*stored, error) {
	if o.current == nil || o.current.is(id) {
		return o.current, nil
	}
	if !o.current.older {
		return nil, nil
	}
	return readOlder(c, o.bucket.uid, o.key, id)
}

// put gives a key another version.
func (c *change) put(op *objectv1.Put) (*objectv1.Result, error) {
	o, err := c.object(op.GetTarget(), op.GetKey())
	if err != nil {
		return nil, err
	}
	version := op.GetVersion()
	if done, err := c.find(o, string(version.GetId())); err != nil || done != nil {
		return found(done), err // proposed twice
	}
	if err := o.meets(op.GetCondition()); err != nil {
		return nil, err
	}
	content, err := c.prepare(op.GetTarget(), version.GetBlocks(), op.GetChunks(), op.GetEpoch())
	if err != nil {
		return nil, err
	}
	lists, err := c.prepareSegments(version.GetSegments())
	if err != nil {
		return nil, err
	}
	c.stamp(op.GetTarget(), version)
	replaced, err := c.replacedBy(o, version)
	if err != nil {
		return nil, err
	}
	if err := o.bucket.admit(op.GetTarget(), version.GetCharged()-charged(replaced)); err != nil {
		return nil, err
	}
	if err := c.refer(content); err != nil {
		return nil, err
	}
	if err := c.adopt(lists); err != nil {
		return nil, err
	}
	return c.push(o, version, replaced)
}

// found is the answer to an operation that was applied before.
func found(version *stored) *objectv1.Result {
	if version == nil {
		return nil
	}
	return &objectv1.Result{Version: version.Version}
}

// meets refuses an operation whose condition does not hold.
func (o *object) meets(condition *objectv1.Condition) error {
	match, none := condition.GetIfMatch(), condition.GetIfNoneMatch()
	exists := objects(o.current) == 1
	switch {
	case match != "" && !exists:
		return refuse(RefusedNoKey, "%s", o.key)
	case match != "" && match != "*" && match != o.current.GetEtag(),
		none != "" && exists && (none == "*" || none == o.current.GetEtag()):
		return refuse(RefusedPrecondition, "%s", o.key)
	}
	return nil
}

// stamp sets what the proposer of a version does not know.
func (c *change) stamp(target *objectv1.Target, version *objectv1.Version) {
	version.Index = c.index
	version.Null = target.GetVersioning() != versioningEnabled
	version.Charged = version.GetSize()
}

// replacedBy returns the version that a new one replaces, or nil. While a bucket keeps no versions, a new one replaces
// the one that S3 calls null.
func (c *change) replacedBy(o *object, version *objectv1.Version) (*stored, error) {
	if !version.GetNull() {
		return nil, nil
	}
	return c.find(o, nullID)
}

func charged(s *stored) int64 {
	if s == nil {
		return 0
	}
	return s.GetCharged()
}

// push makes a version the current one. What replacedBy has returned goes away; the other versions stay.
func (c *change) push(o *object, version *objectv1.Version, replaced *stored) (*objectv1.Result, error) {
	s := &stored{Version: version, operation: c.operation, older: o.current != nil && o.current.older}
	if o.current != nil && o.current != replaced {
		s.older = true
		if err := c.setOlder(o, o.current); err != nil {
			return nil, err
		}
	}
	if replaced != nil {
		if err := c.discard(o, replaced); err != nil {
			return nil, err
		}
	}
	o.bucket.count(1, version.GetCharged())
	if err := c.setExpiry(0, version.GetExpireTime(), o.expiry(version)); err != nil {
		return nil, err
	}
	return &objectv1.Result{Version: version, Replaced: objects(o.current) == 1}, c.setCurrent(o, s)
}

// discard removes a version and gives up its content. The current version's row is left to the caller.
func (c *change) discard(o *object, s *stored) error {
	if s != o.current {
		if err := c.removeOlder(o, s); err != nil {
			return err
		}
	}
	o.bucket.count(-1, -s.GetCharged())
	if err := c.setExpiry(s.GetExpireTime(), 0, o.expiry(s.Version)); err != nil {
		return err
	}
	if err := c.dereference(s.GetBlocks()); err != nil {
		return err
	}
	return c.unreference(s.GetSegments())
}

func (o *object) expiry(version *objectv1.Version) func(int64) []byte {
	return func(time int64) []byte { return versionExpiryKey(o.bucket.uid, o.key, time, version.GetId()) }
}

// setCurrent makes a version the current one, or removes the key if it is nil.
func (c *change) setCurrent(o *object, s *stored) error {
	o.bucket.countObjects(o.current, s)
	o.current = s
	if s == nil {
		return c.remove(currentKey(o.bucket.uid, o.key))
	}
	row, err := s.encode()
	if err != nil {
		return err
	}
	return c.set(currentKey(o.bucket.uid, o.key), row)
}

func (c *change) setOlder(o *object, s *stored) error {
	row, err := (&stored{Version: s.Version, operation: s.operation}).encode()
	if err != nil {
		return err
	}
	if err := c.set(olderKey(o.bucket.uid, o.key, s.position()), row); err != nil {
		return err
	}
	for _, id := range ids(s) {
		if err := c.set(positionKey(o.bucket.uid, o.key, id), s.position().encode()); err != nil {
			return err
		}
	}
	return nil
}

func (c *change) removeOlder(o *object, s *stored) error {
	if err := c.remove(olderKey(o.bucket.uid, o.key, s.position())); err != nil {
		return err
	}
	for _, id := range ids(s) {
		if err := c.remove(positionKey(o.bucket.uid, o.key, id)); err != nil {
			return err
		}
	}
	return nil
}

// ids are the names that a version can be found by.
func ids(s *stored) []string {
	if s.GetNull() {
		return []string{string(s.GetId()), nullID}
	}
	return []string{string(s.GetId())}
}

// delete deletes a version, or the current one.
func (c *change) delete(op *objectv1.Delete) (*objectv1.Result, error) {
	o, err := c.object(op.GetTarget(), op.GetKey())
	if err != nil {
		return nil, err
	}
	if len(op.GetVersion()) > 0 {
		return c.deleteVersion(o, op)
	}
	if len(op.GetMarker()) > 0 {
		done, err := c.find(o, string(op.GetMarker()))
		if err != nil || done != nil {
			return found(done), err // proposed twice
		}
	}
	if err := o.meets(op.GetCondition()); err != nil {
		return nil, err
	}
	if op.GetExpired() && !c.over(o.current) {
		return nil, refuse(RefusedStale, "%s", o.key)
	}
	if op.GetTarget().GetVersioning() == "" {
		plain, err := c.plain(o)
		if err != nil {
			return nil, err
		}
		if plain {
			return c.pop(o)
		}
	}
	return c.mark(o, op)
}

// over reports whether a version has expired.
func (c *change) over(s *stored) bool { return s != nil && c.passed(s.GetExpireTime()) }

func (c *change) passed(expireTime int64) bool { return expireTime != 0 && expireTime <= c.time }

// plain reports whether a key has no version that a bucket with versions has kept.
func (c *change) plain(o *object) (bool, error) {
	if o.current == nil || !o.current.older {
		return o.current == nil || o.current.GetNull(), nil
	}
	next, err := c.newestOlder(o)
	return next == nil && o.current.GetNull(), err
}

// mark adds a delete marker.
func (c *change) mark(o *object, op *objectv1.Delete) (*objectv1.Result, error) {
	if len(op.GetMarker()) == 0 {
		return nil, refuse(RefusedMalformed, "marker")
	}
	marker := &objectv1.Version{Id: op.GetMarker(), DeleteMarker: true, Time: c.time}
	c.stamp(op.GetTarget(), marker)
	replaced, err := c.replacedBy(o, marker)
	if err != nil {
		return nil, err
	}
	return c.push(o, marker, replaced)
}

func (c *change) deleteVersion(o *object, op *objectv1.Delete) (*objectv1.Result, error) {
	s, err := c.find(o, string(op.GetVersion()))
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, refuse(RefusedNoVersion, "%s", o.key)
	}
	if err := o.meets(op.GetCondition()); err != nil {
		return nil, err
	}
	if op.GetExpired() && !c.over(s) {
		return nil, refuse(RefusedStale, "%s", o.key)
	}
	if s == o.current {
		return c.pop(o)
	}
	return &objectv1.Result{Version: s.Version}, c.discard(o, s)
}

// pop removes the current version of a key, if it has one. The newest of the older versions becomes the current one.
func (c *change) pop(o *object) (*objectv1.Result, error) {
	gone := o.current
	if gone == nil {
		return &objectv1.Result{}, nil
	}
	if err := c.discard(o, gone); err != nil {
		return nil, err
	}
	next, err := c.newestOlder(o)
	if err != nil {
		return nil, err
	}
	if next != nil {
		if err := c.removeOlder(o, next); err != nil {
			return nil, err
		}
		next.older = true
	}
	return &objectv1.Result{Version: gone.Version, Replaced: objects(gone) == 1}, c.setCurrent(o, next)
}

// newestOlder returns the newest version that is not the current one, or nil.
func (c *change) newestOlder(o *object) (*stored, error) {
	if !o.current.older {
		return nil, nil
	}
	var next *stored
	prefix := objectKey(tableOlder, o.bucket.uid, o.key, 0)
	err := scan(c, prefix, after(prefix), func(_, row []byte) (bool, error) {
		next = new(stored)
		return false, next.decode(row)
	})
	return next, err
}

// retag replaces the tags of a version.
func (c *change) retag(op *objectv1.Retag) (*objectv1.Result, error) {
	o, err := c.object(op.GetTarget(), op.GetKey())
	if err != nil {
		return nil, err
	}
	s, missing := o.current, RefusedNoKey
	if len(op.GetVersion()) > 0 {
		missing = RefusedNoVersion
		if s, err = c.find(o, string(op.GetVersion())); err != nil {
			return nil, err
		}
	}
	if objects(s) == 0 {
		return nil, refuse(missing, "%s", o.key)
	}
	s.Tags = op.GetTags()
	result := &objectv1.Result{Version: s.Version}
	if s == o.current {
		return result, c.setCurrent(o, s)
	}
	return result, c.setOlder(o, s)
}
