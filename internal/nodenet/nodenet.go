package nodenet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/nftables/expr"
	"github.com/moby/locker"

	"github.com/cloudless/cloudless/internal/nodenet/nft"
)

// Options configures a node's network.
type Options struct {
	// ID names the cloud on this machine, in eight letters and digits.
	ID string
	// DataDir holds what must last: the assigned addresses.
	DataDir string
	// RunDir holds what may be lost in a reboot: namespaces and small files.
	RunDir string
	// Mesh is the name of the interface that leads to other nodes, empty if there is none.
	Mesh string
	// Domain is the one below which replicas look up services, such as cloudless.internal. They ask a resolver on the
	// bridge then. If it is empty, they ask the machine's name servers.
	Domain string
	// APIPort is the port of the cluster's API on this machine, which cannot be published; 0 if there is none.
	APIPort uint16
	Logger  *slog.Logger

	// noForceForwarding makes IPv6 forward as Linux before 6.17 does.
	noForceForwarding bool
	// noBridgeRules is like a kernel without rules for bridges.
	noBridgeRules bool
}

var validID = regexp.MustCompile(`^[a-z0-9]{8}$`)

func (o *Options) validate() error {
	switch {
	case !validID.MatchString(o.ID):
		return fmt.Errorf("id %q: want eight lower-case letters and digits", o.ID)
	case !filepath.IsAbs(o.DataDir) || !filepath.IsAbs(o.RunDir):
		return errors.New("options DataDir and RunDir must be absolute paths")
	case o.Logger == nil:
		return errors.New("option Logger is missing")
	}
	return nil
}

func (o *Options) statePath() string     { return filepath.Join(o.DataDir, "state.json") }
func (o *Options) namespaceDir() string  { return filepath.Join(o.RunDir, "netns") }
func (o *Options) fileDir() string       { return filepath.Join(o.RunDir, "net") }
func (o *Options) bridge() string        { return bridgePrefix + o.ID }
func (o *Options) table() string         { return tablePrefix + o.ID }
func (o *Options) linkPrefix() string    { return "cv" + o.ID + "-" }
func (o *Options) link(at uint32) string { return fmt.Sprintf("%s%x", o.linkPrefix(), at) }

func (o *Options) namespace(uid string) string { return filepath.Join(o.namespaceDir(), uid) }

// The name prefixes of all clouds on a machine.
const (
	bridgePrefix = "cl-"
	meshPrefix   = "cm-"
	tablePrefix  = "cloudless_"
)

// Own reports whether an interface of that name belongs to the network of a
// node, of this cloud or another one.
func Own(name string) bool {
	for _, prefix := range []string{bridgePrefix, meshPrefix} {
		if id, ours := strings.CutPrefix(name, prefix); ours && validID.MatchString(id) {
			return true
		}
	}
	return ownLink.MatchString(name)
}

// MeshInterface is the name of the interface that leads to other nodes, for a cloud with an id.
func MeshInterface(id string) string { return meshPrefix + id }

var ownLink = regexp.MustCompile(`^cv[a-z0-9]{8}-[0-9a-f]{1,4}$`)

// Subnets are the node's own ranges of addresses.
type Subnets struct{ V4, V6 netip.Prefix }

func (s Subnets) valid() bool { return s.V4.IsValid() }

func (s Subnets) contain(a netip.Addr) bool { return s.V4.Contains(a) || s.V6.Contains(a) }

// Ranges are the cluster's ranges of addresses. Each node has a part of them.
type Ranges struct {
	Replicas []netip.Prefix `json:"replicas,omitempty"`
	// Services are those of virtual addresses.
	Services []netip.Prefix `json:"services,omitempty"`
}

// Port leads from a port of the machine to one inside.
type Port struct {
	Protocol string `json:"protocol"` // "tcp" or "udp"
	// Address is the only address of the machine that has the port; if it is not valid, all have it.
	Address netip.Addr `json:"address,omitzero"`
	Host    uint16     `json:"host"`
	Inside  uint16     `json:"inside"`
}

func (p Port) key() portKey { return portKey{protocol: p.Protocol, addr: p.Address, number: p.Host} }

