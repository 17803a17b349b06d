package spec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// FieldChange is one field that differs, with its values as in a file. A missing value is empty.
type FieldChange struct {
	Field    string
	Old, New string
}

// Equal reports whether two specs mean the same, however they are written.
func Equal(a, b *v1.WorkloadSpec) bool {
	return proto.Equal(inMeaning(a), inMeaning(b))
}

// inMeaning is a spec in canonical form, with an explicit image tag. The canonical form alone keeps the name as its
// author wrote it.
func inMeaning(s *v1.WorkloadSpec) *v1.WorkloadSpec {
	c := Normalized(s)
	c.Image = tagged(c.GetImage())
	return c
}

// SameImage reports whether two names of an image mean the same tag or digest.
func SameImage(a, b string) bool { return tagged(a) == tagged(b) }

// tagged adds the default tag to a name without one.
func tagged(image string) string {
	last := image[strings.LastIndex(image, "/")+1:]
	if last == "" || strings.ContainsAny(last, ":@") {
		return image
	}
	return image + ":latest"
}

// ReplacesNone reports whether going from one spec to another replaces no replica: they differ only in the number of
// replicas, a job's parallelism, the priority, the weights of placement, minAvailable, lostAfter, dependsOn,
// update, autoscale, egress and the limit of the bandwidth.
func ReplacesNone(a, b *v1.WorkloadSpec) bool {
	a, b = inMeaning(a), inMeaning(b)
	a.Replicas, b.Replicas = nil, nil
	a.MinAvailable, b.MinAvailable = 0, 0
	a.Priority, b.Priority = nil, nil
	a.Update, b.Update = nil, nil
	a.LostAfter, b.LostAfter = "", ""
	a.DependsOn, b.DependsOn = nil, nil
	a.Autoscale, b.Autoscale = nil, nil
	a.Egress, b.Egress = nil, nil
	a.Resources, b.Resources = withBandwidthLimit(a.Resources, ""), withBandwidthLimit(b.Resources, "")
	a.Placement, b.Placement = withWeights(a.Placement, nil), withWeights(b.Placement, nil)
	if a.Kind == KindJob && b.Kind == KindJob {
		a.Job.Parallelism, b.Job.Parallelism = nil, nil
	}
	return proto.Equal(a, b)
}

// RolledBack is an earlier spec of a workload, with the current values of everything that makes no revision, as far as
// they suit the earlier spec.
func RolledBack(now, earlier *v1.WorkloadSpec) *v1.WorkloadSpec {
	now, back := proto.CloneOf(now), proto.CloneOf(earlier)
	back.Replicas, back.MinAvailable, back.Priority = now.Replicas, now.MinAvailable, now.Priority
	back.Update, back.LostAfter, back.DependsOn, back.Autoscale = now.Update, now.LostAfter, now.DependsOn, now.Autoscale
	back.Egress, back.Resources = now.GetEgress(), withBandwidthLimit(back.Resources, now.GetResources().GetLimits().GetBandwidth())
	back.Placement = withWeights(back.Placement, now.GetPlacement().GetWeights())
	if now.GetKind() == KindJob && back.GetKind() == KindJob && back.Job != nil {
		back.Job.Parallelism = now.GetJob().Parallelism
	}
	endsByItself := back.GetRestart().GetPolicy() != "" && back.GetRestart().GetPolicy() != defaultPolicy
	if endsByItself {
		back.Autoscale = nil
	}
	switch strategy := back.GetUpdate().GetStrategy(); {
	case back.GetSingleton():
		back.MinAvailable, back.Autoscale = 0, nil
		if back.Replicas != nil {
			back.Replicas = proto.Int32(min(1, back.GetReplicas()))
		}
		if strategy != "" && strategy != StrategyRecreate {
			back.Update = nil
		}
	case (strategy == StrategyBlueGreen || strategy == StrategyCanary) && endsByItself:
		back.Update = nil
	}
	return back
}

