package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/nodenet"
	"github.com/cloudless/cloudless/internal/resolver"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/spec"
)

// Network is the node's network. Package nodenet implements it.
type Network interface {
	// Run maintains the network until ctx ends.
	Run(ctx context.Context, notice func(nodenet.Event)) error
	// Configure sets the node's address ranges.
	Configure(subnets nodenet.Subnets) error
	// Attach gives a replica its namespace, addresses and ports. Serve and Withdraw say
	// whether published ports lead to it. Detach removes everything.
	Attach(ctx context.Context, e nodenet.Endpoint) (nodenet.Attachment, error)
	Serve(uid string) error
	Withdraw(uid string) error
	Detach(ctx context.Context, uid string) error
	// Retain detaches all replicas that keep rejects.
	Retain(ctx context.Context, keep func(uid string) bool) error
	// Counters are the bytes that a replica has received and sent.
	Counters(uid string) (nodenet.Counters, error)
	// Drops are the packets that rules have dropped, by workload and rule.
	Drops() ([]nodenet.Drop, error)
	// SetRanges sets the cluster's ranges: packets for them leave the machine only by the mesh.
	SetRanges(r nodenet.Ranges) error
	// UpdateReplicas tells which namespaces replicas of other nodes are in, by their addresses, and ReplaceReplicas
	// tells it for all of them.
	UpdateReplicas(changed map[netip.Addr]string, removed []netip.Addr) error
	ReplaceReplicas(all map[netip.Addr]string) error
	// SetServices sets the services that the node balances, and UpdateServices changes some of them and removes others,
	// which it names by their ids.
	SetServices(all []nodenet.Service) error
	UpdateServices(changed []nodenet.Service, removed []string) error
	// SetEgress changes what a replica may connect to, and reports whether that was something else before.
	SetEgress(uid string, to *nodenet.Egress) (changed bool, err error)
	// SetBandwidth limits what a replica may receive and send, in bits per second; 0 is no limit.
	SetBandwidth(uid string, bits int64) error
	// SetIngress names the ports at which the ingress of this node answers, which replicas may reach.
	SetIngress(ports []nodenet.Port) error
	// Table is the name of the table with the node's rules.
	Table() string
	// Clients are this node's replicas by their addresses, and the names that they may connect to.
	Clients() (map[netip.Addr]nodenet.Client, nodenet.Names)
	// Condition says whether replicas can be reached, and if not, why.
	Condition() (ok bool, reason string)
}

// runNetwork maintains the network until ctx ends. First it removes the networks of unknown
// replicas.
func (a *Agent) runNetwork(ctx context.Context) {
	if err := a.network.Retain(ctx, a.knows); err != nil {
		a.log.Warn("cannot remove the network of removed replicas", "error", err)
	}
	var pause backoff
	for ctx.Err() == nil {
		if err := a.network.Run(ctx, a.noticed); err != nil && ctx.Err() == nil {
			a.log.Warn("cannot watch the node's network; trying again", "error", err)
			_ = sleep.For(ctx, pause.next())
		}
	}
}

// knows reports whether there is a replica, or a task of one, with that uid.
func (a *Agent) knows(uid string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.replicas[uid] != nil || len(a.found[uid]) > 0
}

// noticed passes on the events of the network.
func (a *Agent) noticed(e nodenet.Event) {
	severity := "info"
	if e.Warning {
		severity = "warning"
	}
	if e.Reason == nodenet.RulesRestored && a.mesh != nil {
		a.mesh.Relearn()
	}
	a.reportEvent(severity, e.Reason, e.UID, sentence(e.Message))
	a.noteChange()
}

// reportEvent reports an event to the cluster. replica is empty if it is about the node.
func (a *Agent) reportEvent(severity, reason, replica, message string) {
	a.reports.addEvent(&v1.EventReport{Severity: severity, Reason: reason, Message: message, ReplicaUid: replica, Time: now()})
}

