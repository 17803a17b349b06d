package server

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/policy"
	"github.com/cloudless/cloudless/internal/roles"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/images"
	"github.com/cloudless/cloudless/internal/server/policies"
	"github.com/cloudless/cloudless/internal/services"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// workloadBuilder writes one workload.
type workloadBuilder struct {
	*Server
	given *v1.Workload
	image images.Named
}

// prepareWorkload looks up the image, which may take a while.
func (s *Server) prepareWorkload(ctx context.Context, given *v1.Workload, p *preparation) (builder[*v1.Workload], error) {
	// The spec is shared with the request: accept clones it before it changes anything.
	m := proto.CloneOf(given.GetMetadata())
	if m == nil {
		m = &v1.Metadata{}
	}
	m.Namespace = orDefault(m.GetNamespace())
	if caller := core.Caller(ctx); !caller.Can(policy.Create, string(state.KindWorkload), m.GetNamespace()) && !caller.Can(policy.Update, string(state.KindWorkload), m.GetNamespace()) {
		ctx, p = images.WithoutLookUps(ctx), &preparation{receipt: p.receipt}
	}
	image, err := p.lookUp(ctx, s.images, given.GetSpec().GetImage())
	if err != nil {
		return nil, err
	}
	given = &v1.Workload{ApiVersion: given.GetApiVersion(), Kind: given.GetKind(), Metadata: m, Spec: given.GetSpec(), Status: given.GetStatus()}
	return &workloadBuilder{Server: s, given: given, image: image}, nil
}

// lookUp returns the image with a name, which it looks up once for all workloads that use it.
func (p *preparation) lookUp(ctx context.Context, all *images.Images, from string) (images.Named, error) {
	for _, known := range p.images {
		if known.From == from {
			return known, nil
		}
	}
	found, err := all.Name(ctx, from, p.receipt)
	if err == nil {
		p.images = append(p.images, found)
	}
	return found, err
}

func (b *workloadBuilder) wanted() *v1.Workload { return b.given }

func (b *workloadBuilder) create(ctx context.Context, tx *transaction) (*v1.Workload, error) {
	wanted := b.accept(tx, nil)
	if err := checkCreate(tx.base, wanted, tx.created); err != nil {
		return nil, err
	}
	if err := b.mayRun(ctx); err != nil {
		return nil, err
	}
	image, err := b.pin(ctx, tx)
	if err != nil {
		return nil, err
	}
	w := &v1.Workload{
		ApiVersion: wanted.GetApiVersion(),
		Kind:       wanted.GetKind(),
		Metadata: &v1.Metadata{
			Uid:         state.NewUID(),
			Name:        wanted.GetMetadata().GetName(),
			Namespace:   wanted.GetMetadata().GetNamespace(),
			Labels:      wanted.GetMetadata().GetLabels(),
			Annotations: wanted.GetMetadata().GetAnnotations(),
		},
		Spec:   wanted.GetSpec(),
		Status: &v1.WorkloadStatus{Configuration: wanted.GetStatus().GetConfiguration()},
	}
	if err := filterCalls(tx.base, b.revise(tx, w, image)); err != nil {
		return nil, err
	}
	b.deploy(ctx, tx, nil, w, spec.CauseCreate)
	tx.batch.Create(w)
	tx.batch.Create(b.Event(ctx, w, "Created", fmt.Sprintf("%s of %s%s", sizeText(w.GetSpec()), w.GetSpec().GetImage(), images.PinNote(image.Image))))
	tx.created++
	return w, nil
}

