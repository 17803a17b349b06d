package server

import (
	"context"
	"iter"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/images"
	"github.com/cloudless/cloudless/internal/server/policies"
	"github.com/cloudless/cloudless/internal/services"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// object is a stored object of one kind.
type object interface {
	comparable
	state.Object
}

// collection holds all objects of one kind: it reads, lists and watches them, and all requests and plans write them
// through it. A kind declares what is special about it in the fields.
type collection[T object] struct {
	*Server
	kind state.Kind
	// declared is the declaration of the kind in its .proto file.
	declared api.Kind

	// find returns the object with a name; nil if there is none.
	find func(snap *state.Snapshot, namespace, name string) T
	// get returns the object with a uid; nil if there is none.
	get func(snap *state.Snapshot, uid string) T
	// all lists the objects of a namespace by name, or of all namespaces if it is empty.
	all func(snap *state.Snapshot, namespace, after string) iter.Seq[T]
	// cursor names the position of an object in all: its path, unless the list has another order.
	cursor func(T) string
	// labels are what selectors match; nil means those in the metadata.
	labels func(T) map[string]string

	// prepare makes the builder of a wanted object. It may call other systems, such as a registry.
	prepare func(ctx context.Context, given T, p *preparation) (builder[T], error)
	// remove adds the removal of an object to a transaction.
	remove func(ctx context.Context, tx *transaction, old T) T
	// prunable reports whether a plan may prune an object, and adds to the change what the plan shows about it; nil means
	// that it may.
	prunable func(snap *state.Snapshot, old T, change *v1.PlanChange) bool
	// frozen refuses every change of an object; nil refuses none.
	frozen func(T) error
	// normalize brings a wanted object into its canonical form, and summary describes in an event what was written.
	// Only kinds without their own builder use them.
	normalize func(T)
	summary   func(T) string

	// present is an object as the API shows it. public is a stored object without its secrets; nil if it has none.
	public  func(stored T) T
	present func(snap *state.Snapshot, stored T) T
	missing func(snap *state.Snapshot, namespace, name string) error
	exists  func(old T) error

	followed followed[T]
}

// builder adds the creation or the update of one wanted object to a transaction. Create, Apply, Update and plans all
// write through it. There is one for each request, and every retry of the request uses it on a newer state.
//
// Three writes do not fit, because a plan could not show what they do. CreateToken answers with a secret that is stored
// nowhere, and a repeated call gives the token another one. SetLogin takes a password, which no plan may hold.
// SetConfiguration makes a new object with every change, by its own number, and has its own dry run.
type builder[T object] interface {
	// wanted is the object as the request gives it, with its namespace.
	wanted() T
	create(ctx context.Context, tx *transaction) (T, error)
	// update returns old itself if nothing differs.
	update(ctx context.Context, tx *transaction, old T) (T, error)
	// describe adds to a change of a plan what the plan shows about it. old is nil if the object is new.
	describe(tx *transaction, old, now T, change *v1.PlanChange)
}

// preparation is shared by all objects of one request while they are prepared.
type preparation struct {
	receipt core.Receipt
	// images are the images that have been looked up. Most requests name one: a slice costs less than a map.
	images []images.Named
}

// transaction is a change of the state that is being built.
type transaction struct {
	base  *state.Snapshot
	batch *state.Batch
	// caller is on whose behalf it is built.
	caller core.Principal
	// created counts new workloads. images are those that workloads rely on.
	created int
	images  []reliedOn
	// deployments are the new ones.
	deployments []*v1.Deployment
	// addresses allocates those of services; nil until the first one.
	addresses *services.Allocator
}

// reliedOn is an image with the name that workloads use for it.
type reliedOn struct {
	from string
	images.Pinned
}

// results maps actions to the results in the answer of Apply.
var results = map[string]string{spec.ActionCreate: "created", spec.ActionUpdate: "updated", spec.ActionUnchanged: "unchanged"}

// keyedRequest is a request with an idempotency key, by which the state remembers it.
type keyedRequest interface {
	proto.Message
	GetIdempotencyKey() string
}

// create writes an object that must not exist yet.
func (c *collection[T]) create(ctx context.Context, request keyedRequest, given T) (T, error) {
	made, _, err := c.write(ctx, c.declared.Create.Name, request, given, func(tx *transaction, b builder[T]) (now T, action string, err error) {
		if old := c.stored(tx.base, b.wanted()); old != *new(T) {
			return now, "", c.exists(old)
		}
		now, err = b.create(ctx, tx)
		return now, spec.ActionCreate, err
	})
	return made, err
}

// apply creates the object, or updates the stored one.
func (c *collection[T]) apply(ctx context.Context, request keyedRequest, given T) (now T, result string, err error) {
	return c.write(ctx, c.declared.Apply.Name, request, given, func(tx *transaction, b builder[T]) (T, string, error) {
		now, action, err := c.build(ctx, tx, b)
		if err == nil && action != spec.ActionUnchanged { // the guard knows only that the caller may do one of both
			err = c.mayWrite(ctx, action, now)
		}
		return now, action, err
	})
}

// mayWrite refuses a caller that may not create, update or delete an object. In a namespaced kind, the verb counts in the
// namespace of the object.
func (c *collection[T]) mayWrite(ctx context.Context, action string, o T) error {
	m := o.GetMetadata()
	return c.Require(ctx, action, c.declared.Noun(), m.GetNamespace(), action+" "+c.declared.Noun()+" "+m.GetName())
}

// update changes an object if it still has the version that the caller has read.
func (c *collection[T]) update(ctx context.Context, given T) (now T, err error) {
	if given.GetMetadata().GetVersion() == 0 {
		return now, &spec.Error{Violations: []spec.Violation{{
			Field:   "metadata.version",
			Message: "is missing: an update names the version it was made from; read the " + string(c.kind) + " first, or use apply",
		}}}
	}
	b, err := c.prepare(ctx, given, &preparation{})
	if err != nil {
		return now, err
	}
	m := b.wanted().GetMetadata()
	return c.changeNamed(ctx, m.GetNamespace(), m.GetName(), m.GetVersion(), func(tx *transaction, old T) (T, error) {
		return b.update(ctx, tx, old)
	})
}

// build adds the creation or the update of a wanted object to a transaction.
func (c *collection[T]) build(ctx context.Context, tx *transaction, b builder[T]) (now T, action string, err error) {
	m, old := b.wanted().GetMetadata(), c.stored(tx.base, b.wanted())
	if old == *new(T) {
		if m.GetVersion() != 0 {
			return now, "", core.Refuse(codes.Aborted, "%s %s was at version %d and no longer exists; apply it without metadata.version to create it again",
				c.kind, m.GetName(), m.GetVersion())
		}
		now, err = b.create(ctx, tx)
		return now, spec.ActionCreate, err
	}
	if err := c.changeable(old, m.GetVersion()); err != nil {
		return now, "", err
	}
	if now, err = b.update(ctx, tx, old); now == old {
		return now, spec.ActionUnchanged, err
	}
	return now, spec.ActionUpdate, err
}

// write prepares an object and lets f write it, once for each idempotency key.
func (c *collection[T]) write(ctx context.Context, method string, request keyedRequest, given T, f func(*transaction, builder[T]) (T, string, error)) (shown T, result string, err error) {
	receipt, err := core.NewReceipt(ctx, method, request.GetIdempotencyKey(), request)
	if err != nil {
		return shown, "", err
	}
	b, err := c.prepare(ctx, given, &preparation{receipt: receipt})
	if err != nil {
		return shown, "", err
	}
	return c.once(ctx, receipt, func(tx *transaction) (T, string, error) { return f(tx, b) })
}

// once lets f write an object, unless an earlier call with the same key has done so: then it returns the same answer.
func (c *collection[T]) once(ctx context.Context, r core.Receipt, f func(*transaction) (T, string, error)) (shown T, result string, err error) {
	shown, err = c.change(ctx, func(tx *transaction) (T, error) {
		if done, err := r.Find(tx.base); done != nil || err != nil {
			result = done.GetMetadata().GetAnnotations()[core.ResultOf]
			return c.repeated(tx.base, done.GetObjectUid()), err
		}
		now, action, err := f(tx)
		if result = results[action]; err == nil && action != spec.ActionUnchanged {
			r.Keep(tx.batch, now.GetMetadata().GetUid(), result)
		}
		return now, err
	})
	return shown, result, err
}

// repeated is the answer to a repeated call: the object as it is now, or only its uid if it was deleted since.
func (c *collection[T]) repeated(snap *state.Snapshot, uid string) T {
	if now := c.get(snap, uid); now != *new(T) {
		return now
	}
	var none T
	gone := none.ProtoReflect().New().Interface().(T)
	setField(gone, "metadata", protoreflect.ValueOfMessage((&v1.Metadata{Uid: uid}).ProtoReflect()))
	return gone
}

// changeNamed changes one existing object. Version 0 means any.
func (c *collection[T]) changeNamed(ctx context.Context, namespace, name string, version uint64, f func(*transaction, T) (T, error)) (T, error) {
	return c.change(ctx, func(tx *transaction) (none T, err error) {
		old := c.find(tx.base, namespace, name)
		if old == none {
			return none, c.missing(tx.base, namespace, name)
		}
		if err := c.changeable(old, version); err != nil {
			return none, err
		}
		return f(tx, old)
	})
}

// delete removes an object. Version 0 means any.
func (c *collection[T]) delete(ctx context.Context, namespace, name string, version uint64) (T, error) {
	return c.change(ctx, func(tx *transaction) (T, error) { return c.deleteIn(ctx, tx, namespace, name, version) })
}

func (c *collection[T]) deleteIn(ctx context.Context, tx *transaction, namespace, name string, version uint64) (none T, err error) {
	old := c.find(tx.base, namespace, name)
	if old == none {
		return none, c.missing(tx.base, namespace, name)
	}
	if err := c.sameVersion(old, version); err != nil {
		return none, err
	}
	return c.remove(ctx, tx, old), nil
}

// change runs f until the transaction that it builds is accepted, and returns the object as the API shows it.
func (c *collection[T]) change(ctx context.Context, f func(*transaction) (T, error)) (shown T, err error) {
	var now T
	var verdict *policies.Verdict
	snap, err := c.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) (err error) {
		tx := &transaction{base: snap, batch: b, caller: core.Caller(ctx)}
		if now, err = f(tx); err != nil {
			return err
		}
		tx.relyOnImages()
		if err := c.checkNamespaces(ctx, tx); err != nil {
			return err
		}
		if err := c.checkAdmins(snap, b); err != nil {
			return err
		}
		if err := tx.checkDependencies(); err != nil {
			return err
		}
		if err := tx.checkPublishedOnce(); err != nil {
			return err
		}
		if err := tx.checkRoutes(); err != nil {
			return err
		}
		verdict = policies.Judge(ctx, c.Core, snap, b)
		verdict.Record(ctx, c.Core, b)
		return verdict.Refusal()
	})
	if err != nil {
		return shown, err
	}
	verdict.Tell(ctx)
	if stored := c.get(snap, now.GetMetadata().GetUid()); stored != *new(T) {
		now = stored
	}
	return c.present(snap, now), nil
}

func (c *collection[T]) stored(snap *state.Snapshot, wanted T) T {
	return c.find(snap, wanted.GetMetadata().GetNamespace(), wanted.GetMetadata().GetName())
}

func (c *collection[T]) changeable(old T, version uint64) error {
	if c.frozen != nil {
		if err := c.frozen(old); err != nil {
			return err
		}
	}
	return c.sameVersion(old, version)
}

// sameVersion refuses a change that was made from another version. 0 means any.
func (c *collection[T]) sameVersion(old T, version uint64) error {
	m := old.GetMetadata()
	if version == 0 || version == m.GetVersion() {
		return nil
	}
	if c.public != nil {
		old = c.public(old)
	}
	return &core.Outdated{Current: old, Err: &state.ConflictError{
		Kind: c.kind, Name: m.GetName(), UID: m.GetUid(), Expected: version, Actual: m.GetVersion(),
	}}
}