// configureNetwork applies the node's spec.
func (a *Agent) configureNetwork(given *v1.NodeSpec) error {
	if given.GetSubnetV4() == "" {
		return nil
	}
	var s nodenet.Subnets
	var err error
	if s.V4, err = netip.ParsePrefix(given.GetSubnetV4()); err != nil {
		return fmt.Errorf("the node's subnet: %w", err)
	}
	if text := given.GetSubnetV6(); text != "" {
		if s.V6, err = netip.ParsePrefix(text); err != nil {
			return fmt.Errorf("the node's subnet: %w", err)
		}
	}
	a.meshState.mu.Lock()
	a.meshState.node = given
	a.cache.setNode(given)
	a.meshState.mu.Unlock()
	a.configureMesh()
	return a.network.Configure(s)
}

// networkCondition remembers since when the network is as it is.
type networkCondition struct {
	mu     sync.Mutex
	ok     bool
	reason string
	since  time.Time
}

// judge merges the state of the node's network into the machine's network condition.
func (c *networkCondition) judge(network Network, conditions []*v1.Condition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ok, reason := network.Condition()
	if reason = sentence(reason); ok != c.ok || reason != c.reason || c.since.IsZero() {
		c.ok, c.reason, c.since = ok, reason, time.Now()
	}
	if ok {
		return
	}
	for i, condition := range conditions {
		if condition.GetType() == "NetworkAvailable" && condition.GetStatus() {
			conditions[i] = &v1.Condition{Type: condition.GetType(), Reason: reason, ChangeTime: timestamppb.New(c.since)}
		}
	}
}

// endpointOf describes the replica for the network.
func endpointOf(a *v1.Assignment) nodenet.Endpoint {
	meta, s := a.GetReplica().GetMetadata(), a.GetReplica().GetSpec()
	e := nodenet.Endpoint{
		UID: meta.GetUid(), Hostname: hostname(meta.GetName()),
		Group: s.GetWorkloadUid(), Owner: ownerOf(s.GetWorkload(), meta.GetNamespace()),
		Namespace: meta.GetNamespace(), Egress: egressOf(a), Bandwidth: a.GetBandwidth(),
	}
	for _, p := range a.GetRevision().GetSpec().GetWorkload().GetPorts() {
		port := portOf(p)
		switch {
		case port.Host == 0:
		case port.Address.IsValid() && !port.Address.IsLoopback() && p.GetPublishMode() != spec.PublishHost:
			// The machine with the address may be another one.
		default:
			e.Ports = append(e.Ports, port)
		}
	}
	return e
}

// egressOf is what the replica may connect to now.
func egressOf(a *v1.Assignment) *nodenet.Egress {
	given := a.GetEgress()
	if given == nil {
		return nil
	}
	e := &nodenet.Egress{Closed: given.Services != nil && !given.GetServices()}
	for _, rule := range given.GetAllow() {
		r := nodenet.EgressRule{Name: rule.GetName(), Protocol: rule.GetProtocol()}
		if rule.GetName() == "" {
			var err error
			if r.Prefix, err = spec.ParseRange(rule.GetCidr()); err != nil {
				continue // servers accept no others; what makes no sense allows nothing
			}
		}
		for _, port := range rule.GetPorts() {
			r.Ports = append(r.Ports, uint16(port))
		}
		e.Rules = append(e.Rules, r)
	}
	return e
}

// resolverClients are replicas as the resolver describes them, and resolverRules their rules for names.
func resolverClients(clients map[netip.Addr]nodenet.Client) map[netip.Addr]resolver.Client {
	all := make(map[netip.Addr]resolver.Client, len(clients))
	for address, c := range clients {
		all[address] = resolver.Client{Namespace: c.Namespace, Rules: c.Rules}
		if c.Rules != "" {
			all[address] = resolver.Client{Namespace: c.Namespace, Rules: c.Rules, Addresses: c.Addresses}
		}
	}
	return all
}

func resolverRules(names nodenet.Names) map[string][]resolver.NameRule {
	all := map[string][]resolver.NameRule{}
	for key, rules := range names {
		for _, r := range rules {
			all[key] = append(all[key], resolver.NameRule{Pattern: r.Name, ID: r.ID()})
		}
	}
	return all
}

