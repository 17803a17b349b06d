package server

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/ipam"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/services"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// serviceService is the ServiceService.
//
// A service gets its addresses in the transaction that creates it. There is one object for each name: the service of a
// workload, which control/services creates, becomes the applied one and back, so that its uid and addresses stay.
type serviceService struct {
	v1.UnsafeServiceServiceServer
	*collection[*v1.Service]
}

func newServices(s *Server) *collection[*v1.Service] {
	c := newCollection[*v1.Service](s, state.KindService)
	c.normalize, c.present = spec.NormalizeService, presentService
	c.prepare = func(ctx context.Context, given *v1.Service, p *preparation) (builder[*v1.Service], error) {
		plain, err := c.preparePlain(ctx, given, p)
		return &serviceBuilder{builder: plain, Core: s.Core}, err
	}
	c.remove = s.removeService
	// The service of a workload has its labels, and goes with it.
	c.prunable = func(_ *state.Snapshot, one *v1.Service, _ *v1.PlanChange) bool { return !spec.IsImplicit(one) }
	c.followed.touched = services.Affected
	return c
}

func (s *serviceService) CreateService(ctx context.Context, request *v1.CreateServiceRequest) (*v1.Service, error) {
	made, _, err := s.write(ctx, s.declared.Create.Name, request, request.GetService(), func(tx *transaction, b builder[*v1.Service]) (*v1.Service, string, error) {
		if old := s.stored(tx.base, b.wanted()); old != nil && !spec.IsImplicit(old) {
			return nil, "", s.exists(old)
		}
		return s.build(ctx, tx, b)
	})
	return made, err
}

func (s *serviceService) ApplyService(ctx context.Context, request *v1.ApplyServiceRequest) (*v1.ApplyServiceResponse, error) {
	made, result, err := s.apply(ctx, request, request.GetService())
	if err != nil {
		return nil, err
	}
	return &v1.ApplyServiceResponse{Service: made, Result: result}, nil
}

func (s *serviceService) UpdateService(ctx context.Context, request *v1.UpdateServiceRequest) (*v1.Service, error) {
	return s.update(ctx, request.GetService())
}

func (s *serviceService) DeleteService(ctx context.Context, request *v1.DeleteServiceRequest) (*v1.Service, error) {
	namespace := orDefault(request.GetNamespace())
	return s.change(ctx, func(tx *transaction) (*v1.Service, error) {
		if old := s.find(tx.base, namespace, request.GetName()); old != nil && spec.IsImplicit(old) {
			name := old.GetStatus().GetWorkload()
			return nil, core.Refuse(codes.FailedPrecondition, "service %s is the service of workload %s, which has ports: take the ports out of the workload, or remove the workload with: %s",
				name, name, spec.Hint(namespace, "cloudless workload rm "+name))
		}
		return s.deleteIn(ctx, tx, namespace, request.GetName(), request.GetVersion())
	})
}

func (s *serviceService) GetService(ctx context.Context, request *v1.GetServiceRequest) (*v1.Service, error) {
	return s.read(ctx, orDefault(request.GetNamespace()), request.GetName())
}

func (s *serviceService) ListServices(ctx context.Context, request *v1.ListServicesRequest) (*v1.ListServicesResponse, error) {
	items, next, err := s.list(ctx, request.GetPage(), selection[*v1.Service]{
		namespace: request.GetSelection().GetNamespace(), labels: request.GetSelection().GetLabels(),
	})
	if err != nil {
		return nil, err
	}
	return &v1.ListServicesResponse{Items: items, Next: next}, nil
}

func (s *serviceService) WatchServices(request *v1.WatchServicesRequest, stream grpc.ServerStreamingServer[v1.ServiceChange]) error {
	return s.watch(stream.Context(), selection[*v1.Service]{
		namespace: request.GetSelection().GetNamespace(), labels: request.GetSelection().GetLabels(),
	}, func(change string, o *v1.Service) error {
		return stream.Send(&v1.ServiceChange{Change: change, Service: o})
	})
}

