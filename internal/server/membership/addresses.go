package membership

import (
	"cmp"
	"net"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// AdvertisedAddress returns the address at which others reach a server: the advertised one
// or, if that is empty, the one that it listens on. A server that listens on all addresses
// is reached at the first address of its machine.
func AdvertisedAddress(advertise, address string) string {
	if advertise != "" {
		return advertise
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
		return address
	}
	all, _ := net.InterfaceAddrs()
	return net.JoinHostPort(hostOf(all), port)
}

// hostOf returns the address at which others reach a machine: its first IPv4 address, or
// its first IPv6 address if it has no other.
func hostOf(all []net.Addr) string {
	host := ""
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		if !ok || !n.IP.IsGlobalUnicast() {
			continue
		}
		if n.IP.To4() != nil {
			return n.IP.String()
		}
		host = cmp.Or(host, n.IP.String())
	}
	return cmp.Or(host, "127.0.0.1")
}

// Advertised returns the address at which others reach this server.
func (s *Membership) Advertised() string { return s.advertised }

// Addresses returns the addresses of all servers, this one first.
func (s *Membership) Addresses() []string { return s.addresses(s.Store.Snapshot()) }

// addresses returns the addresses of all servers, this one first.
func (s *Membership) addresses(snap *state.Snapshot) []string {
	all := []string{}
	for _, one := range s.Servers(snap) {
		address := one.GetSpec().GetAddress()
		if one.GetMetadata().GetUid() == s.UID {
			all = slices.Insert(all, 0, address)
		} else if !slices.Contains(all, address) {
			all = append(all, address)
		}
	}
	return all
}

// Servers returns the servers in the state, or only this one if it is not stored
// there yet.
func (s *Membership) Servers(snap *state.Snapshot) []*v1.Server {
	if all := slices.Collect(snap.Servers("")); len(all) > 0 {
		return all
	}
	return []*v1.Server{{
		ApiVersion: spec.APIVersion, Kind: "Server", Metadata: &v1.Metadata{Uid: s.UID, Name: s.UID},
		Spec: &v1.ServerSpec{Address: s.advertised, Version: s.version},
	}}
}