// limit applies egress rules and a limit of the bandwidth that have changed since the replica was attached.
func (r *replica) limit(ctx context.Context) {
	if !onNetwork(r.rec.Assignment) {
		return
	}
	changed, err := r.network.SetEgress(r.uid, egressOf(r.rec.Assignment))
	if err != nil {
		r.log.Error("the replica's new egress rules are not complete", "error", err)
	}
	if err := r.network.SetBandwidth(r.uid, r.rec.Assignment.GetBandwidth()); err != nil {
		r.log.Error("the replica's new limit of the bandwidth does not hold", "error", err)
	}
	if changed {
		r.attached(ctx) // the resolver learns for other names now
	}
}

// ownerOf names a workload for people.
func ownerOf(workload, namespace string) string {
	return fmt.Sprintf("%s in namespace %s", workload, namespace)
}

func portOf(p *v1.Port) nodenet.Port {
	port := nodenet.Port{Protocol: protocolOf(p.GetProtocol()), Host: uint16(p.GetPublish()), Inside: uint16(p.GetPort())}
	if text := p.GetPublishAddress(); text != "" {
		port.Address, _ = netip.ParseAddr(text) // servers accept no others
	}
	return port
}

// onNetwork reports whether the replica is on the node's network.
func onNetwork(a *v1.Assignment) bool {
	network := a.GetRevision().GetSpec().GetWorkload().GetNetwork()
	return a.GetRevision() != nil && (network == "" || network == string(driver.NetworkNode))
}

// connect attaches the task of a replica to the node's network, with the same address for
// every attempt.
func (r *replica) connect(ctx context.Context, task *driver.Task) error {
	if !onNetwork(r.rec.Assignment) {
		return nil
	}
	given, err := r.network.Attach(ctx, endpointOf(r.rec.Assignment))
	if err != nil {
		return err
	}
	if task != nil {
		task.NetworkNamespace, task.Files = given.Namespace, given.Files
	}
	r.attached(ctx) // before the program looks up a name
	r.rec.Status.Addresses = nil
	for _, addr := range given.Addresses {
		r.rec.Status.Addresses = append(r.rec.Status.Addresses, addr.String())
	}
	return nil
}

// clientPatience is how long a replica waits until the resolver knows it.
const clientPatience = time.Second

// setClients tells the resolver which replicas there are.
func (a *Agent) setClients(ctx context.Context) {
	if a.mesh == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, clientPatience)
	defer cancel()
	a.meshState.attaching.Lock()
	defer a.meshState.attaching.Unlock()
	clients, names := a.network.Clients()
	a.mesh.SetClients(ctx, resolverClients(clients), resolverRules(names))
}

// reconnect restores the network of a replica from an earlier agent. A running replica goes
// on even if that fails.
func (r *replica) reconnect(ctx context.Context) {
	if !onNetwork(r.rec.Assignment) {
		return
	}
	if r.rec.Status.GetPhase() != spec.PhaseRunning {
		r.withdraw()
		return
	}
	recorded := r.rec.Status.GetAddresses()
	err := r.connect(ctx, nil)
	if !slices.Equal(r.rec.Status.GetAddresses(), recorded) {
		r.publish() // the earlier agent was killed before it could record them
	}
	if err == nil && spec.ServesNow(r.rec.Status) {
		err = r.network.Serve(r.uid)
	}
	if err != nil && ctx.Err() == nil {
		r.log.Warn("cannot restore the replica's network", "error", err)
	}
}

// withdraw stops routing published ports to the replica. If that fails, connections to them
// fail until the replica is gone.
func (r *replica) withdraw() {
	if !onNetwork(r.rec.Assignment) {
		return
	}
	if err := r.network.Withdraw(r.uid); err != nil {
		r.log.Warn("published ports still lead to the replica", "error", err)
	}
}

// openIngress lets replicas reach the open ports of the ingress.
func (a *Agent) openIngress(open []*v1.IngressPort) {
	if a.network == nil {
		return
	}
	ports := make([]nodenet.Port, 0, len(open))
	for _, p := range open {
		ports = append(ports, nodenet.Port{Protocol: p.GetProtocol(), Host: uint16(p.GetPort())})
	}
	if err := a.network.SetIngress(ports); err != nil {
		a.log.Warn("replicas of this node do not reach its routes yet", "error", err)
	}
}
