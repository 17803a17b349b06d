package object

import (
	"context"
	"errors"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object/names"
)

// Removal is one of the objects to delete at once.
type Removal struct {
	Key, VersionID string
	Condition      Condition
}

// Removed is what became of one of the objects to delete at once.
type Removed struct {
	Object Object
	Err    error
}

// Delete deletes a version, or the current one if versionID is empty, which with versioning only adds a delete marker.
// It returns what was deleted or the marker that was made. An object that is not there is ErrNoKey or ErrNoVersion.
func (s *Store) Delete(ctx context.Context, b Bucket, key, versionID string, c Condition) (Object, error) {
	removal := Removal{Key: key, VersionID: versionID, Condition: c}
	op, err := removal.operation(b)
	if err != nil {
		return Object{}, aboutKey(b, key, err)
	}
	result, err := s.proposeOnce(ctx, op, removal.done(b, op.GetDelete().GetMarker()))
	if err != nil {
		return Object{}, aboutKey(b, key, err)
	}
	removed := removal.outcome(b, result)
	return removed.Object, removed.Err
}

// DeleteAll deletes many objects. Each one may fail alone; the answers are in the order of the removals.
func (s *Store) DeleteAll(ctx context.Context, b Bucket, removals []Removal) ([]Removed, error) {
	answers := make([]Removed, len(removals))
	var ops []*objectv1.Operation
	var of []int
	for i, r := range removals {
		op, err := r.operation(b)
		if err != nil {
			answers[i].Err = aboutKey(b, r.Key, err)
			continue
		}
		ops, of = append(ops, op), append(of, i)
	}
	if len(ops) == 0 {
		return answers, nil
	}
	results, err := s.propose(ctx, ops...)
	if err != nil {
		return nil, aboutBucket(b, err)
	}
	for i, result := range results {
		answers[of[i]] = removals[of[i]].outcome(b, result)
	}
	return answers, nil
}

func (r Removal) operation(b Bucket) (*objectv1.Operation, error) {
	if err := check(b, r.Key); err != nil {
		return nil, ErrBadKey
	}
	id, err := versionBytes(r.VersionID)
	if err != nil {
		return nil, err
	}
	marker, err := newID()
	if err != nil {
		return nil, err
	}
	return &objectv1.Operation{What: &objectv1.Operation_Delete{Delete: &objectv1.Delete{
		Target: b.target(), Key: r.Key, Version: id, Marker: marker, Condition: condition(r.Condition),
	}}}, nil
}

// done looks whether a removal of unknown outcome has done what it should.
func (r Removal) done(b Bucket, marker []byte) func(*names.View) (*objectv1.Result, error) {
	return func(view *names.View) (*objectv1.Result, error) {
		made, err := view.Version(b.UID, r.Key, marker)
		if made != nil || err != nil {
			return &objectv1.Result{Version: made}, err
		}
		if r.VersionID == "" && b.Versioning != "" {
			return nil, nil // a marker was to be made
		}
		left, err := lookup(view, b, r.Key, r.VersionID)
		if left != nil || !errors.Is(err, ErrNoKey) && !errors.Is(err, ErrNoVersion) {
			return nil, err
		}
		id, _ := versionBytes(r.VersionID) // the operation has it
		null := r.VersionID == "" || r.VersionID == nullVersion
		return &objectv1.Result{Version: &objectv1.Version{Id: id, Null: null}}, nil
	}
}

func (r Removal) outcome(b Bucket, result *objectv1.Result) Removed {
	err := refusal(result, 0)
	if err == nil && result.GetVersion() == nil && r.VersionID == "" {
		err = ErrNoKey
	}
	if err != nil {
		return Removed{Err: aboutKey(b, r.Key, err)}
	}
	return Removed{Object: objectOf(r.Key, result.GetVersion())}
}

// SetTags replaces the tags of a version. Head returns them.
func (s *Store) SetTags(ctx context.Context, b Bucket, key, versionID string, tags map[string]string) error {
	id, err := versionBytes(versionID)
	if err != nil {
		return aboutKey(b, key, err)
	}
	result, err := s.proposeOne(ctx, &objectv1.Operation{What: &objectv1.Operation_Retag{Retag: &objectv1.Retag{
		Target: b.target(), Key: key, Version: id, Tags: tags,
	}}})
	if err == nil {
		err = refusal(result, 0)
	}
	if err != nil {
		return aboutKey(b, key, err)
	}
	return nil
}

// CloseBucket makes sure that an empty bucket stays empty: nothing can be put into it again. It is ErrNotEmpty if the
// bucket holds versions or uploads.
func (s *Store) CloseBucket(ctx context.Context, b Bucket) error {
	result, err := s.proposeOne(ctx, &objectv1.Operation{What: &objectv1.Operation_CloseBucket{
		CloseBucket: &objectv1.CloseBucket{Target: b.target()},
	}})
	if err == nil {
		err = refusal(result, 0)
	}
	if err != nil {
		return aboutBucket(b, err)
	}
	return nil
}
