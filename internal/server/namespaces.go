package server

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/suggest"
)

// namespaceService is the NamespaceService.
//
// A namespace is there from its first workload on, as a word in the metadata of
// workloads. An object is stored only for one that somebody has made, above all
// to give it a quota. Quotas are held where replicas are placed, see
// control/replicas/quota.go.
type namespaceService struct {
	v1.UnsafeNamespaceServiceServer
	*Server
}

func (s *namespaceService) CreateNamespace(ctx context.Context, request *v1.CreateNamespaceRequest) (*v1.Namespace, error) {
	receipt, err := newReceipt(ctx, v1.NamespaceService_CreateNamespace_FullMethodName, request.GetIdempotencyKey(), request)
	if err != nil {
		return nil, err
	}
	wanted := acceptNamespace(request.GetNamespace())
	return s.change(ctx, func(snap *state.Snapshot, b *state.Batch) (*v1.Namespace, error) {
		if done, err := receipt.find(snap); done != nil || err != nil {
			return repeatedNamespace(snap, done.GetObjectUid()), err
		}
		name := wanted.GetMetadata().GetName()
		if snap.NamespaceByName(name) != nil {
			return nil, refuse(codes.AlreadyExists, "namespace %s exists already; change it with: cloudless namespace set %s", name, name)
		}
		n := s.createNamespace(ctx, b, wanted)
		receipt.keep(b, n.GetMetadata().GetUid(), "")
		return n, nil
	})
}

func (s *namespaceService) ApplyNamespace(ctx context.Context, request *v1.ApplyNamespaceRequest) (*v1.ApplyNamespaceResponse, error) {
	receipt, err := newReceipt(ctx, v1.NamespaceService_ApplyNamespace_FullMethodName, request.GetIdempotencyKey(), request)
	if err != nil {
		return nil, err
	}
	wanted := acceptNamespace(request.GetNamespace())
	var result string
	n, err := s.change(ctx, func(snap *state.Snapshot, b *state.Batch) (*v1.Namespace, error) {
		if done, err := receipt.find(snap); done != nil || err != nil {
			result = done.GetMetadata().GetAnnotations()[resultOf]
			return repeatedNamespace(snap, done.GetObjectUid()), err
		}
		n, action, err := s.applyNamespace(ctx, snap, b, wanted)
		result = map[string]string{actionCreate: "created", actionUpdate: "updated", actionUnchanged: "unchanged"}[action]
		if err == nil && action != actionUnchanged {
			receipt.keep(b, n.GetMetadata().GetUid(), result)
		}
		return n, err
	})
	if err != nil {
		return nil, err
	}
	return &v1.ApplyNamespaceResponse{Namespace: n, Result: result}, nil
}

func (s *namespaceService) UpdateNamespace(ctx context.Context, request *v1.UpdateNamespaceRequest) (*v1.Namespace, error) {
	wanted := acceptNamespace(request.GetNamespace())
	name, version := wanted.GetMetadata().GetName(), wanted.GetMetadata().GetVersion()
	if version == 0 {
		return nil, &spec.Error{Violations: []spec.Violation{{
			Field: "metadata.version", Message: "is missing: an update names the version it was made from; read the namespace first, or use apply",
		}}}
	}
	return s.change(ctx, func(snap *state.Snapshot, b *state.Batch) (*v1.Namespace, error) {
		old := snap.NamespaceByName(name)
		if old == nil {
			return nil, missingNamespace(snap, name)
		}
		if err := sameNamespaceVersion(old, version); err != nil {
			return nil, err
		}
		n, _ := s.updateNamespace(ctx, b, old, wanted)
		return n, nil
	})
}

func (s *namespaceService) DeleteNamespace(ctx context.Context, request *v1.DeleteNamespaceRequest) (*v1.Namespace, error) {
	var removed *v1.Namespace
	snap, err := s.propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		name := request.GetName()
		removed = snap.NamespaceByName(name)
		workloads := 0
		for range snap.Workloads(name, "") {
			workloads++
		}
		switch {
		case name == spec.DefaultNamespace:
			return refuse(codes.FailedPrecondition, "namespace %s is always there; lift its quota with: cloudless namespace set %s --unlimited", name, name)
		case workloads > 0:
			return refuse(codes.FailedPrecondition, "namespace %s has %s; delete them first (cloudless workload ls -n %s), or lift its quota with: cloudless namespace set %s --unlimited",
				name, counted(workloads, "workload"), name, name)
		case removed == nil:
			return missingNamespace(snap, name)
		}
		if err := sameNamespaceVersion(removed, request.GetVersion()); err != nil {
			return err
		}
		b.DeleteVersion(state.KindNamespace, removed.GetMetadata().GetUid(), removed.GetMetadata().GetVersion())
		b.Create(s.event(ctx, removed, "Deleted", ""))
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.presentNamespace(snap, removed), nil
}