func (s *serviceService) GetBalancer(ctx context.Context, request *v1.GetBalancerRequest) (*v1.Balancer, error) {
	found, err := s.read(ctx, orDefault(request.GetNamespace()), request.GetService())
	return found.GetSpec().GetBalancer(), err
}

func (s *serviceService) SetBalancer(ctx context.Context, request *v1.SetBalancerRequest) (*v1.Service, error) {
	namespace := orDefault(request.GetNamespace())
	return s.changeNamed(ctx, namespace, request.GetService(), request.GetVersion(), func(tx *transaction, old *v1.Service) (*v1.Service, error) {
		if spec.IsImplicit(old) {
			return nil, core.Refuse(codes.FailedPrecondition, "service %s is the service of workload %s and has the default balancer; apply a service of that name to change it: %s",
				request.GetService(), request.GetService(), spec.Hint(namespace, "cloudless service apply --help"))
		}
		now := proto.CloneOf(old)
		now.Spec.Balancer = &v1.Balancer{}
		proto.Merge(now.Spec.Balancer, request.GetBalancer())
		spec.NormalizeBalancer(now.Spec.Balancer)
		if proto.Equal(old, now) {
			return old, nil
		}
		tx.batch.Update(now, old.GetMetadata().GetVersion())
		tx.batch.Create(s.Event(ctx, now, "Updated", "balancer"))
		return now, nil
	})
}

// ResolveService answers what a name leads to for a replica in a namespace: NAME, NAME.NAMESPACE or the full name.
func (s *serviceService) ResolveService(ctx context.Context, request *v1.ResolveServiceRequest) (*v1.ResolvedService, error) {
	from := orDefault(request.GetNamespace())
	short := strings.TrimSuffix(strings.TrimSuffix(request.GetName(), "."), "."+spec.ServiceDomain)
	name, namespace, qualified := strings.Cut(short, ".")
	if !qualified {
		namespace = from
	}
	if strings.Contains(namespace, ".") {
		return nil, core.Refuse(codes.InvalidArgument, "%s is not the name of a service: write api, api.shop or %s", request.GetName(), spec.ServiceName("shop", "api"))
	}
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	found := s.find(snap, namespace, name)
	switch hidden := !found.GetSpec().GetExported() && !core.Caller(ctx).Sees("service", namespace); {
	case hidden && namespace != from:
		return nil, core.NotFound("service", namespace, name)
	case found == nil:
		return nil, s.missing(snap, namespace, name)
	case namespace != from && !found.GetSpec().GetExported():
		return nil, core.Refuse(codes.FailedPrecondition, "service %s of namespace %s is not exported, so namespace %s cannot reach it: set spec.exported in the service", name, namespace, from)
	}
	return resolved(snap, found), nil
}

func resolved(snap *state.Snapshot, s *v1.Service) *v1.ResolvedService {
	endpoints := services.Endpoints(snap, s)
	answer := &v1.ResolvedService{
		Namespace: s.GetMetadata().GetNamespace(), Service: s.GetMetadata().GetName(),
		DnsName: spec.ServiceName(s.GetMetadata().GetNamespace(), s.GetMetadata().GetName()),
		Ports:   s.GetSpec().GetPorts(), Endpoints: endpoints, Reason: services.Reason(snap, s, endpoints),
	}
	if s.GetSpec().GetHeadless() {
		for _, e := range services.Usable(endpoints) {
			answer.Addresses = append(answer.Addresses, e.GetSpec().GetAddresses()...)
		}
		return answer
	}
	for _, a := range []string{s.GetStatus().GetAddressV4(), s.GetStatus().GetAddressV6()} {
		if a != "" {
			answer.Addresses = append(answer.Addresses, a)
		}
	}
	return answer
}

