package server

import (
	"context"
	"encoding/base64"
	"iter"
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// read returns one object as the API shows it.
func (c *collection[T]) read(ctx context.Context, namespace, name string) (none T, err error) {
	snap, err := c.Consensus.Read(ctx)
	if err != nil {
		return none, err
	}
	found := c.find(snap, namespace, name)
	if found == none || !c.seenBy(core.Caller(ctx), found) {
		return none, c.missing(snap, namespace, name)
	}
	return c.present(snap, found), nil
}

// selection says which objects a list or a watch includes.
type selection[T object] struct {
	namespace string // all if empty
	labels    string
	// also is a further condition; nil means none.
	also func(T) bool
}

// seenBy reports whether a caller may know of an object. Lists and watches of all namespaces leave out the others.
func (c *collection[T]) seenBy(p core.Principal, o T) bool {
	namespace := o.GetMetadata().GetNamespace()
	if c.kind == state.KindNamespace {
		namespace = o.GetMetadata().GetName()
	}
	return p.Sees(c.declared.Noun(), namespace)
}

// matcher compiles a selection, of what the caller may see.
func (c *collection[T]) matcher(ctx context.Context, s selection[T]) (func(T) bool, error) {
	selector, err := spec.ParseSelector(s.labels)
	if err != nil {
		return nil, err
	}
	p := core.Caller(ctx)
	all := p.Sees(c.declared.Noun(), "")
	return func(o T) bool {
		return (all || c.seenBy(p, o)) && (s.namespace == "" || s.namespace == o.GetMetadata().GetNamespace()) &&
			(s.also == nil || s.also(o)) && (selector.Empty() || selector.Matches(c.labelsOf(o)))
	}, nil
}

func (c *collection[T]) labelsOf(o T) map[string]string {
	if c.labels != nil {
		return c.labels(o)
	}
	return o.GetMetadata().GetLabels()
}

// list returns one page of the selected objects as the API shows them.
func (c *collection[T]) list(ctx context.Context, wanted *v1.Page, s selection[T]) (items []T, next string, err error) {
	snap, err := c.Consensus.Read(ctx)
	if err != nil {
		return nil, "", err
	}
	matches, err := c.matcher(ctx, s)
	if err != nil {
		return nil, "", err
	}
	items, next, err = page(wanted, func(after string) iter.Seq[T] { return c.all(snap, s.namespace, after) }, c.cursor, matches)
	return c.presentAll(snap, items), next, err
}

// presentAll replaces stored objects by what the API shows.
func (c *collection[T]) presentAll(snap *state.Snapshot, items []T) []T {
	for i, item := range items {
		items[i] = c.present(snap, item)
	}
	return items
}

// watch sends the selected objects as the API shows them, then changeSynced, then every
// change.
func (c *collection[T]) watch(ctx context.Context, s selection[T], send func(change string, object T) error) error {
	matches, err := c.matcher(ctx, s)
	if err != nil {
		return err
	}
	out := newTracker(send)
	refresh := func(snap *state.Snapshot, key string) error {
		found := c.followed.find(snap, key)
		if found == *new(T) || !matches(found) {
			return out.absent(key)
		}
		return out.present(key, c.present(snap, found))
	}
	return c.Server.watch(ctx, func(snap *state.Snapshot) error {
		for o := range c.all(snap, s.namespace, "") {
			if err := refresh(snap, c.followed.key(o)); err != nil {
				return err
			}
		}
		return send(changeSynced, *new(T))
	}, func(snap *state.Snapshot, changes []state.Change) error {
		for key := range c.followed.touched(snap, changes) {
			if err := refresh(snap, key); err != nil {
				return err
			}
		}
		return nil
	})
}

// followed says how a watch identifies objects. Most kinds are followed by uid.
type followed[T object] struct {
	key  func(T) string
	find func(snap *state.Snapshot, key string) T
	// touched returns the keys of all objects that may look different after some changes.
	touched func(snap *state.Snapshot, changes []state.Change) map[string]bool
}

func uidOf[T object](o T) string { return o.GetMetadata().GetUid() }

const defaultPageSize = 100

// page returns one page of all objects. The token names the last object of the previous
// page. If objects are created or deleted between two pages, no other object appears twice
// or is skipped.
func page[T state.Object](wanted *v1.Page, all func(after string) iter.Seq[T], cursor func(T) string, match func(T) bool) (items []T, next string, err error) {
	var object T
	mark := string(object.ProtoReflect().Descriptor().Name()) + ":" // the list that the token belongs to
	given, err := base64.RawURLEncoding.DecodeString(wanted.GetToken())
	after, ok := strings.CutPrefix(string(given), mark)
	if err != nil || !ok && len(given) > 0 {
		return nil, "", &spec.Error{Violations: []spec.Violation{{
			Field: "page.token", Message: "is not a token that this list has given; begin again without one",
		}}}
	}
	size := int(wanted.GetSize())
	if size == 0 {
		size = defaultPageSize
	}
	for item := range all(after) {
		if !match(item) {
			continue
		}
		if len(items) == size {
			last := cursor(items[size-1])
			return items, base64.RawURLEncoding.EncodeToString([]byte(mark + last)), nil
		}
		items = append(items, item)
	}
	return items, "", nil
}

func byPath[T state.Object](o T) string { return state.Path(o) }