func (s *namespaceService) GetNamespace(ctx context.Context, request *v1.GetNamespaceRequest) (*v1.Namespace, error) {
	snap, err := s.consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	n := findNamespace(snap, request.GetName())
	if n == nil {
		return nil, missingNamespace(snap, request.GetName())
	}
	return s.presentNamespace(snap, n), nil
}

func (s *namespaceService) ListNamespaces(ctx context.Context, request *v1.ListNamespacesRequest) (*v1.ListNamespacesResponse, error) {
	snap, err := s.consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	selector, err := spec.ParseSelector(request.GetLabels())
	if err != nil {
		return nil, err
	}
	items, next, err := page(request.GetPage(), func(after string) iter.Seq[*v1.Namespace] {
		return func(yield func(*v1.Namespace) bool) {
			for _, name := range namespaceNames(snap) {
				if name > after && !yield(findNamespace(snap, name)) {
					return
				}
			}
		}
	}, byPath, func(n *v1.Namespace) bool { return selector.Matches(n.GetMetadata().GetLabels()) })
	if err != nil {
		return nil, err
	}
	for i, n := range items {
		items[i] = s.presentNamespace(snap, n)
	}
	return &v1.ListNamespacesResponse{Items: items, Next: next}, nil
}

func (s *namespaceService) WatchNamespaces(request *v1.WatchNamespacesRequest, stream grpc.ServerStreamingServer[v1.NamespaceChange]) error {
	selector, err := spec.ParseSelector(request.GetLabels())
	if err != nil {
		return err
	}
	out := newTracker(func(change string, n *v1.Namespace) error {
		return stream.Send(&v1.NamespaceChange{Change: change, Namespace: n})
	})
	refresh := func(snap *state.Snapshot, name string) error {
		n := findNamespace(snap, name)
		if n == nil || !selector.Matches(n.GetMetadata().GetLabels()) {
			return out.absent(name)
		}
		return out.present(name, s.presentNamespace(snap, n))
	}
	return s.watch(stream.Context(), func(snap *state.Snapshot) error {
		for _, name := range namespaceNames(snap) {
			if err := refresh(snap, name); err != nil {
				return err
			}
		}
		return stream.Send(&v1.NamespaceChange{Change: changeSynced})
	}, func(snap *state.Snapshot, changes []state.Change) error {
		for _, name := range touchedNamespaces(snap, changes) {
			if err := refresh(snap, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// touchedNamespaces are those whose shown form may differ after the changes.
func touchedNamespaces(snap *state.Snapshot, changes []state.Change) []string {
	touched := map[string]bool{}
	for _, c := range changes {
		if c.Kind == state.KindNode {
			for r := range turned(snap, c) {
				touched[r.GetMetadata().GetNamespace()] = true
			}
		}
		for _, m := range []state.Object{c.Old, c.New} {
			switch o := m.(type) {
			case *v1.Namespace:
				touched[o.GetMetadata().GetName()] = true
			case *v1.Workload, *v1.Replica:
				touched[o.GetMetadata().GetNamespace()] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(touched))
}

// acceptNamespace brings the namespace of a request, which nobody else has, into
// canonical form. The guard has found it valid.
func acceptNamespace(n *v1.Namespace) *v1.Namespace {
	spec.NormalizeNamespace(n)
	n.Status = nil
	return n
}

// applyNamespace makes a namespace, or brings the one that is there to what is
// wanted.
func (s *Server) applyNamespace(ctx context.Context, snap *state.Snapshot, b *state.Batch, wanted *v1.Namespace) (n *v1.Namespace, action string, err error) {
	m := wanted.GetMetadata()
	old := snap.NamespaceByName(m.GetName())
	if old == nil {
		if m.GetVersion() != 0 {
			return nil, "", refuse(codes.Aborted, "namespace %s was at version %d and does not exist any more; apply it without metadata.version to make it anew", m.GetName(), m.GetVersion())
		}
		return s.createNamespace(ctx, b, wanted), actionCreate, nil
	}
	if err := sameNamespaceVersion(old, m.GetVersion()); err != nil {
		return nil, "", err
	}
	n, changed := s.updateNamespace(ctx, b, old, wanted)
	if !changed {
		return n, actionUnchanged, nil
	}
	return n, actionUpdate, nil
}

func (s *Server) createNamespace(ctx context.Context, b *state.Batch, wanted *v1.Namespace) *v1.Namespace {
	n := proto.CloneOf(wanted)
	n.Metadata = &v1.Metadata{
		Uid: state.NewUID(), Name: wanted.GetMetadata().GetName(),
		Labels: n.GetMetadata().GetLabels(), Annotations: n.GetMetadata().GetAnnotations(),
	}
	b.Create(n)
	b.Create(s.event(ctx, n, "Created", "with "+quotaText(n)))
	return n
}

func (s *Server) updateNamespace(ctx context.Context, b *state.Batch, old, wanted *v1.Namespace) (*v1.Namespace, bool) {
	if len(spec.DiffNamespace(old, wanted)) == 0 {
		return old, false
	}
	n := proto.CloneOf(old)
	n.Spec = proto.CloneOf(wanted.GetSpec())
	n.Metadata.Labels = maps.Clone(wanted.GetMetadata().GetLabels())
	n.Metadata.Annotations = maps.Clone(wanted.GetMetadata().GetAnnotations())
	b.Update(n, old.GetMetadata().GetVersion())
	b.Create(s.event(ctx, n, "Updated", "now with "+quotaText(n)))
	return n, true
}

// quotaText is a quota in words.
func quotaText(n *v1.Namespace) string {
	var parts []string
	for _, c := range spec.DiffNamespace(&v1.Namespace{}, &v1.Namespace{Spec: n.GetSpec()}) {
		parts = append(parts, strings.TrimPrefix(c.Field, "spec.quota.")+" "+c.New)
	}
	if parts == nil {
		return "no quota"
	}
	return "a quota of " + strings.Join(parts, ", ")
}

// change runs f until what it proposed is accepted, and returns the namespace as
// it is shown.
func (s *namespaceService) change(ctx context.Context, f func(*state.Snapshot, *state.Batch) (*v1.Namespace, error)) (*v1.Namespace, error) {
	var n *v1.Namespace
	snap, err := s.propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		var err error
		n, err = f(snap, b)
		return err
	})
	if err != nil {
		return nil, err
	}
	if stored := snap.Namespace(n.GetMetadata().GetUid()); stored != nil {
		n = stored
	}
	return s.presentNamespace(snap, n), nil
}

// repeatedNamespace is the answer to a repeated call: the namespace as it is now,
// or only its uid when it has been deleted since.
func repeatedNamespace(snap *state.Snapshot, uid string) *v1.Namespace {
	if n := snap.Namespace(uid); n != nil {
		return n
	}
	return &v1.Namespace{Metadata: &v1.Metadata{Uid: uid}}
}

// presentNamespace is a namespace as the API shows it: with what it has now.
func (s *Server) presentNamespace(snap *state.Snapshot, n *v1.Namespace) *v1.Namespace {
	return &v1.Namespace{
		ApiVersion: n.GetApiVersion(), Kind: n.GetKind(), Metadata: n.GetMetadata(), Spec: n.GetSpec(),
		Status: s.placement.Used(snap, n),
	}
}

// findNamespace is a namespace that is there, made or not, nil for any other.
func findNamespace(snap *state.Snapshot, name string) *v1.Namespace {
	if n := snap.NamespaceByName(name); n != nil {
		return n
	}
	found := name == spec.DefaultNamespace
	for range snap.Workloads(name, "") {
		found = true
		break
	}
	if !found || name == "" {
		return nil
	}
	n := &v1.Namespace{Metadata: &v1.Metadata{Name: name}}
	spec.NormalizeNamespace(n)
	return n
}

// namespaceNames are all that are there, in their order.
func namespaceNames(snap *state.Snapshot) []string {
	all := slices.Collect(snap.NamespacesInUse())
	for n := range snap.Namespaces("") {
		all = append(all, n.GetMetadata().GetName())
	}
	all = append(all, spec.DefaultNamespace)
	slices.Sort(all)
	return slices.Compact(all)
}

func sameNamespaceVersion(n *v1.Namespace, version uint64) error {
	m := n.GetMetadata()
	if version == 0 || version == m.GetVersion() {
		return nil
	}
	return &outdated{current: n, err: &state.ConflictError{
		Kind: state.KindNamespace, Name: m.GetName(), UID: m.GetUid(), Expected: version, Actual: m.GetVersion(),
	}}
}

func missingNamespace(snap *state.Snapshot, name string) error {
	if near := suggest.To(name, slices.Values(namespaceNames(snap))); near != "" {
		return refuse(codes.NotFound, "namespace %s does not exist; did you mean %s?", name, near)
	}
	return refuse(codes.NotFound, "namespace %s does not exist; it comes with its first workload, or with: cloudless namespace create %s", name, name)
}

// counted is a phrase such as "3 replicas".
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
