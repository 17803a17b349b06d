package server

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/notfound"
	"github.com/cloudless/cloudless/internal/services"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/suggest"
)

// maxRegistered bounds the registered endpoints of a service.
const maxRegistered = 1000

// endpointService is the EndpointService. Only registered endpoints are stored; the others follow from the state.
type endpointService struct {
	v1.UnsafeEndpointServiceServer
	*collection[*v1.Service]
}

func (s *endpointService) RegisterEndpoint(ctx context.Context, request *v1.RegisterEndpointRequest) (*v1.Endpoint, error) {
	addresses, problem := spec.EndpointAddresses(request.GetAddresses())
	if problem != "" {
		return nil, &spec.Error{Violations: []spec.Violation{{Field: "addresses", Message: problem}}}
	}
	health := &v1.EndpointStatus{State: spec.EndpointReady}
	if request.GetUnhealthy() {
		health = unhealthy("it was registered as unhealthy")
	}
	return s.changeEndpoint(ctx, request, func(tx *transaction, of *v1.Service, old *v1.Endpoint) (*v1.Endpoint, error) {
		if err := addressesOutside(tx.base, addresses); err != nil {
			return nil, err
		}
		now := &v1.Endpoint{
			ApiVersion: spec.APIVersion, Kind: spec.KindEndpoint,
			Metadata: &v1.Metadata{Uid: registeredUID(of, request.GetName()), Namespace: of.GetMetadata().GetNamespace(), Name: request.GetName()},
			Spec: &v1.EndpointSpec{
				Service: of.GetMetadata().GetName(), ServiceUid: of.GetMetadata().GetUid(), Addresses: addresses,
				Weight: max(request.GetWeight(), 1), Source: spec.SourceRegistered,
			},
			Status: health,
		}
		if old != nil {
			if proto.Equal(old.GetSpec(), now.GetSpec()) && proto.Equal(old.GetStatus(), now.GetStatus()) {
				return old, nil
			}
			tx.batch.Update(now, old.GetMetadata().GetVersion())
			return now, nil
		}
		if err := nameFree(tx.base, of, request.GetName()); err != nil {
			return nil, err
		}
		tx.batch.Create(now)
		tx.batch.Create(s.Event(ctx, of, "Registered", "endpoint "+request.GetName()))
		return now, nil
	})
}

func (s *endpointService) DeregisterEndpoint(ctx context.Context, request *v1.DeregisterEndpointRequest) (*v1.Endpoint, error) {
	return s.changeEndpoint(ctx, request, func(tx *transaction, of *v1.Service, old *v1.Endpoint) (*v1.Endpoint, error) {
		if old == nil {
			return nil, notRegistered(tx.base, of, request.GetName())
		}
		tx.batch.DeleteVersion(state.KindEndpoint, old.GetMetadata().GetUid(), old.GetMetadata().GetVersion())
		tx.batch.Create(s.Event(ctx, of, "Deregistered", "endpoint "+request.GetName()))
		return old, nil
	})
}

func (s *endpointService) SetEndpointHealth(ctx context.Context, request *v1.SetEndpointHealthRequest) (*v1.Endpoint, error) {
	health := &v1.EndpointStatus{State: spec.EndpointReady}
	if !request.GetHealthy() {
		health = unhealthy(request.GetReason())
	}
	return s.changeEndpoint(ctx, request, func(tx *transaction, of *v1.Service, old *v1.Endpoint) (*v1.Endpoint, error) {
		if old == nil {
			return nil, notRegistered(tx.base, of, request.GetName())
		}
		if proto.Equal(old.GetStatus(), health) {
			return old, nil
		}
		now := proto.CloneOf(old)
		now.Status = proto.CloneOf(health)
		tx.batch.Update(now, old.GetMetadata().GetVersion())
		return now, nil
	})
}

func unhealthy(reason string) *v1.EndpointStatus {
	if reason == "" {
		reason = "it was set to unhealthy"
	}
	return &v1.EndpointStatus{State: spec.EndpointUnready, Reason: reason}
}

// registeredUID makes an endpoint unique in its service by its name.
func registeredUID(of *v1.Service, name string) string { return of.GetMetadata().GetUid() + "/" + name }

// endpointRequest names a registered endpoint.
type endpointRequest interface {
	GetNamespace() string
	GetService() string
	GetName() string
}