// presentService returns a service as the API shows it: with its number of endpoints, and what is wrong.
func presentService(snap *state.Snapshot, s *v1.Service) *v1.Service {
	endpoints, status := services.Endpoints(snap, s), s.GetStatus()
	shown := &v1.ServiceStatus{
		AddressV4: status.GetAddressV4(), AddressV6: status.GetAddressV6(), Workload: status.GetWorkload(), WorkloadUid: status.GetWorkloadUid(),
		Endpoints: int32(len(endpoints)), Reason: services.Reason(snap, s, endpoints),
		DnsName: spec.ServiceName(s.GetMetadata().GetNamespace(), s.GetMetadata().GetName()),
	}
	for _, e := range endpoints {
		if e.GetStatus().GetState() == spec.EndpointReady {
			shown.Ready++
		}
	}
	return &v1.Service{ApiVersion: s.GetApiVersion(), Kind: s.GetKind(), Metadata: s.GetMetadata(), Spec: s.GetSpec(), Status: shown}
}

// serviceBuilder writes a service with its addresses.
type serviceBuilder struct {
	builder[*v1.Service]
	*core.Core
}

func (b *serviceBuilder) create(ctx context.Context, tx *transaction) (*v1.Service, error) {
	made := proto.CloneOf(b.wanted())
	m := made.GetMetadata()
	made.Metadata = &v1.Metadata{
		Uid: state.NewUID(), Namespace: m.GetNamespace(), Name: m.GetName(), Labels: m.GetLabels(), Annotations: m.GetAnnotations(),
	}
	made.Status = nil
	if err := tx.giveAddresses(made); err != nil {
		return nil, err
	}
	tx.batch.Create(made)
	tx.batch.Create(b.Event(ctx, made, "Created", serviceSummary(made)))
	return made, nil
}

// update also turns the service of a workload into an applied one.
func (b *serviceBuilder) update(ctx context.Context, tx *transaction, old *v1.Service) (*v1.Service, error) {
	wanted := &v1.Service{Metadata: b.wanted().GetMetadata(), Spec: b.wanted().GetSpec()}
	now := services.Become(old, wanted)
	if now == old {
		return old, nil
	}
	if err := tx.giveAddresses(now); err != nil {
		return nil, err
	}
	tx.batch.Update(now, old.GetMetadata().GetVersion())
	tx.batch.Create(b.Event(ctx, now, "Updated", serviceSummary(now)))
	return now, nil
}

func serviceSummary(s *v1.Service) string {
	if s.GetSpec().GetHeadless() {
		return "headless"
	}
	return "at " + s.GetStatus().GetAddressV4() + " and " + s.GetStatus().GetAddressV6()
}

// giveAddresses allocates the addresses of a service, beside those of the other services of the transaction.
func (tx *transaction) giveAddresses(s *v1.Service) error {
	if err := externalOutside(tx.base, s); err != nil {
		return err
	}
	if tx.addresses == nil {
		tx.addresses = services.NewAllocator(tx.base)
	}
	err := tx.addresses.Allocate(s)
	if errors.Is(err, ipam.ErrNoAddress) {
		return core.Refuse(codes.ResourceExhausted, "%s", err)
	}
	return err
}

// removeService deletes a service with its registered endpoints. If it took the place of a workload's own service, that
// one is back with the same addresses.
func (s *Server) removeService(ctx context.Context, tx *transaction, old *v1.Service) *v1.Service {
	m := old.GetMetadata()
	if implicit := services.Implicit(tx.base.WorkloadByName(m.GetNamespace(), m.GetName())); implicit != nil {
		now := services.Become(old, implicit)
		// A headless service had no address. The loop gives one if the range is exhausted now.
		_ = services.NewAllocator(tx.base).Allocate(now)
		tx.batch.Update(now, m.GetVersion())
		tx.batch.Create(s.Event(ctx, now, "Updated", "stands for workload "+m.GetName()+" again"))
		return old
	}
	for e := range tx.base.EndpointsOf(m.GetUid()) {
		tx.batch.Delete(state.KindEndpoint, e.GetMetadata().GetUid())
	}
	tx.batch.DeleteVersion(state.KindService, m.GetUid(), m.GetVersion())
	tx.batch.Create(s.Event(ctx, old, "Deleted", ""))
	return old
}