// update creates a new revision only if the replicas would run something different.
func (b *workloadBuilder) update(ctx context.Context, tx *transaction, old *v1.Workload) (*v1.Workload, error) {
	wanted := b.accept(tx, old)
	if err := checkUpdate(tx.base, old, wanted); err != nil {
		return nil, err
	}
	if !spec.SameImage(old.GetSpec().GetImage(), wanted.GetSpec().GetImage()) {
		if err := b.mayRun(ctx); err != nil {
			return nil, err
		}
	}
	image, err := b.pin(ctx, tx)
	if err != nil {
		return nil, err
	}
	current := tx.base.Revision(old.GetStatus().GetRevisionUid())
	if images.Unpinned(image.Image) && spec.SameImage(old.GetSpec().GetImage(), wanted.GetSpec().GetImage()) {
		image = images.PinnedBy(current) // an unreachable registry is no reason to run another image
	}
	sameTemplate := image.Image == current.GetSpec().GetImage() && spec.ReplacesNone(old.GetSpec(), wanted.GetSpec())
	sameAll := sameTemplate && spec.Equal(old.GetSpec(), wanted.GetSpec()) &&
		maps.Equal(old.GetMetadata().GetLabels(), wanted.GetMetadata().GetLabels()) &&
		maps.Equal(old.GetMetadata().GetAnnotations(), wanted.GetMetadata().GetAnnotations())
	again := sameTemplate && failedToBegin(tx.base, old)
	if sameAll && !again {
		return old, nil
	}
	w := proto.CloneOf(old)
	w.Spec = wanted.GetSpec()
	spec.ForgetScale(w)
	w.Metadata.Labels = wanted.GetMetadata().GetLabels()
	w.Metadata.Annotations = wanted.GetMetadata().GetAnnotations()
	if !sameTemplate {
		w.Status.Configuration = wanted.GetStatus().GetConfiguration()
		revision := b.revise(tx, w, image)
		revision.Spec.Restart = current.GetSpec().GetRestart()
		if err := filterCalls(tx.base, revision); err != nil {
			return nil, err
		}
	}
	if !sameTemplate || again {
		b.deploy(ctx, tx, old, w, spec.CauseApply)
	}
	tx.batch.Update(w, old.GetMetadata().GetVersion())
	tx.batch.Create(b.Event(ctx, w, "Updated", fmt.Sprintf("now at revision %d%s", w.GetStatus().GetRevision(), images.PinNote(image.Image))))
	return w, nil
}

// failedToBegin reports whether the newest deployment of a workload failed before the first replica of its revision
// started. Applying the workload again, even unchanged, is another attempt.
func failedToBegin(snap *state.Snapshot, w *v1.Workload) bool {
	d := snap.Deployment(w.GetStatus().GetDeploymentUid())
	return spec.Waits(w, d) && !spec.DeploymentOpen(d) && spec.HasDeployments(w.GetSpec())
}

// accept returns the workload in canonical form, with the cluster's defaults where its author gives no value. Its
// status says which configuration the defaults are from.
//
// A stored workload keeps the defaults that it was created with as long as its author changes nothing: applying the
// same file again replaces nothing, even if the defaults have changed.
//
// old is nil if the workload is new. For a caller who may not update it, all given variables count as changed, whatever
// their values: who could compare them with the stored ones could guess these. Such a caller can only plan.
func (b *workloadBuilder) accept(tx *transaction, old *v1.Workload) *v1.Workload {
	snap := tx.base
	w := &v1.Workload{Metadata: b.given.GetMetadata(), Spec: proto.CloneOf(b.given.GetSpec())}
	cluster := snap.Cluster()
	defaults, number := cluster.GetSpec().GetDefaults(), cluster.GetStatus().GetConfiguration()
	if old != nil && tx.caller.IsUser() && !tx.caller.Can(api.VerbUpdate, string(state.KindWorkload), w.GetMetadata().GetNamespace()) {
		for name := range w.GetSpec().GetEnv() {
			w.Spec.Env[name] = spec.HiddenValue // which is never stored
		}
	}
	if had := old.GetStatus().GetConfiguration(); old != nil && had != number && w.GetSpec() != nil {
		earlier := snap.Configuration(had).GetSpec().GetCluster().GetDefaults()
		if spec.ReplacesNone(spec.WithDefaults(w.GetSpec(), earlier), old.GetSpec()) {
			defaults, number = earlier, had
		}
	}
	if w.Spec != nil {
		spec.FillDefaults(w.Spec, defaults)
		policies.FillFromNamespace(w.Spec, old.GetSpec(), policies.NamespaceAfter(snap, tx.batch, w.GetMetadata().GetNamespace()), cluster)
	}
	spec.Normalize(w)
	w.Status = &v1.WorkloadStatus{Configuration: number}
	return w
}