// Endpoint is a client of the network, such as a replica.
type Endpoint struct {
	UID      string
	Hostname string
	// Group is shared by endpoints that share published ports; Owner is its readable name.
	Group string
	Owner string
	// Namespace is the name of the endpoint's namespace: endpoints of others cannot reach it.
	Namespace string
	Ports     []Port
	// Egress is what it may connect to; nil is everything that is open to all.
	Egress *Egress
	// Bandwidth is the most that it may receive, and send, in bits per second; 0 for no limit.
	Bandwidth int64
}

// Attachment is what an endpoint has got.
type Attachment struct {
	// Namespace is the path of the network namespace.
	Namespace string
	// Addresses are an IPv4 address and, if the machine has IPv6, an IPv6 address.
	Addresses []netip.Addr
	// Files of this machine, by the path at which a program expects them.
	Files map[string]string
}

// Event is something that an operator may want to know.
type Event struct {
	Warning bool
	Reason  string // one word
	Message string // one sentence
	UID     string // of the endpoint it is about; empty for the node
}

// ErrNotConfigured means that the node has no subnets yet.
var ErrNotConfigured = errors.New("the cluster has not given this node a subnet yet")

// Network is the network of this node. It is safe for concurrent use.
type Network struct {
	opts   Options
	log    *slog.Logger
	ipv6   bool
	claims *claims
	uids   *locker.Locker // one of Attach and Detach at a time for each endpoint
	store  store

	base   sync.Mutex  // serializes repairs of bridge and settings
	intact atomic.Bool // bridge and settings were correct at the last check
	rules  *ruleset
	drops  drops

	services services
	ended    ended
	kick     chan struct{}

	readdressed atomic.Bool // addresses of the machine may have changed
	around      around      // owned by Run

	mu       sync.Mutex
	live     map[string]*live
	problems map[string]string // sentences by subject
	notice   func(Event)       // may be nil
	// everywhere are the backends of ports that services publish. They may be on other nodes.
	everywhere map[portKey]everywhere
}

// live is the state of an endpoint in this boot.
type live struct {
	attached bool // its namespace and its link are complete
	serving  bool // published ports lead to it
}

// Open reads the stored state of the node's network. It changes nothing on the machine
// before Configure, Run or Attach do.
func Open(opts Options) (*Network, error) {
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("node network: %w", err)
	}
	if err := os.MkdirAll(opts.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("node network: make its folder: %w", err)
	}
	n := &Network{
		opts: opts, log: opts.Logger, ipv6: haveIPv6(), uids: locker.New(),
		kick: make(chan struct{}, 1), live: map[string]*live{}, problems: map[string]string{},
		services:   services{byID: map[string]Service{}, refused: map[string]bool{}, absent: map[string]bool{}},
		everywhere: map[portKey]everywhere{}, ended: newEnded(),
	}
	n.rules = newRuleset(opts.table(), opts.hasBridgeRules())
	n.drops.last, n.drops.totals = map[dropKey]expr.Counter{}, map[dropTotal]*Drop{}
	n.claims = newClaims(n.backends, n.log)
	var err error
	if n.store, err = openStore(opts.statePath()); err != nil {
		return nil, fmt.Errorf("node network: %w", err)
	}
	// An endpoint that still has a namespace has probably kept serving; its owner calls
	// Withdraw if it has not.
	for uid := range n.store.all() {
		there := isNamespace(opts.namespace(uid))
		n.live[uid] = &live{attached: there, serving: there}
	}
	return n, nil
}

// hasBridgeRules reports whether the kernel has rules for bridges. If that cannot be found out, writing the rules says
// why.
func (o *Options) hasBridgeRules() bool {
	has, err := nft.HasBridges("probe_" + o.ID)
	return (has || err != nil) && !o.noBridgeRules
}

// Close releases held ports and leaves everything else as it is.
func (n *Network) Close() {
	n.claims.close()
	n.rules.table.Close()
}