// changeEndpoint lets f change a registered endpoint, which is nil if there is none, and returns it as the API shows it.
func (s *endpointService) changeEndpoint(ctx context.Context, request endpointRequest, f func(*transaction, *v1.Service, *v1.Endpoint) (*v1.Endpoint, error)) (*v1.Endpoint, error) {
	var now *v1.Endpoint
	snap, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) (err error) {
		of := s.find(snap, orDefault(request.GetNamespace()), request.GetService())
		if of == nil {
			return s.missing(snap, orDefault(request.GetNamespace()), request.GetService())
		}
		if now, err = f(&transaction{base: snap, batch: b}, of, snap.Endpoint(registeredUID(of, request.GetName()))); err == nil && b.Len() > 0 {
			b.Check(state.KindService, of.GetMetadata().GetUid(), of.GetMetadata().GetVersion())
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, e := range services.Endpoints(snap, snap.Service(now.GetSpec().GetServiceUid())) {
		if e.GetMetadata().GetUid() == now.GetMetadata().GetUid() {
			return e, nil
		}
	}
	return now, nil
}

// nameFree refuses the name of another endpoint of the service, and too many endpoints.
func nameFree(snap *state.Snapshot, of *v1.Service, name string) error {
	registered := 0
	for _, e := range services.Endpoints(snap, of) {
		if e.GetMetadata().GetName() == name {
			return core.Refuse(codes.AlreadyExists, "service %s has an endpoint %s already, which is not a registered one (%s): choose another name",
				of.GetMetadata().GetName(), name, e.GetSpec().GetSource())
		}
		if e.GetSpec().GetSource() == spec.SourceRegistered {
			registered++
		}
	}
	if registered >= maxRegistered {
		return core.Refuse(codes.ResourceExhausted, "service %s has %d registered endpoints, and no more are allowed: deregister some", of.GetMetadata().GetName(), registered)
	}
	return nil
}

// notRegistered refuses to change an endpoint that is not registered.
func notRegistered(snap *state.Snapshot, of *v1.Service, name string) error {
	endpoints := services.Endpoints(snap, of)
	service := of.GetMetadata().GetName()
	for _, e := range endpoints {
		switch {
		case e.GetMetadata().GetName() != name:
		case e.GetSpec().GetSource() == spec.SourceReplica:
			return core.Refuse(codes.FailedPrecondition, "endpoint %s is a replica of workload %s: its health follows from its program, and it leaves when the replica is stopped", name, e.GetSpec().GetWorkload())
		default:
			return core.Refuse(codes.FailedPrecondition, "endpoint %s is part of the spec of service %s: change spec.external there", name, service)
		}
	}
	near := suggest.To(name, func(yield func(string) bool) {
		for _, e := range endpoints {
			if e.GetSpec().GetSource() == spec.SourceRegistered && !yield(e.GetMetadata().GetName()) {
				return
			}
		}
	})
	see := spec.Hint(of.GetMetadata().GetNamespace(), "cloudless endpoint ls "+service)
	return core.Refuse(codes.NotFound, "endpoint %s is not registered with service %s%s", name, service, notfound.Hint(near, see))
}

// addressesOutside refuses addresses of an endpoint that belong to the cluster itself. Connections to the address of a
// service would go in circles, and the address of a replica soon belongs to another one.
func addressesOutside(snap *state.Snapshot, addresses []string) error {
	services4, services6 := spec.ServiceRanges(snap.Cluster().GetSpec())
	nodes := rangesOfNodes(snap)
	for _, text := range addresses {
		a, err := netip.ParseAddr(text)
		switch {
		case err != nil: // validation refuses it
		case services4.Contains(a) || services6.Contains(a) || snap.ServiceAt(text) != nil:
			return core.Refuse(codes.InvalidArgument, "%s is an address of the services of this cluster and cannot be an endpoint: give the address of a machine", a)
		case within(a, nodes):
			return core.Refuse(codes.InvalidArgument, "%s is in the range of this cluster's replicas and cannot be an endpoint: choose workloads with spec.selector, or give the address of a machine outside of the cluster's network", a)
		}
	}
	return nil
}

// rangesOfNodes are the ranges of replicas, and subnets that are outside of them because the range was another one.
func rangesOfNodes(snap *state.Snapshot) []netip.Prefix {
	nodes := subnetsOf(snap)
	for _, text := range []string{snap.Cluster().GetSpec().GetRangeV4(), snap.Cluster().GetSpec().GetRangeV6()} {
		if p, err := netip.ParsePrefix(text); err == nil {
			nodes = append(nodes, p)
		}
	}
	return nodes
}

// ofCluster reports whether an address is in a range of the cluster's own network.
func ofCluster(snap *state.Snapshot, a netip.Addr) bool {
	services4, services6 := spec.ServiceRanges(snap.Cluster().GetSpec())
	return services4.Contains(a) || services6.Contains(a) || within(a, rangesOfNodes(snap))
}

// externalOutside refuses a service whose external endpoints have addresses of the cluster itself.
func externalOutside(snap *state.Snapshot, s *v1.Service) error {
	for _, e := range s.GetSpec().GetExternal() {
		if err := addressesOutside(snap, e.GetAddresses()); err != nil {
			return fmt.Errorf("spec.external %s: %w", e.GetName(), err)
		}
	}
	return nil
}

func (s *endpointService) ListEndpoints(ctx context.Context, request *v1.ListEndpointsRequest) (*v1.ListEndpointsResponse, error) {
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	matches, err := s.endpointMatcher(ctx, snap, request.GetSelection(), request.GetService())
	if err != nil {
		return nil, err
	}
	items, next, err := page(request.GetPage(), func(after string) iter.Seq[*v1.Endpoint] {
		return allEndpoints(snap, matches, after)
	}, endpointCursor, func(*v1.Endpoint) bool { return true })
	if err != nil {
		return nil, err
	}
	return &v1.ListEndpointsResponse{Items: items, Next: next}, nil
}

// endpointMatcher says which services are selected: one by name, or those of a selection. A named service must exist.
func (s *endpointService) endpointMatcher(ctx context.Context, snap *state.Snapshot, selected *v1.Selection, service string) (func(*v1.Service) bool, error) {
	namespace := selected.GetNamespace()
	if service != "" {
		namespace = orDefault(namespace)
		if s.find(snap, namespace, service) == nil {
			return nil, s.missing(snap, namespace, service)
		}
	}
	sees := core.Caller(ctx)
	matches, err := s.matcher(core.WithPrincipal(ctx, core.Principal{}), selection[*v1.Service]{
		namespace: namespace, labels: selected.GetLabels(),
		also: func(o *v1.Service) bool { return service == "" || service == o.GetMetadata().GetName() },
	})
	return func(o *v1.Service) bool {
		return sees.Sees("endpoint", o.GetMetadata().GetNamespace()) && matches(o)
	}, err
}

// allEndpoints yields the endpoints of the matching services by namespace, service and name, from the first one after a
// cursor on.
func allEndpoints(snap *state.Snapshot, matches func(*v1.Service) bool, after string) iter.Seq[*v1.Endpoint] {
	return func(yield func(*v1.Endpoint) bool) {
		for s := range snap.Services("", "") {
			if m := s.GetMetadata(); !matches(s) || endpointKey(m.GetNamespace(), m.GetName(), "\xff") < after {
				continue
			}
			endpoints := services.Endpoints(snap, s)
			slices.SortFunc(endpoints, func(a, b *v1.Endpoint) int { return strings.Compare(endpointCursor(a), endpointCursor(b)) })
			for _, e := range endpoints {
				if endpointCursor(e) > after && !yield(e) {
					return
				}
			}
		}
	}
}

// endpointCursor names the position of an endpoint in the list of all.
func endpointCursor(e *v1.Endpoint) string {
	return endpointKey(e.GetMetadata().GetNamespace(), e.GetSpec().GetService(), e.GetMetadata().GetName())
}

func endpointKey(namespace, service, name string) string {
	return namespace + "\x00" + service + "\x00" + name
}

func (s *endpointService) WatchEndpoints(request *v1.WatchEndpointsRequest, stream grpc.ServerStreamingServer[v1.EndpointChange]) error {
	var matches func(*v1.Service) bool
	out := newTracker(func(change string, e *v1.Endpoint) error {
		return stream.Send(&v1.EndpointChange{Change: change, Endpoint: e})
	})
	// sent are the keys of the endpoints of each service that the watcher knows.
	sent := map[string]map[string]bool{}
	refresh := func(snap *state.Snapshot, uid string) error {
		now := map[string]bool{}
		if of := snap.Service(uid); of != nil && matches(of) {
			for _, e := range services.Endpoints(snap, of) {
				now[endpointCursor(e)] = true
				if err := out.present(endpointCursor(e), e); err != nil {
					return err
				}
			}
		}
		for key := range sent[uid] {
			if !now[key] {
				if err := out.absent(key); err != nil {
					return err
				}
			}
		}
		sent[uid] = now
		return nil
	}
	return s.Server.watch(stream.Context(), func(snap *state.Snapshot) (err error) {
		if matches, err = s.endpointMatcher(stream.Context(), snap, request.GetSelection(), request.GetService()); err != nil {
			return err
		}
		for of := range snap.Services("", "") {
			if err := refresh(snap, of.GetMetadata().GetUid()); err != nil {
				return err
			}
		}
		return stream.Send(&v1.EndpointChange{Change: changeSynced})
	}, func(snap *state.Snapshot, changes []state.Change) error {
		for uid := range services.Affected(snap, changes) {
			if err := refresh(snap, uid); err != nil {
				return err
			}
		}
		return nil
	})
}