// mayRun refuses an image of the cluster's registry that the caller may not pull: a command in a replica could read it.
func (b *workloadBuilder) mayRun(ctx context.Context) error {
	name := b.image.Name
	if !name.Local() {
		return nil
	}
	namespace := roles.NamespaceOfImage(name.Repository)
	if err := b.Require(ctx, api.VerbGet, "image", namespace, "run image "+b.image.From); err != nil {
		return core.NewForbidden("%w; a role in one namespace includes the images whose names begin with it, such as %s/%s",
			err, b.given.GetMetadata().GetNamespace(), name.Repository)
	}
	return nil
}

// pin resolves the image to a digest, once for all workloads of a transaction that name it.
func (b *workloadBuilder) pin(ctx context.Context, tx *transaction) (images.Pinned, error) {
	if known, ok := tx.image(b.image.From); ok {
		return known, nil
	}
	image, err := b.images.Pin(ctx, tx.base, b.image)
	if err != nil {
		return images.Pinned{}, err
	}
	tx.images = append(tx.images, reliedOn{from: b.image.From, Pinned: image})
	return image, nil
}

// image returns the image that a name stands for, if a workload of the transaction uses it.
func (tx *transaction) image(from string) (images.Pinned, bool) {
	for _, i := range tx.images {
		if i.from == from {
			return i.Pinned, true
		}
	}
	return images.Pinned{}, false
}

// relyOnImages makes the transaction fail if its images change or are deleted before it commits.
func (tx *transaction) relyOnImages() {
	if tx.batch.Len() == 0 {
		return
	}
	for _, image := range tx.images {
		image.RelyOn(tx.batch)
	}
}

func (b *workloadBuilder) describe(tx *transaction, old, now *v1.Workload, change *v1.PlanChange) {
	image, _ := tx.image(b.image.From)
	change.Image = image.Image
	if change.GetAction() != spec.ActionUnchanged {
		n := policies.NamespaceAfter(tx.base, tx.batch, now.GetMetadata().GetNamespace())
		change.Warnings = append(publishedNowhere(tx.base, now.GetSpec()), b.placement.CountedDefaults(n, now.GetSpec())...)
	}
	if b.image.LeftOut {
		change.Warnings = append(change.Warnings, fmt.Sprintf("registry %s was not asked for the image, because you may not create workloads in namespace %s: the plan of someone who may can differ",
			b.image.Name.Registry, now.GetMetadata().GetNamespace()))
	}
	switch change.GetAction() {
	case spec.ActionCreate:
		change.Fields = fieldChanges(spec.Given(b.withClusterDefaults(tx, now)))
	case spec.ActionUpdate:
		change.Fields = fieldChanges(spec.DiffWorkload(old, now))
		before := tx.base.Revision(old.GetStatus().GetRevisionUid()).GetSpec().GetImage()
		if before != change.GetImage() && spec.SameImage(old.GetSpec().GetImage(), now.GetSpec().GetImage()) {
			// The same name now means another image.
			change.Fields = append(change.Fields, &v1.FieldChange{Path: "spec.image", Before: before, After: change.GetImage()})
		}
	}
}

// withClusterDefaults is the workload as its author gives it, with the defaults that the cluster adds.
func (b *workloadBuilder) withClusterDefaults(tx *transaction, now *v1.Workload) *v1.Workload {
	defaults := tx.base.Configuration(now.GetStatus().GetConfiguration()).GetSpec().GetCluster().GetDefaults()
	with := proto.CloneOf(b.given)
	if defaults != nil && with.Spec != nil {
		spec.FillDefaults(with.Spec, defaults)
	}
	if with.Spec != nil {
		policies.FillFromNamespace(with.Spec, nil, policies.NamespaceAfter(tx.base, tx.batch, now.GetMetadata().GetNamespace()), tx.base.Cluster())
	}
	return with
}

// The limits of the cluster's configuration. They apply to new objects and new replicas
// only: what exists already stays.