// Configure sets the node's ranges, on disk first. The machine follows at once.
func (n *Network) Configure(s Subnets) error {
	s.V4, s.V6 = s.V4.Masked(), s.V6.Masked()
	if !s.V4.IsValid() || !s.V4.Addr().Is4() || s.V4.Bits() > 29 {
		return fmt.Errorf("node network: subnet %v: want one of IPv4 with room for a few addresses", s.V4)
	}
	if s.V6.IsValid() && (!s.V6.Addr().Is6() || s.V6.Bits() > 112) {
		return fmt.Errorf("node network: subnet %v: want one of IPv6 with 16 bits of its own", s.V6)
	}
	changed, err := n.store.configure(s)
	if err != nil {
		return fmt.Errorf("node network: %w", err)
	}
	if changed {
		n.intact.Store(false)
		n.poke()
	}
	return nil
}

// SetRanges sets the cluster's ranges, on disk first: what is meant for them leaves the machine only by the mesh.
func (n *Network) SetRanges(r Ranges) error {
	n.base.Lock()
	defer n.base.Unlock()
	if err := n.store.setRanges(r); err != nil {
		return fmt.Errorf("node network: %w", err)
	}
	n.readdressed.Store(true) // other ranges may overlap those of the machine
	n.poke()
	if !n.subnets().valid() || !n.rules.written() {
		return nil // Run and Attach write them, together with everything else
	}
	return n.mendBase()
}

// subnets are the ranges in use: without IPv6 on the machine, only IPv4.
func (n *Network) subnets() Subnets {
	s := n.store.subnets()
	if !n.ipv6 {
		s.V6 = netip.Prefix{}
	}
	return s
}

// poke triggers a check of the machine.
func (n *Network) poke() {
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// Attach gives the endpoint its namespace, its addresses and its ports, which lead to it
// once it serves. A second call finds everything as it was. If it fails for an endpoint
// that was not attached before, nothing is left of it.
func (n *Network) Attach(ctx context.Context, e Endpoint) (_ Attachment, err error) {
	n.uids.Lock(e.UID)
	defer n.uids.Unlock(e.UID)
	if !validUID.MatchString(e.UID) {
		return Attachment{}, fmt.Errorf("attach %q: it cannot be the name of a file", e.UID)
	}
	if !n.subnets().valid() {
		return Attachment{}, ErrNotConfigured
	}
	if err := errors.Join(n.checkPorts(e.Ports), n.checkEgress(e.Egress)); err != nil {
		return Attachment{}, fmt.Errorf("attach %q: %w", e.UID, err)
	}
	before, _ := n.store.get(e.UID)
	known := n.attached(e.UID)
	if err := n.claims.take(e, known); err != nil {
		if !known {
			return Attachment{}, err
		}
		n.sendEvent(Event{Warning: true, Reason: "PortTaken", Message: err.Error(), UID: e.UID})
	}
	defer func() {
		if err != nil && !known {
			err = errors.Join(err, n.remove(e.UID))
		}
	}()
	given, err := n.store.allocate(e)
	if err != nil {
		return Attachment{}, err
	}
	if err := n.ensureBase(); err != nil {
		return Attachment{}, err
	}
	if err := n.ensureEndpoint(given); err != nil {
		return Attachment{}, fmt.Errorf("attach %s: %w", e.UID, err)
	}
	if err := n.apply(); err != nil {
		return Attachment{}, err
	}
	if known && !before.Egress.equal(e.Egress) {
		if err := n.cutFlows(e.UID, before.Egress, e.Egress); err != nil {
			return Attachment{}, err
		}
	}
	files, err := n.writeFiles(given)
	if err != nil {
		return Attachment{}, err
	}
	n.mu.Lock()
	if n.live[e.UID] == nil {
		n.live[e.UID] = &live{}
	}
	n.live[e.UID].attached = true
	n.mu.Unlock()
	return Attachment{Namespace: n.opts.namespace(e.UID), Addresses: given.addresses(n.subnets()), Files: files}, nil
}

var validUID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)

func (n *Network) attached(uid string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.live[uid] != nil && n.live[uid].attached
}

// Serve routes published ports to the endpoint.
func (n *Network) Serve(uid string) error { return n.setServing(uid, true) }

// Withdraw routes published ports only to others of the group.
func (n *Network) Withdraw(uid string) error { return n.setServing(uid, false) }

