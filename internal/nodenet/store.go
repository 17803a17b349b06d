package nodenet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/cloudless/cloudless/internal/atomicfile"
)

// stateFormat is raised when an older version could no longer read the file.
const stateFormat = 1

// gateway is the place of the bridge's own address in a subnet.
const gateway = 1

// maxPlace is the last place that is assigned: link names have room for four digits.
const maxPlace = 0xffff

// state is what the node's network stores on disk.
type state struct {
	Format    int                  `json:"format"`
	V4        netip.Prefix         `json:"v4,omitzero"`
	V6        netip.Prefix         `json:"v6,omitzero"`
	Ranges    Ranges               `json:"ranges,omitzero"`
	Next      uint32               `json:"next"` // where the search for a free place continues
	Endpoints map[string]allocated `json:"endpoints"`
}

// allocated is an endpoint and its place in the subnets.
type allocated struct {
	UID       string `json:"-"`
	Place     uint32 `json:"place"`
	Hostname  string `json:"hostname"`
	Ports     []Port `json:"ports,omitempty"`
	Group     string `json:"group,omitempty"`
	Owner     string `json:"owner,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	// Egress is never changed, only replaced.
	Egress    *Egress `json:"egress,omitempty"`
	Bandwidth int64   `json:"bandwidth,omitempty"`
}

func (a allocated) endpoint() Endpoint {
	return Endpoint{UID: a.UID, Hostname: a.Hostname, Group: a.Group, Owner: a.Owner, Namespace: a.Namespace, Ports: a.Ports, Egress: a.Egress, Bandwidth: a.Bandwidth}
}

// addresses are those of the place, IPv4 first.
func (a allocated) addresses(s Subnets) []netip.Addr {
	list := []netip.Addr{at(s.V4, a.Place)}
	if s.V6.IsValid() {
		list = append(list, at(s.V6, a.Place))
	}
	return list
}

// at is the address at a place in a subnet.
func at(p netip.Prefix, place uint32) netip.Addr {
	bytes := p.Masked().Addr().AsSlice()
	for i := len(bytes) - 1; place > 0; i-- {
		sum := uint32(bytes[i]) + place&0xff
		bytes[i] = byte(sum)
		place = place>>8 + sum>>8
	}
	addr, _ := netip.AddrFromSlice(bytes)
	return addr
}

// lastPlace is the last place of a subnet that may be assigned: the next one is the
// broadcast address.
func lastPlace(p netip.Prefix) uint32 {
	size := uint64(1) << min(32-p.Bits(), 31)
	return uint32(min(size-2, maxPlace))
}

// store keeps the state on disk. Concurrent changes share a write.
type store struct{ *storage }

type storage struct {
	path string

	mu      sync.Mutex
	state   state
	changes uint64

	writing sync.Mutex
	written uint64 // the change that is on disk
}

func openStore(path string) (store, error) {
	s := &storage{path: path, state: state{Format: stateFormat, Next: gateway + 1}}
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return store{}, fmt.Errorf("read addresses: %w", err)
	default:
		if err := s.decode(data); err != nil {
			return store{}, fmt.Errorf("%s is damaged: %w: restore it from a backup, or remove it while nothing runs and replicas get new addresses", path, err)
		}
	}
	if s.state.Endpoints == nil {
		s.state.Endpoints = map[string]allocated{}
	}
	return store{s}, nil
}

func (s *storage) decode(data []byte) error {
	if err := json.Unmarshal(data, &s.state); err != nil {
		return err
	}
	if s.state.Format > stateFormat {
		return fmt.Errorf("it was written by a newer version (format %d, this version knows %d)", s.state.Format, stateFormat)
	}
	if s.state.V4.IsValid() && !s.state.V4.Addr().Is4() {
		return fmt.Errorf("subnet %v is not one of IPv4", s.state.V4)
	}
	taken := map[uint32]string{}
	for uid, e := range s.state.Endpoints {
		if !validUID.MatchString(uid) || e.Place <= gateway || e.Place > maxPlace {
			return fmt.Errorf("endpoint %q at place %d: there is no such thing", uid, e.Place)
		}
		if other, twice := taken[e.Place]; twice {
			return fmt.Errorf("endpoints %s and %s have the same address", other, uid)
		}
		taken[e.Place] = uid
		e.UID = uid
		s.state.Endpoints[uid] = e
	}
	return nil
}

// change changes the state and returns once that is on disk.
func (s *storage) change(edit func(*state) (bool, error)) error {
	s.mu.Lock()
	changed, err := edit(&s.state)
	if changed {
		s.changes++
	}
	mine := s.changes
	s.mu.Unlock()
	if err != nil {
		return err
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.written >= mine {
		return nil
	}
	s.mu.Lock()
	newest := s.changes
	data, err := json.Marshal(s.state)
	s.mu.Unlock()
	if err == nil {
		err = atomicfile.Replace(s.path, data)
	}
	if err != nil {
		return fmt.Errorf("record addresses: %w", err)
	}
	s.written = newest
	return nil
}

func (s *storage) subnets() Subnets {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Subnets{V4: s.state.V4, V6: s.state.V6}
}

func (s *storage) configure(to Subnets) (changed bool, err error) {
	err = s.change(func(st *state) (bool, error) {
		changed = st.V4 != to.V4 || st.V6 != to.V6
		st.V4, st.V6 = to.V4, to.V6
		return changed, nil
	})
	return changed, err
}

func (s *storage) ranges() Ranges {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Ranges
}

func (s *storage) setRanges(to Ranges) error {
	return s.change(func(st *state) (bool, error) {
		changed := !slices.Equal(st.Ranges.Replicas, to.Replicas) || !slices.Equal(st.Ranges.Services, to.Services)
		st.Ranges = to
		return changed, nil
	})
}

func (s *storage) get(uid string) (allocated, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, found := s.state.Endpoints[uid]
	return e, found
}

func (s *storage) all() map[string]allocated {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.state.Endpoints)
}

// allocate gives the endpoint its place, the same one each time. A freed place is reused as
// late as possible, so that the new endpoint is not mistaken for the old one.
func (s *storage) allocate(e Endpoint) (given allocated, err error) {
	err = s.change(func(st *state) (bool, error) {
		old, known := st.Endpoints[e.UID]
		given = allocated{
			UID: e.UID, Place: old.Place, Hostname: e.Hostname, Ports: e.Ports, Group: e.Group, Owner: e.Owner, Namespace: e.Namespace,
			Egress: e.Egress, Bandwidth: e.Bandwidth,
		}
		last := lastPlace(st.V4)
		if known && old.Place <= last {
			st.Endpoints[e.UID] = given
			return old.Hostname != e.Hostname || old.Namespace != e.Namespace || !slices.Equal(old.Ports, e.Ports) || !old.Egress.equal(e.Egress) || old.Bandwidth != e.Bandwidth, nil
		}
		if given.Place = st.freePlace(last); given.Place == 0 {
			return false, fmt.Errorf("all %d addresses of subnet %v are in use: remove replicas from this node, or place them on others", last-gateway, st.V4)
		}
		st.Next = given.Place + 1
		st.Endpoints[e.UID] = given
		return true, nil
	})
	return given, err
}

// setEgress changes the rules of an endpoint, if there is one, and returns those before.
func (s *storage) setEgress(uid string, to *Egress) (before *Egress, changed bool, err error) {
	err = s.change(func(st *state) (bool, error) {
		e, known := st.Endpoints[uid]
		before, changed = e.Egress, known && !e.Egress.equal(to)
		if changed {
			e.Egress = to
			st.Endpoints[uid] = e
		}
		return changed, nil
	})
	return before, changed, err
}

// setBandwidth changes the limit of an endpoint, if there is one.
func (s *storage) setBandwidth(uid string, bits int64) (changed bool, err error) {
	err = s.change(func(st *state) (bool, error) {
		e, known := st.Endpoints[uid]
		if changed = known && e.Bandwidth != bits; changed {
			e.Bandwidth = bits
			st.Endpoints[uid] = e
		}
		return changed, nil
	})
	return changed, err
}

// freePlace is 0 if there is none.
func (st *state) freePlace(last uint32) uint32 {
	taken := make(map[uint32]bool, len(st.Endpoints))
	for _, e := range st.Endpoints {
		taken[e.Place] = true
	}
	count := last - gateway
	for i := range count {
		place := gateway + 1 + (max(st.Next, gateway+1)-gateway-1+i)%count
		if !taken[place] {
			return place
		}
	}
	return 0
}

func (s *storage) free(uid string) error {
	return s.change(func(st *state) (bool, error) {
		_, found := st.Endpoints[uid]
		delete(st.Endpoints, uid)
		return found, nil
	})
}