// checkCreate refuses a workload that exceeds the limits. The transaction has already
// created that many other workloads.
func checkCreate(snap *state.Snapshot, w *v1.Workload, created int) error {
	most := spec.MostWorkloads(snap.Cluster().GetSpec())
	if snap.Count(state.KindWorkload)+created >= most {
		return core.Refuse(codes.ResourceExhausted, "workload %s is one too many: the cluster allows %d; delete one, or allow more with: cloudless cluster config set limits.workloads=%d",
			w.GetMetadata().GetName(), most, most+1)
	}
	if err := checkPublished(snap, w.GetSpec()); err != nil {
		return err
	}
	return checkReplicaLimit(snap, w, spec.Size(w.GetSpec()))
}

// checkPublished refuses to publish the port of the API: clients would no longer reach the servers. It also refuses
// addresses of the cluster's own network, at which nothing outside of the cluster can connect.
func checkPublished(snap *state.Snapshot, w *v1.WorkloadSpec) error {
	for i, p := range w.GetPorts() {
		if a, err := netip.ParseAddr(p.GetPublishAddress()); err == nil && ofCluster(snap, a) {
			return &spec.Error{Violations: []spec.Violation{{
				Field:   fmt.Sprintf("spec.ports[%d].publishAddress", i),
				Message: a.String() + " is in the ranges of the cluster's own network, which is closed to other machines; give an address that the nodes have outside of it, or leave it out for all",
			}}}
		}
	}
	for server := range snap.Servers("") {
		_, taken, err := net.SplitHostPort(server.GetSpec().GetAddress())
		if err != nil {
			continue
		}
		for i, p := range w.GetPorts() {
			if fmt.Sprint(p.GetPublish()) == taken {
				return &spec.Error{Violations: []spec.Violation{{
					Field: fmt.Sprintf("spec.ports[%d].publish", i), Message: taken + " is the port of the cluster's API; choose another",
				}}}
			}
		}
	}
	return nil
}

// publishedNowhere warns of ports at addresses that no ready node has. A node may still get them.
func publishedNowhere(snap *state.Snapshot, w *v1.WorkloadSpec) (warnings []string) {
	has := map[netip.Addr]bool{}
	for node := range snap.Nodes("") {
		if node.GetStatus().GetState() != spec.NodeReady {
			continue
		}
		for _, i := range node.GetStatus().GetInterfaces() {
			for _, text := range i.GetAddresses() {
				if p, err := netip.ParsePrefix(text); err == nil {
					has[p.Addr().Unmap()] = true
				}
			}
		}
	}
	for _, p := range w.GetPorts() {
		if a, err := netip.ParseAddr(p.GetPublishAddress()); err == nil && !a.IsLoopback() && !has[a] {
			warnings = append(warnings, fmt.Sprintf("port %d is published at %s, which no ready node has, so nothing answers there until one gets it", p.GetPublish(), a))
		}
	}
	return warnings
}

// checkPublishedOnce refuses a transaction after which two workloads publish the same port. Pairs from before stay as they
// are until one of them changes its ports.
func (tx *transaction) checkPublishedOnce() error {
	for w := range tx.batch.Workloads() {
		if !publishesAnew(tx.base.Workload(w.GetMetadata().GetUid()), w) {
			continue
		}
		for other := range tx.workloads() {
			if err := publishedTwice(w, other); err != nil {
				if hidden := tx.hide("workload", other, err.Violations[0].Message); hidden != "" {
					err.Violations[0].Message = hidden
				}
				return err
			}
		}
	}
	return nil
}

// checkDependencies refuses a transaction after which a workload that it writes waits for one that does not exist, for
// what another one can never be, or for itself.
func (tx *transaction) checkDependencies() error {
	for w := range tx.batch.Workloads() {
		m, dependsOn := w.GetMetadata(), w.GetSpec().GetDependsOn()
		before := tx.base.Workload(m.GetUid()).GetSpec().GetDependsOn()
		if len(dependsOn) == 0 || maps.Equal(before, dependsOn) || m.GetDeleteTime() != nil {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(dependsOn)) {
			if words := tx.unmeetable(m.GetNamespace(), name, dependsOn[name]); words != "" {
				return &spec.Error{Violations: []spec.Violation{{Field: fmt.Sprintf("spec.dependsOn[%s]", name), Message: words + ", and workload " + m.GetName() + " would wait for it forever"}}}
			}
		}
		cycle := spec.DependencyCycle(m.GetName(), func(name string) []string {
			return slices.Sorted(maps.Keys(tx.workload(m.GetNamespace(), name).GetSpec().GetDependsOn()))
		})
		if len(cycle) > 0 {
			return &spec.Error{Violations: []spec.Violation{{
				Field: "spec.dependsOn", Message: "goes in a circle, so that none could ever start: " + strings.Join(cycle, " waits for ") + "; leave one of them out",
			}}}
		}
	}
	return nil
}

