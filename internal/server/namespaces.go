package server

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/buckets"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/policies"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/suggest"
)

// namespaceService is the NamespaceService.
//
// A namespace exists from its first object on, as a word in the metadata of objects. A Namespace is stored only for one
// that a user created, mostly to give it a quota. The quota is enforced where replicas are placed, see
// control/placement/quota.go.
type namespaceService struct {
	v1.UnsafeNamespaceServiceServer
	*collection[*v1.Namespace]
}

func newNamespaces(s *Server) *collection[*v1.Namespace] {
	c := newCollection[*v1.Namespace](s, state.KindNamespace)
	c.all, c.normalize = allNamespaces, spec.NormalizeNamespace
	c.summary = func(n *v1.Namespace) string { return "with " + quotaText(n) }
	c.prepare = func(ctx context.Context, given *v1.Namespace, p *preparation) (builder[*v1.Namespace], error) {
		plain, err := c.preparePlain(ctx, given, p)
		return &namespaceBuilder{builder: plain, placement: s.placement}, err
	}
	c.present = s.presentNamespace
	c.missing = func(snap *state.Snapshot, _, name string) error { return missingNamespace(snap, name) }
	c.exists = func(old *v1.Namespace) error {
		name := old.GetMetadata().GetName()
		return core.Refuse(codes.AlreadyExists, "namespace %s exists already; change it with: cloudless namespace set %s", name, name)
	}
	c.followed = followed[*v1.Namespace]{
		key:     func(n *v1.Namespace) string { return n.GetMetadata().GetName() },
		find:    findNamespace,
		touched: touchedNamespaces,
	}
	return c
}

func (s *namespaceService) CreateNamespace(ctx context.Context, request *v1.CreateNamespaceRequest) (*v1.Namespace, error) {
	return s.create(ctx, request, request.GetNamespace())
}

func (s *namespaceService) ApplyNamespace(ctx context.Context, request *v1.ApplyNamespaceRequest) (*v1.ApplyNamespaceResponse, error) {
	n, result, err := s.apply(ctx, request, request.GetNamespace())
	if err != nil {
		return nil, err
	}
	return &v1.ApplyNamespaceResponse{Namespace: n, Result: result}, nil
}

func (s *namespaceService) UpdateNamespace(ctx context.Context, request *v1.UpdateNamespaceRequest) (*v1.Namespace, error) {
	return s.update(ctx, request.GetNamespace())
}

func (s *namespaceService) DeleteNamespace(ctx context.Context, request *v1.DeleteNamespaceRequest) (*v1.Namespace, error) {
	return s.change(ctx, func(tx *transaction) (*v1.Namespace, error) {
		if err := emptyNamespace(tx.base, request.GetName()); err != nil {
			return nil, err
		}
		return s.deleteIn(ctx, tx, "", request.GetName(), request.GetVersion())
	})
}

// emptyNamespace refuses to delete a namespace that has objects, or that always exists.
func emptyNamespace(snap *state.Snapshot, name string) error {
	if name == spec.DefaultNamespace {
		return core.Refuse(codes.FailedPrecondition, "namespace %s is always there; lift its quota with: cloudless namespace set %s --unlimited", name, name)
	}
	var content, lists []string
	for _, kind := range slices.Sorted(maps.Keys(namespacedKinds())) {
		n := 0
		for range state.ListByName[state.Object](snap, kind, name, "") {
			n++
		}
		if n > 0 {
			content, lists = append(content, spec.Count(n, namespacedKinds()[kind].Noun())), append(lists, "cloudless get "+namespacedKinds()[kind].Plural+" -n "+name)
		}
	}
	if content == nil {
		return nil
	}
	return core.Refuse(codes.FailedPrecondition, "namespace %s has %s; delete them first (%s), or lift its quota with: cloudless namespace set %s --unlimited",
		name, strings.Join(content, " and "), strings.Join(lists, ", "), name)
}