func (n *Network) setServing(uid string, serving bool) error {
	e, found := n.store.get(uid)
	if !found {
		return nil
	}
	n.mu.Lock()
	l := n.live[uid]
	changed := l != nil && l.serving != serving
	if changed {
		l.serving = serving
	}
	n.mu.Unlock()
	if !changed || len(e.Ports) == 0 {
		return nil
	}
	if err := n.apply(); err != nil {
		return err
	}
	n.forgetFlows(e.Ports)
	return nil
}

// Detach removes everything of the endpoint and frees its addresses. It is no error if
// something is gone already.
func (n *Network) Detach(ctx context.Context, uid string) error {
	n.uids.Lock(uid)
	defer n.uids.Unlock(uid)
	return n.remove(uid)
}

func (n *Network) remove(uid string) error {
	withdrawn := n.Withdraw(uid)
	n.claims.release(uid)
	n.mu.Lock()
	if l := n.live[uid]; l != nil {
		l.attached = false
	}
	n.mu.Unlock()
	e, known := n.store.get(uid)
	if known {
		if err := n.removeEndpoint(e); err != nil {
			return fmt.Errorf("detach %s: %w", uid, err)
		}
	}
	n.mu.Lock()
	delete(n.live, uid)
	n.mu.Unlock()
	n.countDrops()
	freed := n.store.free(uid)
	if known {
		freed = errors.Join(freed, n.apply())
	}
	return errors.Join(withdrawn, freed)
}

// Retain detaches every endpoint that keep rejects.
func (n *Network) Retain(ctx context.Context, keep func(uid string) bool) error {
	var errs []error
	for uid := range n.store.all() {
		if !keep(uid) {
			errs = append(errs, n.Detach(ctx, uid))
		}
	}
	return errors.Join(errs...)
}

// backends are those to which a published port leads now.
func (n *Network) backends(key portKey) []netip.AddrPort {
	n.mu.Lock()
	to := n.everywhere[key].to
	n.mu.Unlock()
	if len(to) > 0 {
		return to
	}
	for _, p := range n.published() {
		if p.key == key {
			return p.backends
		}
	}
	return nil
}

// published are the ports that lead to endpoints of this node alone.
func (n *Network) published() []publication {
	subnets := n.subnets()
	byPort := map[portKey][]netip.AddrPort{}
	all := n.store.all()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, uid := range slices.Sorted(maps.Keys(all)) {
		if l := n.live[uid]; l == nil || !l.serving {
			continue
		}
		for _, p := range all[uid].Ports {
			if len(n.everywhere[p.key()].to) > 0 {
				continue
			}
			for _, addr := range all[uid].addresses(subnets) {
				byPort[p.key()] = append(byPort[p.key()], netip.AddrPortFrom(addr, p.Inside))
			}
		}
	}
	var list []publication
	for key, backends := range byPort {
		list = append(list, publication{key: key, backends: backends})
	}
	slices.SortFunc(list, func(a, b publication) int { return cmp.Compare(a.key.chain(), b.key.chain()) })
	return list
}

// Condition says whether replicas can be reached, and if not, why.
func (n *Network) Condition() (ok bool, reason string) {
	if !n.subnets().valid() {
		return false, "The cluster has not given this node a subnet yet."
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(n.problems)) {
		if reason != "" {
			reason += " "
		}
		reason += n.problems[kind]
	}
	return reason == "", reason
}

// setProblem notes a problem, or none if sentence is empty, and sends an event if that is
// new.
func (n *Network) setProblem(kind, reason, sentence string) {
	n.mu.Lock()
	before := n.problems[kind]
	if sentence == "" {
		delete(n.problems, kind)
	} else {
		n.problems[kind] = sentence
	}
	n.mu.Unlock()
	switch {
	case before == sentence:
	case sentence != "":
		n.sendEvent(Event{Warning: true, Reason: reason, Message: sentence})
	default:
		n.sendEvent(Event{Reason: "NetworkMended", Message: "This is over: " + before})
	}
}

func (n *Network) sendEvent(e Event) {
	level := slog.LevelInfo
	if e.Warning {
		level = slog.LevelWarn
	}
	n.log.Log(context.Background(), level, e.Message, "reason", e.Reason, "replica", e.UID)
	n.mu.Lock()
	notice := n.notice
	n.mu.Unlock()
	if notice != nil {
		notice(e)
	}
}