// unmeetable says why a workload can never be as another one needs it. It is empty if it can.
func (tx *transaction) unmeetable(namespace, name, need string) string {
	other := tx.workload(namespace, name)
	kind := spec.KindOf(other.GetSpec())
	switch {
	case other == nil || other.GetMetadata().GetDeleteTime() != nil:
		return fmt.Sprintf("names workload %s, which is neither in namespace %s nor applied together with it", name, namespace)
	case need == spec.DependsCompleted && kind != spec.KindJob:
		return fmt.Sprintf("must be ready: workload %s is a %s, which does not complete", name, kind)
	case need == spec.DependsReady && (kind == spec.KindJob || kind == spec.KindCron):
		return fmt.Sprintf("must not be ready: workload %s is a %s, which serves nothing", name, kind)
	}
	return ""
}

// workload is the workload with a name as the transaction leaves it.
func (tx *transaction) workload(namespace, name string) *v1.Workload {
	for w := range tx.batch.Workloads() {
		if w.GetMetadata().GetName() == name && w.GetMetadata().GetNamespace() == namespace {
			return w
		}
	}
	return tx.base.WorkloadByName(namespace, name)
}

// workloads yields all workloads as the transaction leaves them.
func (tx *transaction) workloads() iter.Seq[*v1.Workload] {
	return func(yield func(*v1.Workload) bool) {
		written := map[string]bool{}
		for w := range tx.batch.Workloads() {
			if written[w.GetMetadata().GetUid()] = true; !yield(w) {
				return
			}
		}
		for w := range tx.base.Workloads("", "") {
			if !written[w.GetMetadata().GetUid()] && !yield(w) {
				return
			}
		}
	}
}

// publishesAnew reports whether a workload publishes ports that it did not publish before. A deleted one frees its ports.
func publishesAnew(before, now *v1.Workload) bool {
	publishes := func(p *v1.Port) bool { return p.GetPublish() != 0 }
	return slices.ContainsFunc(now.GetSpec().GetPorts(), publishes) && now.GetMetadata().GetDeleteTime() == nil &&
		!slices.EqualFunc(before.GetSpec().GetPorts(), now.GetSpec().GetPorts(), func(a, b *v1.Port) bool { return proto.Equal(a, b) })
}

func publishedTwice(w, other *v1.Workload) *spec.Error {
	m := other.GetMetadata()
	if m.GetUid() == w.GetMetadata().GetUid() || m.GetDeleteTime() != nil {
		return nil
	}
	p := services.PublishedTwice(w, other)
	if p == nil {
		return nil
	}
	return &spec.Error{Violations: []spec.Violation{{
		Field: fmt.Sprintf("spec.ports[%d].publish", slices.Index(w.GetSpec().GetPorts(), p)),
		Message: fmt.Sprintf("%d/%s is published by workload %s in namespace %s already, and every node answers on such a port; choose another for workload %s",
			p.GetPublish(), p.GetProtocol(), m.GetName(), m.GetNamespace(), w.GetMetadata().GetName()),
	}}}
}

// checkReplicas refuses more replicas than a workload may have, unless the workload already
// has that many.
func checkReplicas(snap *state.Snapshot, old *v1.Workload, requested int32) error {
	if requested <= spec.Size(old.GetSpec()) {
		return nil
	}
	return checkReplicaLimit(snap, old, requested)
}

func checkReplicaLimit(snap *state.Snapshot, w *v1.Workload, requested int32) error {
	most := spec.MostReplicas(snap.Cluster().GetSpec())
	if int(requested) > most {
		return core.Refuse(codes.ResourceExhausted, "workload %s asks for %d replicas, and the cluster allows %d for one workload; ask for fewer, or allow more with: cloudless cluster config set limits.replicasPerWorkload=%d",
			w.GetMetadata().GetName(), requested, most, requested)
	}
	return nil
}
