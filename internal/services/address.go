package services

import (
	"fmt"
	"net/netip"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/ipam"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Allocator gives the services of one transaction their addresses. The state refuses a transaction with an address that
// another transaction took meanwhile.
type Allocator struct {
	snap *state.Snapshot
	// v4 and v6 are the ranges, and given are the addresses that this transaction has used.
	v4, v6 netip.Prefix
	given  map[netip.Addr]bool
}

// NewAllocator returns an allocator for a transaction that is built from a snapshot.
func NewAllocator(snap *state.Snapshot) *Allocator {
	v4, v6 := spec.ServiceRanges(snap.Cluster().GetSpec())
	return &Allocator{snap: snap, v4: v4, v6: v6, given: map[netip.Addr]bool{}}
}

// Allocate gives a service the addresses that it lacks, and takes those of a headless service away. A service keeps the
// addresses that it has. The error wraps [ipam.ErrNoAddress] if a range is exhausted; then the service has neither new
// address.
func (a *Allocator) Allocate(s *v1.Service) error {
	if s.Status == nil {
		s.Status = &v1.ServiceStatus{}
	}
	if s.GetSpec().GetHeadless() {
		s.Status.AddressV4, s.Status.AddressV6 = "", ""
		return nil
	}
	v4, err := a.next(s, s.Status.AddressV4, a.v4, "serviceRangeV4")
	if err != nil {
		return err
	}
	v6, err := a.next(s, s.Status.AddressV6, a.v6, "serviceRangeV6")
	if err != nil {
		return err
	}
	s.Status.AddressV4, s.Status.AddressV6 = v4, v6
	return nil
}

func (a *Allocator) next(s *v1.Service, has string, all netip.Prefix, setting string) (string, error) {
	if has != "" {
		return has, nil
	}
	next, err := ipam.Address(all, state.Path(s), func(one netip.Addr) bool {
		return a.given[one] || a.snap.ServiceAt(one.String()) != nil
	})
	if err != nil {
		return "", fmt.Errorf("service %s gets no address, because all %d addresses of %s (%v) are taken: remove services, or give a larger range with: cloudless cluster config set %s=RANGE (%w)",
			state.Path(s), ipam.Addresses(all), setting, all, setting, ipam.ErrNoAddress)
	}
	a.given[next] = true
	return next.String(), nil
}