// namespacedKinds are the stored kinds whose objects users create in a namespace. Others in a namespace, such as
// replicas and events, come and go with these.
var namespacedKinds = sync.OnceValue(func() map[state.Kind]api.Kind {
	all := map[state.Kind]api.Kind{}
	for _, stored := range state.Kinds() {
		kind, declared := api.KindOf(strings.ReplaceAll(string(stored), "_", ""))
		if declared && kind.Namespaced && (kind.Create != nil || kind.Apply != nil || kind.Name == "Secret") { // a secret is set
			all[stored] = kind
		}
	}
	return all
})

func (s *namespaceService) GetNamespace(ctx context.Context, request *v1.GetNamespaceRequest) (*v1.Namespace, error) {
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	n := findNamespace(snap, request.GetName())
	if n == nil {
		return nil, missingNamespace(snap, request.GetName())
	}
	shown := s.presentNamespace(snap, n)
	s.countStorage(ctx, shown)
	return shown, nil
}

func (s *namespaceService) ListNamespaces(ctx context.Context, request *v1.ListNamespacesRequest) (*v1.ListNamespacesResponse, error) {
	items, next, err := s.list(ctx, request.GetPage(), selection[*v1.Namespace]{labels: request.GetLabels()})
	if err != nil {
		return nil, err
	}
	s.countStorage(ctx, items...)
	return &v1.ListNamespacesResponse{Items: items, Next: next}, nil
}

func (s *namespaceService) WatchNamespaces(request *v1.WatchNamespacesRequest, stream grpc.ServerStreamingServer[v1.NamespaceChange]) error {
	return s.watch(stream.Context(), selection[*v1.Namespace]{labels: request.GetLabels()}, func(change string, n *v1.Namespace) error {
		return stream.Send(&v1.NamespaceChange{Change: change, Namespace: n})
	})
}

// allNamespaces lists every namespace that exists, created or not.
func allNamespaces(snap *state.Snapshot, _, after string) iter.Seq[*v1.Namespace] {
	return func(yield func(*v1.Namespace) bool) {
		for _, name := range namespaceNames(snap) {
			if name > after && !yield(findNamespace(snap, name)) {
				return
			}
		}
	}
}

// touchedNamespaces returns the names of those that may look different after the changes.
func touchedNamespaces(snap *state.Snapshot, changes []state.Change) map[string]bool {
	touched := map[string]bool{}
	for _, c := range changes {
		if c.Kind == state.KindNode {
			for r := range affectedReplicas(snap, c) {
				touched[r.GetMetadata().GetNamespace()] = true
			}
		}
		for _, o := range []state.Object{c.Old, c.New} {
			_, namespaced := namespacedKinds()[c.Kind]
			switch {
			case o == nil:
			case c.Kind == state.KindNamespace:
				touched[o.GetMetadata().GetName()] = true
			case namespaced || c.Kind == state.KindReplica:
				touched[o.GetMetadata().GetNamespace()] = true
			}
		}
	}
	return touched
}

// namespaceBuilder also shows in a plan what exceeds the quota.
type namespaceBuilder struct {
	builder[*v1.Namespace]
	placement Placement
}

func (b *namespaceBuilder) describe(tx *transaction, old, now *v1.Namespace, change *v1.PlanChange) {
	b.builder.describe(tx, old, now, change)
	change.Over = append(b.placement.Used(tx.base, b.wanted()).GetOver(), overCeilings(tx.base, b.wanted())...)
}

// quotaText is a quota in words.
func quotaText(n *v1.Namespace) string {
	var parts []string
	for _, c := range spec.DiffObject(nil, &v1.Namespace{Spec: n.GetSpec()}) {
		parts = append(parts, strings.TrimPrefix(strings.TrimPrefix(c.Field, "spec."), "quota.")+" "+c.New)
	}
	if parts == nil {
		return "no quota"
	}
	return "a quota of " + strings.Join(parts, ", ")
}