// ForJob is the spec of a job that a workload creates, with the current values of what makes no revision and concerns
// jobs. It changes its last argument.
func ForJob(owner, job *v1.WorkloadSpec) *v1.WorkloadSpec {
	job.Priority, job.LostAfter, job.Egress = owner.Priority, owner.GetLostAfter(), owner.GetEgress()
	job.Resources = withBandwidthLimit(job.GetResources(), owner.GetResources().GetLimits().GetBandwidth())
	return job
}

// withBandwidthLimit is resources with another limit of the bandwidth, in canonical form. It changes its argument.
func withBandwidthLimit(r *v1.Resources, limit string) *v1.Resources {
	if r == nil {
		r = &v1.Resources{}
	}
	if r.Limits == nil {
		r.Limits = &v1.ResourceAmounts{}
	}
	r.Limits.Bandwidth = limit
	return normalResources(r)
}

// withWeights is a placement with other weights, in canonical form. It changes its argument.
func withWeights(p *v1.Placement, weights *v1.ScoreWeights) *v1.Placement {
	if p == nil {
		p = &v1.Placement{}
	}
	p.Weights = weights
	return normalPlacement(p)
}

// ReturnTo makes an existing revision the current one of a workload, which it changes in place. Replicas that still run
// that revision are current again.
func ReturnTo(w *v1.Workload, r *v1.Revision) {
	w.Spec = RolledBack(w.GetSpec(), r.GetSpec().GetWorkload())
	ForgetScale(w)
	w.Status.LastRevision = max(w.GetStatus().GetLastRevision(), w.GetStatus().GetRevision())
	w.Status.Revision, w.Status.RevisionUid = r.GetSpec().GetNumber(), r.GetMetadata().GetUid()
}

// Diff lists the fields in which two specs differ in meaning: in the order of the API, map entries by key. It is empty
// exactly if they are Equal.
func Diff(a, b *v1.WorkloadSpec) []FieldChange {
	var d differ
	d.message("spec", inMeaning(a).ProtoReflect(), inMeaning(b).ProtoReflect())
	return d.changes
}

// DiffWorkload is Diff for everything that a workload's author writes, labels and annotations included.
func DiffWorkload(a, b *v1.Workload) []FieldChange {
	var d differ
	d.authored(a.GetMetadata(), b.GetMetadata())
	return append(d.changes, Diff(a.GetSpec(), b.GetSpec())...)
}

// DiffObject lists the fields in which two objects of one kind differ that their author gives: labels, annotations and
// spec. The objects must be in canonical form. Either may be nil.
func DiffObject[T authored](a, b T) []FieldChange {
	var d differ
	d.authored(a.GetMetadata(), b.GetMetadata())
	f := b.ProtoReflect().Descriptor().Fields().ByName("spec")
	d.message("spec", a.ProtoReflect().Get(f).Message(), b.ProtoReflect().Get(f).Message())
	return d.changes
}

// authored is an object with metadata and a spec.
type authored interface {
	proto.Message
	GetMetadata() *v1.Metadata
}

// Given lists the fields that the author of a workload has set, in canonical form, as changes from nothing. It omits
// defaults.
func Given(w *v1.Workload) []FieldChange {
	none := &v1.WorkloadSpec{}
	var written, normal differ
	written.message("spec", none.ProtoReflect(), w.GetSpec().ProtoReflect())
	normal.message("spec", none.ProtoReflect(), Normalized(w.GetSpec()).ProtoReflect())
	set := map[string]bool{}
	for _, c := range written.changes {
		set[c.Field] = true
	}
	var d differ
	d.authored(nil, w.GetMetadata())
	for _, c := range normal.changes {
		if set[c.Field] {
			d.changes = append(d.changes, c)
		}
	}
	return d.changes
}

type differ struct {
	changes []FieldChange
	// wholeLists compares a list of values as one value.
	wholeLists bool
}

