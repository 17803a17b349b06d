package server

import (
	"context"
	"iter"
	"maps"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/notfound"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/suggest"
)

// newCollection returns the collection of a kind without special rules: its objects are found by name, shown as they
// are stored, and stored as their author gives them. A kind that differs replaces fields of the result.
func newCollection[T object](s *Server, kind state.Kind) *collection[T] {
	declared, known := api.KindOf(strings.ReplaceAll(string(kind), "_", ""))
	if !known {
		panic("the contract declares no kind " + string(kind))
	}
	c := &collection[T]{
		Server: s, kind: kind, declared: declared,
		find: func(snap *state.Snapshot, namespace, name string) T {
			return state.ByName[T](snap, kind, namespace, name)
		},
		get: func(snap *state.Snapshot, uid string) T { return state.ByUID[T](snap, kind, uid) },
		all: func(snap *state.Snapshot, namespace, after string) iter.Seq[T] {
			return state.ListByName[T](snap, kind, namespace, after)
		},
		cursor:    byPath[T],
		normalize: func(T) {},
		summary:   func(T) string { return "" },
		present:   func(_ *state.Snapshot, stored T) T { return stored },
	}
	c.prepare, c.remove, c.missing, c.exists = c.preparePlain, c.removePlain, c.missingPlain, c.existsAlready
	c.followed = followed[T]{key: uidOf[T], find: c.get, touched: touchedObjects[T]}
	return c
}

// touchedObjects are the uids of the changed objects of one kind.
func touchedObjects[T object](_ *state.Snapshot, changes []state.Change) map[string]bool {
	touched := map[string]bool{}
	for _, c := range changes {
		for _, o := range []state.Object{c.Old, c.New} {
			if o, ok := o.(T); ok {
				touched[uidOf(o)] = true
			}
		}
	}
	return touched
}

func (c *collection[T]) removePlain(ctx context.Context, tx *transaction, old T) T {
	tx.batch.DeleteVersion(c.kind, old.GetMetadata().GetUid(), old.GetMetadata().GetVersion())
	tx.batch.Create(c.Event(ctx, old, "Deleted", ""))
	return old
}

func (c *collection[T]) missingPlain(snap *state.Snapshot, namespace, name string) error {
	near := suggest.To(name, notfound.Names(c.all(snap, namespace, "")))
	see := "cloudless " + c.declared.Noun() + " ls"
	if !c.declared.Namespaced {
		return core.Refuse(codes.NotFound, "%s %s does not exist%s", c.declared.Noun(), name, notfound.Hint(near, see))
	}
	return core.Refuse(codes.NotFound, "%s %s does not exist in namespace %s%s", c.kind, name, namespace, notfound.Hint(near, spec.Hint(namespace, see)))
}

func (c *collection[T]) existsAlready(old T) error {
	m := old.GetMetadata()
	if !c.declared.Namespaced {
		return core.Refuse(codes.AlreadyExists, "%s %s exists already", c.declared.Noun(), m.GetName())
	}
	return core.Refuse(codes.AlreadyExists, "%s %s exists already in namespace %s", c.kind, m.GetName(), m.GetNamespace())
}

// preparePlain makes a builder of the object in canonical form.
func (c *collection[T]) preparePlain(_ context.Context, given T, _ *preparation) (builder[T], error) {
	wanted := proto.CloneOf(given)
	m := proto.CloneOf(given.GetMetadata())
	if m == nil {
		m = &v1.Metadata{}
	}
	if c.declared.Namespaced {
		m.Namespace = orDefault(m.GetNamespace())
	}
	setField(wanted, "api_version", protoreflect.ValueOfString(spec.APIVersion))
	setField(wanted, "kind", protoreflect.ValueOfString(c.declared.Name))
	setField(wanted, "metadata", protoreflect.ValueOfMessage(m.ProtoReflect()))
	c.normalize(wanted)
	return &plainBuilder[T]{collection: c, object: wanted}, nil
}

// plainBuilder writes an object as its author gives it.
type plainBuilder[T object] struct {
	collection *collection[T]
	object     T
}

func (b *plainBuilder[T]) wanted() T { return b.object }

func (b *plainBuilder[T]) create(ctx context.Context, tx *transaction) (T, error) {
	made, m := proto.CloneOf(b.object), b.object.GetMetadata()
	setField(made, "metadata", protoreflect.ValueOfMessage((&v1.Metadata{
		Uid: state.NewUID(), Name: m.GetName(), Namespace: m.GetNamespace(), Labels: m.GetLabels(), Annotations: m.GetAnnotations(),
	}).ProtoReflect()))
	if status := fieldNamed(made, "status"); status != nil {
		made.ProtoReflect().Clear(status)
	}
	tx.batch.Create(made)
	tx.batch.Create(b.collection.Event(ctx, made, "Created", b.collection.summary(made)))
	return made, nil
}

func (b *plainBuilder[T]) update(ctx context.Context, tx *transaction, old T) (T, error) {
	if len(spec.DiffObject(old, b.object)) == 0 {
		return old, nil
	}
	now := proto.CloneOf(old)
	setField(now, "spec", proto.CloneOf(b.object).ProtoReflect().Get(fieldNamed(b.object, "spec")))
	now.GetMetadata().Labels = maps.Clone(b.object.GetMetadata().GetLabels())
	now.GetMetadata().Annotations = maps.Clone(b.object.GetMetadata().GetAnnotations())
	tx.batch.Update(now, old.GetMetadata().GetVersion())
	tx.batch.Create(b.collection.Event(ctx, now, "Updated", b.collection.summary(now)))
	return now, nil
}

func (b *plainBuilder[T]) describe(_ *transaction, old, _ T, change *v1.PlanChange) {
	if change.GetAction() != spec.ActionUnchanged {
		change.Fields = fieldChanges(spec.DiffObject(old, b.object))
	}
}

func fieldNamed(o proto.Message, name protoreflect.Name) protoreflect.FieldDescriptor {
	return o.ProtoReflect().Descriptor().Fields().ByName(name)
}

func setField(o proto.Message, name protoreflect.Name, value protoreflect.Value) {
	o.ProtoReflect().Set(fieldNamed(o, name), value)
}