// presentNamespace returns a namespace as the API shows it: with its current usage.
func (s *Server) presentNamespace(snap *state.Snapshot, n *v1.Namespace) *v1.Namespace {
	status := s.placement.Used(snap, n)
	status.Over = append(status.Over, overCeilings(snap, n)...)
	return &v1.Namespace{ApiVersion: n.GetApiVersion(), Kind: n.GetKind(), Metadata: n.GetMetadata(), Spec: n.GetSpec(), Status: status}
}

// countStorage adds to shown namespaces what their buckets hold. It stays empty if that is not known.
func (s *Server) countStorage(ctx context.Context, all ...*v1.Namespace) {
	if s.contents == nil || len(all) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, countPatience)
	defer cancel()
	uids := make([]string, len(all))
	for i, n := range all {
		uids[i] = buckets.NamespaceUID(n.GetMetadata().GetName())
	}
	usages, err := s.contents.NamespaceUsages(ctx, uids)
	if err != nil {
		s.Logger.DebugContext(ctx, "what buckets hold is not known now", "error", err)
		return
	}
	for i, n := range all {
		n.Status.Storage = spec.FormatBytes(usages[i])
		most := n.GetSpec().GetQuota().GetStorage()
		if limit, err := spec.ParseBytes(most); most != "" && err == nil && usages[i] > limit {
			n.Status.Over = append(n.Status.Over, fmt.Sprintf("%s storage of %s", n.Status.Storage, most))
		}
	}
}

// overCeilings says which workloads exceed the ceilings of a namespace, because these were lowered. The workloads stay as
// they are.
func overCeilings(snap *state.Snapshot, n *v1.Namespace) (over []string) {
	if s := n.GetSpec(); (s == nil || s.MaxPriority == nil) && policies.Ceiling(n, snap.Cluster()) == "" {
		return nil
	}
	for w := range snap.Workloads(n.GetMetadata().GetName(), "") {
		m := w.GetMetadata()
		if why := policies.AbovePriority(n, w); why != "" {
			over = append(over, "the priority of workload "+m.GetName()+" "+why)
		}
		if why := policies.AboveProfile(n, snap.Cluster(), w); why != "" {
			over = append(over, "the security profile of workload "+m.GetName()+" "+why)
		}
		if len(over) >= mostOver {
			return append(over, "there may be more workloads above the ceilings")
		}
	}
	return over
}

// mostOver is how many workloads above the ceilings of their namespace are named.
const mostOver = 20

// findNamespace returns a namespace that exists, created or not; nil if there is none.
func findNamespace(snap *state.Snapshot, name string) *v1.Namespace {
	if n := snap.NamespaceByName(name); n != nil {
		return n
	}
	if name == "" || name != spec.DefaultNamespace && !inUse(snap, name) {
		return nil
	}
	n := &v1.Namespace{Metadata: &v1.Metadata{Name: name}}
	spec.NormalizeNamespace(n)
	return n
}

// inUse reports whether a namespace has objects.
func inUse(snap *state.Snapshot, name string) bool {
	for kind := range namespacedKinds() {
		for range state.ListByName[state.Object](snap, kind, name, "") {
			return true
		}
	}
	return false
}

// namespaceNames returns the names of all namespaces, sorted.
func namespaceNames(snap *state.Snapshot) []string {
	var all []string
	for kind := range namespacedKinds() {
		all = slices.AppendSeq(all, snap.NamespacesInUse(kind))
	}
	for n := range snap.Namespaces("") {
		all = append(all, n.GetMetadata().GetName())
	}
	all = append(all, spec.DefaultNamespace)
	slices.Sort(all)
	return slices.Compact(all)
}

func missingNamespace(snap *state.Snapshot, name string) error {
	missing := core.Refuse(codes.NotFound, "namespace %s does not exist", name)
	if near := suggest.To(name, slices.Values(namespaceNames(snap))); near != "" {
		return core.Elsewhere("namespace", missing, "namespace %s does not exist; did you mean %s?", name, near)
	}
	return core.Refuse(codes.NotFound, "namespace %s does not exist; it comes with its first object, or with: cloudless namespace create %s", name, name)
}