// authored compares the part of an object's metadata that its author writes.
func (d *differ) authored(a, b *v1.Metadata) {
	fields := a.ProtoReflect().Descriptor().Fields()
	for _, name := range []protoreflect.Name{"labels", "annotations"} {
		f := fields.ByName(name)
		d.mapping(fieldPath("metadata", f), f.MapValue(), a.ProtoReflect().Get(f).Map(), b.ProtoReflect().Get(f).Map())
	}
}

func (d *differ) message(path string, a, b protoreflect.Message) {
	fields := a.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		at := fieldPath(path, f)
		switch {
		case f.IsList() && f.Message() == nil && d.wholeLists:
			if old, now := listText(a.Get(f).List()), listText(b.Get(f).List()); old != now {
				d.changes = append(d.changes, FieldChange{Field: at, Old: old, New: now})
			}
		case f.IsList():
			d.list(at, f, a.Get(f).List(), b.Get(f).List())
		case f.IsMap():
			d.mapping(at, f.MapValue(), a.Get(f).Map(), b.Get(f).Map())
		default:
			d.value(at, f, present(a, f), present(b, f))
		}
	}
}

func (d *differ) list(path string, f protoreflect.FieldDescriptor, a, b protoreflect.List) {
	for i := range max(a.Len(), b.Len()) {
		var old, now protoreflect.Value
		if i < a.Len() {
			old = a.Get(i)
		}
		if i < b.Len() {
			now = b.Get(i)
		}
		d.value(indexPath(path, i), f, old, now)
	}
}

func (d *differ) mapping(path string, f protoreflect.FieldDescriptor, a, b protoreflect.Map) {
	keys := map[string]protoreflect.MapKey{}
	for _, m := range []protoreflect.Map{a, b} {
		m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
			keys[k.String()] = k
			return true
		})
	}
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		d.value(entryPath(path, name), f, a.Get(keys[name]), b.Get(keys[name]))
	}
}

// value compares two values of a field. Either may be missing.
func (d *differ) value(path string, f protoreflect.FieldDescriptor, a, b protoreflect.Value) {
	switch {
	case !a.IsValid() && !b.IsValid():
	case f.Message() == nil:
		if a.IsValid() != b.IsValid() || !a.Equal(b) {
			d.changes = append(d.changes, FieldChange{Field: path, Old: text(a), New: text(b)})
		}
	case a.IsValid() && b.IsValid():
		d.message(path, a.Message(), b.Message())
	default:
		d.appeared(path, a, b)
	}
}

// appeared compares a message with none. Even an empty message differs from none, for instance as an entry of a list.
func (d *differ) appeared(path string, a, b protoreflect.Value) {
	before := len(d.changes)
	if a.IsValid() {
		d.message(path, a.Message(), a.Message().Type().Zero())
	} else {
		d.message(path, b.Message().Type().Zero(), b.Message())
	}
	if len(d.changes) > before {
		return
	}
	change := FieldChange{Field: path, New: "{}"}
	if a.IsValid() {
		change.Old, change.New = change.New, change.Old
	}
	d.changes = append(d.changes, change)
}

// present returns the value of a field, invalid if it is not set.
func present(m protoreflect.Message, f protoreflect.FieldDescriptor) protoreflect.Value {
	if !m.Has(f) {
		return protoreflect.Value{}
	}
	return m.Get(f)
}

// text is a value as in a file, where an empty one needs quotes.
func text(v protoreflect.Value) string {
	if !v.IsValid() {
		return ""
	}
	if s := fmt.Sprint(v.Interface()); s != "" {
		return s
	}
	return `""`
}

// entryPath is the readable path of a map entry: quoted only if the key is not one word.
func entryPath(parent, key string) string {
	if plainKey().MatchString(key) {
		return parent + "[" + key + "]"
	}
	return keyPath(parent, key)
}

var plainKey = lazyRegexp(`^[A-Za-z0-9_./-]+$`)
