package state

import (
	"iter"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// ServiceAt returns the service with a virtual address of either family.
func (s *Snapshot) ServiceAt(address string) *v1.Service {
	for _, index := range []string{indexAddressV4, indexAddressV6} {
		for service := range listByPrefix[*v1.Service](s, KindService, index, appendText(nil, address)) {
			return service
		}
	}
	return nil
}

// SelectingServices lists the services of a namespace that choose workloads by labels, by name.
func (s *Snapshot) SelectingServices(namespace string) iter.Seq[*v1.Service] {
	return listByPrefix[*v1.Service](s, KindService, indexSelector, selectorKey(nil, namespace, true))
}

// Endpoint returns the registered endpoint with a uid.
func (s *Snapshot) Endpoint(uid string) *v1.Endpoint {
	return ByUID[*v1.Endpoint](s, KindEndpoint, uid)
}

// EndpointsOf lists the registered endpoints of a service by name.
func (s *Snapshot) EndpointsOf(serviceUID string) iter.Seq[*v1.Endpoint] {
	return listByPrefix[*v1.Endpoint](s, KindEndpoint, indexService, appendID(nil, serviceUID))
}

// serviceIndexes are the indexes of services beyond uid and name.
var serviceIndexes = map[string]keyFunc{
	indexAddressV4: by(func(key []byte, s *v1.Service) []byte { return appendText(key, s.GetStatus().GetAddressV4()) }),
	indexAddressV6: by(func(key []byte, s *v1.Service) []byte { return appendText(key, s.GetStatus().GetAddressV6()) }),
	indexSelector: by(func(key []byte, s *v1.Service) []byte {
		m := s.GetMetadata()
		return appendText(selectorKey(key, m.GetNamespace(), len(s.GetSpec().GetSelector()) > 0), m.GetName())
	}),
}

// selectorKey keeps the services with a selector apart from those without.
func selectorKey(key []byte, namespace string, selects bool) []byte {
	if selects {
		return appendText(append(key, 's'), namespace)
	}
	return appendText(append(key, '-'), namespace)
}

// addressHolder returns another service that has one of the addresses of this one, or nil. Two transactions that were
// built from the same snapshot may choose the same free address: the second one is refused, and built again.
func (b *builder) addressHolder(service *v1.Service) (holder Object) {
	rows, ordinal := &b.rows[ordinals[KindService]], ordinals[KindService]
	for _, own := range []struct{ index, address string }{
		{indexAddressV4, service.GetStatus().GetAddressV4()}, {indexAddressV6, service.GetStatus().GetAddressV6()},
	} {
		if own.address == "" || holder != nil {
			continue
		}
		rows.tree(ordinal, own.index).withPrefix(string(appendText(nil, own.address)), func(o Object) bool {
			if o.GetMetadata().GetUid() != service.GetMetadata().GetUid() {
				holder = o
			}
			return holder == nil
		})
	}
	return holder
}
