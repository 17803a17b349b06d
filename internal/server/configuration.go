package server

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/certificates"
	"github.com/cloudless/cloudless/internal/ipam"
	"github.com/cloudless/cloudless/internal/roles"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/membership"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// clusterService is the ClusterService.
type clusterService struct {
	v1.UnsafeClusterServiceServer
	*Server
}

func (s *clusterService) GetCluster(ctx context.Context, request *v1.GetClusterRequest) (*v1.Cluster, error) {
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	cluster := proto.CloneOf(snap.Cluster())
	if cluster == nil {
		return nil, core.Refuse(codes.Unavailable, "this server has not received the cluster's state yet; ask another one, or again in a moment")
	}
	if name := cluster.GetMetadata().GetName(); request.GetName() != "" && request.GetName() != name {
		return nil, core.Refuse(codes.NotFound, "this is cluster %s, not %s; choose another one with: cloudless context use NAME", name, request.GetName())
	}
	cluster.Spec = certificates.WithoutSettings(cluster.GetSpec())
	servers := s.presentServers(snap)
	s.markUnreachable(ctx, servers)
	for _, one := range servers {
		cluster.Status.Servers = append(cluster.Status.Servers, one.GetStatus())
	}
	voters := spec.VotersOf(cluster.GetSpec())
	tolerated, problems := serverProblems(cluster.GetStatus().GetServers(), expectedVoters(cluster))
	cluster.Status.ToleratedFailures, cluster.Status.DesiredVoters = int32(tolerated), int32(voters)
	if _, known := s.Consensus.Leader(); !known && len(cluster.GetStatus().GetServers()) > 1 {
		furthest := s.mostAdvanced(ctx, cluster.GetStatus().GetServers())
		problems = append(problems, fmt.Sprintf("server %s has the longest log of the servers that answer: it ends with entry %d of term %d",
			furthest.GetName(), furthest.GetLastIndex(), furthest.GetLastTerm()))
	}
	cluster.Status.Problems = slices.Concat(problems, leaderProblems(snap, s.Now()), authorityProblems(s.ca.Trust().NotAfter(), s.Now()), s.rotationProblems(ctx, snap), s.nodeProblems(snap), s.secretProblems(snap), s.storageProblems(ctx, cluster.GetStatus().GetServers()), s.duplicates.Problems(s.Now()))
	return cluster, nil
}

// expectedVoters is the number of voting servers below which the status reports missing
// ones. It is 1 for a cluster that always had one server and does not set desiredVoters, so
// that a single server does not complain about the default of three.
func expectedVoters(cluster *v1.Cluster) int {
	st := cluster.GetStatus()
	const first = 1 // epoch number; each recovery raises it
	if len(st.GetServers()) == 1 && st.GetEpoch() <= first && cluster.GetSpec().DesiredVoters == nil {
		return 1
	}
	return spec.VotersOf(cluster.GetSpec())
}

func (s *clusterService) WhoAmI(ctx context.Context, _ *v1.WhoAmIRequest) (*v1.WhoAmIResponse, error) {
	p := core.Caller(ctx)
	answer := &v1.WhoAmIResponse{Id: p.ID.String(), Role: p.Role, Namespace: p.Namespace, User: p.User, Groups: p.Groups}
	if token := s.Store.Snapshot().Token(p.TokenUID); token != nil {
		answer.ExpireTime, answer.Renewable = token.GetSpec().GetExpireTime(), token.GetSpec().GetRenew() != nil
	}
	for _, granted := range p.Permissions.Grants() {
		answer.Roles = append(answer.Roles, granted.String())
	}
	return answer, nil
}

// The configuration of the cluster is the spec of the Cluster. All parts read it at the
// moment when they need it, so that a change takes effect at once and without a restart.
// Each version is also stored as a Configuration, in the same transaction.

// configurationOf returns the configuration in force. In a cluster that is older than the
// versions it is the first one, which is not stored.
func (s *Server) configurationOf(snap *state.Snapshot) (*v1.Configuration, error) {
	cluster := snap.Cluster()
	if cluster == nil {
		return nil, core.Refuse(codes.Unavailable, "this server has not received the cluster's state yet; ask another one, or again in a moment")
	}
	if c := snap.Configuration(cluster.GetStatus().GetConfiguration()); c != nil {
		return c, nil
	}
	first := spec.NewConfiguration(state.NewUID(), max(spec.FirstConfiguration, cluster.GetStatus().GetConfiguration()), "", cluster.GetSpec())
	first.Metadata.CreateTime = cluster.GetMetadata().GetCreateTime()
	return first, nil
}

func (s *clusterService) GetConfiguration(ctx context.Context, request *v1.GetConfigurationRequest) (*v1.Configuration, error) {
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	number := request.GetNumber()
	if name := request.GetName(); name != "" {
		if number, err = strconv.ParseUint(strings.TrimPrefix(name, "configuration-"), 10, 64); err != nil || number == 0 {
			return nil, core.Refuse(codes.NotFound, "there is no configuration %s; see all with: cloudless cluster config history", name)
		}
	}
	found, err := s.configuration(snap, number)
	return withoutSecrets(found), err
}

// withoutSecrets is a configuration as answers show it.
func withoutSecrets(c *v1.Configuration) *v1.Configuration {
	shown := certificates.WithoutSettings(c.GetSpec().GetCluster())
	if c == nil || shown == c.GetSpec().GetCluster() {
		return c
	}
	c = proto.CloneOf(c)
	c.Spec.Cluster = shown
	return c
}

// configuration returns the version with a number, or the one in force if the number is 0.
func (s *Server) configuration(snap *state.Snapshot, number uint64) (*v1.Configuration, error) {
	current, err := s.configurationOf(snap)
	if err != nil || number == 0 || number == current.GetSpec().GetNumber() {
		return current, err
	}
	if c := snap.Configuration(number); c != nil {
		return c, nil
	}
	if number > current.GetSpec().GetNumber() {
		return nil, core.Refuse(codes.NotFound, "there is no configuration %d: the newest is %d", number, current.GetSpec().GetNumber())
	}
	return nil, core.Refuse(codes.NotFound, "configuration %d is not kept any more; see those that are with: cloudless cluster config history", number)
}

func (s *clusterService) ListConfigurations(ctx context.Context, request *v1.ListConfigurationsRequest) (*v1.ListConfigurationsResponse, error) {
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	current, err := s.configurationOf(snap)
	if err != nil {
		return nil, err
	}
	items, next, err := page(request.GetPage(), func(after string) iter.Seq[*v1.Configuration] {
		before, _ := strconv.ParseUint(after, 10, 64)
		return func(yield func(*v1.Configuration) bool) {
			if before == 0 && snap.Configuration(current.GetSpec().GetNumber()) == nil && !yield(current) {
				return
			}
			snap.Configurations(before)(yield)
		}
	}, func(c *v1.Configuration) string { return strconv.FormatUint(c.GetSpec().GetNumber(), 10) },
		func(*v1.Configuration) bool { return true })
	if err != nil {
		return nil, err
	}
	for i, c := range items {
		items[i] = withoutSecrets(c)
	}
	return &v1.ListConfigurationsResponse{Items: items, Next: next}, nil
}

func (s *clusterService) SetConfiguration(ctx context.Context, request *v1.SetConfigurationRequest) (*v1.Configuration, error) {
	wanted := request.GetConfiguration().GetSpec()
	if wanted.GetNumber() == 0 {
		return nil, &spec.Error{Violations: []spec.Violation{{
			Field: "spec.number", Message: "is missing: a configuration names the number of the one that it was made from; read that one first",
		}}}
	}
	return s.reconfigure(ctx, request.GetDryRun(), func(_ *state.Snapshot, current *v1.Configuration) (*v1.ConfigurationSpec, error) {
		if err := sameConfiguration(current, wanted.GetNumber()); err != nil {
			return nil, err
		}
		sealed, err := certificates.SealSettings(s.sealer, current.GetSpec().GetCluster(), wanted.GetCluster())
		if err != nil {
			return nil, err
		}
		return &v1.ConfigurationSpec{Comment: wanted.GetComment(), Cluster: sealed}, nil
	})
}

func (s *clusterService) RollbackConfiguration(ctx context.Context, request *v1.RollbackConfigurationRequest) (*v1.Configuration, error) {
	return s.reconfigure(ctx, request.GetDryRun(), func(snap *state.Snapshot, current *v1.Configuration) (*v1.ConfigurationSpec, error) {
		if request.GetFrom() != 0 {
			if err := sameConfiguration(current, request.GetFrom()); err != nil {
				return nil, err
			}
		}
		old, err := s.configuration(snap, request.GetNumber())
		if err != nil {
			return nil, err
		}
		return &v1.ConfigurationSpec{
			Comment: request.GetComment(), Cluster: old.GetSpec().GetCluster(), RolledBackTo: old.GetSpec().GetNumber(),
		}, nil
	})
}

// sameConfiguration refuses a change that was made from another version than the one in
// force. The error carries the one in force.
func sameConfiguration(current *v1.Configuration, from uint64) error {
	now := current.GetSpec().GetNumber()
	if from == now {
		return nil
	}
	return &core.Outdated{Current: withoutSecrets(current), Err: &state.ConflictError{
		Kind: state.KindConfiguration, UID: "of the cluster", Expected: from, Actual: now,
	}}
}

// reconfigure stores the spec that build returns as the next version, unless nothing would
// change. A dry run is refused like the change itself, and proposes nothing.
func (s *Server) reconfigure(ctx context.Context, dryRun bool, build func(*state.Snapshot, *v1.Configuration) (*v1.ConfigurationSpec, error)) (*v1.Configuration, error) {
	var made *v1.Configuration
	where := s.membership.ResolveHosts(ctx, s.membership.Addresses()...)
	snap, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		current, err := s.configurationOf(snap)
		if err != nil {
			return err
		}
		wanted, err := build(snap, current)
		if err != nil {
			return err
		}
		if made, err = s.nextConfiguration(ctx, snap, where, current, wanted); err != nil {
			return err
		}
		if made == current {
			return nil
		}
		if err := mayTrust(ctx, current.GetSpec().GetCluster(), made.GetSpec().GetCluster()); err != nil {
			return err
		}
		if dryRun {
			b = &state.Batch{}
		}
		s.putConfiguration(ctx, snap, b, current, made)
		return s.checkAdmins(snap, b)
	})
	if err != nil {
		return nil, err
	}
	if stored := snap.Configuration(made.GetSpec().GetNumber()); stored != nil {
		made = stored
	}
	return withoutSecrets(made), nil
}

// mayTrust refuses a change of the settings that decide who may do what to all but admins. Whoever names the provider can
// log in as any user, and whoever chooses the profiles and the lifetime of tokens undoes what limits tenants.
func mayTrust(ctx context.Context, before, after *v1.ClusterSpec) error {
	before = spec.NormalizedCluster(before)
	var changed []string
	if !proto.Equal(before.GetOidc(), after.GetOidc()) {
		changed = append(changed, "oidc")
	}
	if !proto.Equal(before.GetSecurity(), after.GetSecurity()) {
		changed = append(changed, "security")
	}
	if changed == nil {
		return nil
	}
	admin := roles.Named(roles.Admin, nil).GetSpec()
	return mayGive(ctx, admin, "", "changing "+strings.Join(changed, " and ")+" in the configuration, which decides who may do what,")
}

// nextConfiguration returns the version that follows the current one, validated, or the
// current one itself if nothing would change.
func (s *Server) nextConfiguration(ctx context.Context, snap *state.Snapshot, where membership.Hosts, current *v1.Configuration, wanted *v1.ConfigurationSpec) (*v1.Configuration, error) {
	before := current.GetSpec().GetCluster()
	after := spec.NormalizedCluster(wanted.GetCluster())
	// A cluster always has ranges.
	if after.GetRangeV4() == "" {
		after.RangeV4 = before.GetRangeV4()
	}
	if after.GetRangeV6() == "" {
		after.RangeV6 = before.GetRangeV6()
	}
	keepServiceRanges(before, after)
	changes := spec.DiffCluster(before, after)
	if len(changes) == 0 {
		return current, nil
	}
	next := spec.NewConfiguration(state.NewUID(), current.GetSpec().GetNumber()+1, s.author(ctx), after)
	next.Spec.Comment, next.Spec.RolledBackTo = wanted.GetComment(), wanted.GetRolledBackTo()
	next.Spec.Changes = configurationChanges(changes)
	// Validate again: a rollback may restore values that are no longer valid.
	if err := spec.Validate(next); err != nil {
		return nil, err
	}
	return next, fits(snap, where, before, after)
}

// configurationChanges are the changes of a configuration without what is sealed in it.
func configurationChanges(from []spec.FieldChange) []*v1.FieldChange {
	all := fieldChanges(from)
	for _, c := range all {
		if strings.HasPrefix(c.GetPath(), "acme.dns.settings") {
			c.Before, c.After = hidden(c.GetBefore(), "an old value"), hidden(c.GetAfter(), "a new value")
		}
	}
	return all
}

func hidden(text, words string) string {
	if text == "" {
		return ""
	}
	return words
}

// keepServiceRanges keeps the effective ranges of services if none are given. So a change of the nodes' ranges does not
// move the default ranges into subnets that older nodes still have.
func keepServiceRanges(before, after *v1.ClusterSpec) {
	v4, v6 := spec.ServiceRanges(before)
	if after.GetServiceRangeV4() == "" && v4.IsValid() {
		after.ServiceRangeV4 = v4.String()
	}
	if after.GetServiceRangeV6() == "" && v6.IsValid() {
		after.ServiceRangeV6 = v6.String()
	}
}

// putConfiguration adds to the batch the changes that bring a version into force.
func (s *Server) putConfiguration(ctx context.Context, snap *state.Snapshot, b *state.Batch, current, next *v1.Configuration) {
	if snap.Configuration(current.GetSpec().GetNumber()) == nil {
		b.Create(proto.CloneOf(current))
	}
	old := snap.Cluster()
	cluster := proto.CloneOf(old)
	cluster.Spec = next.GetSpec().GetCluster() // shared, since stored objects never change
	cluster.Status.Configuration = next.GetSpec().GetNumber()
	b.Update(cluster, old.GetMetadata().GetVersion())
	b.Create(next)
	b.Create(s.Event(ctx, cluster, "Configured", configuredMessage(next)))
}

// author is the caller, or this server if there is no caller.
func (s *Server) author(ctx context.Context) string {
	if id := core.Caller(ctx).ID; !id.IsZero() {
		return id.String()
	}
	return "spiffe://" + s.ca.Trust().Cluster() + "/server/" + s.UID
}

// shownChanges limits how many changes an event lists; the configuration lists all.
const shownChanges = 3

func configuredMessage(c *v1.Configuration) string {
	message := fmt.Sprintf("configuration %d", c.GetSpec().GetNumber())
	if to := c.GetSpec().GetRolledBackTo(); to != 0 {
		message += fmt.Sprintf(", back to %d", to)
	}
	for i, change := range c.GetSpec().GetChanges() {
		if i == shownChanges {
			return fmt.Sprintf("%s; and %d more", message, len(c.GetSpec().GetChanges())-i)
		}
		separator := "; "
		if i == 0 {
			separator = ": "
		}
		message += separator + changeWords(change)
	}
	return message
}

func changeWords(c *v1.FieldChange) string {
	other := cmp.Or(spec.SettingDefault(c.GetPath()), "not set")
	return fmt.Sprintf("%s is %s, was %s", c.GetPath(), cmp.Or(c.GetAfter(), other), cmp.Or(c.GetBefore(), other))
}

// fits refuses a configuration that the current cluster would violate. Settings that stay
// the same are not checked.
func fits(snap *state.Snapshot, where membership.Hosts, before, after *v1.ClusterSpec) error {
	broken := &spec.Error{}
	refuse := func(field, format string, args ...any) {
		broken.Violations = append(broken.Violations, spec.Violation{Field: "spec.cluster." + field, Message: fmt.Sprintf(format, args...)})
	}
	if before.GetRangeV4() != after.GetRangeV4() {
		rangeFits(snap, where, "rangeV4", after.GetRangeV4(), refuse)
	}
	if before.GetRangeV6() != after.GetRangeV6() {
		rangeFits(snap, where, "rangeV6", after.GetRangeV6(), refuse)
	}
	was4, was6 := spec.ServiceRanges(before)
	if was4.String() != after.GetServiceRangeV4() {
		serviceRangeFits(snap, where, "serviceRangeV4", after.GetServiceRangeV4(), refuse)
	}
	if was6.String() != after.GetServiceRangeV6() {
		serviceRangeFits(snap, where, "serviceRangeV6", after.GetServiceRangeV6(), refuse)
	}
	if have := snap.Count(state.KindNode); have > spec.MostNodes(after) {
		refuse("limits.nodes", "must be at least %d, because so many nodes are there: remove nodes first, or allow more", have)
	}
	if have := snap.Count(state.KindWorkload); have > spec.MostWorkloads(after) {
		refuse("limits.workloads", "must be at least %d, because so many workloads are there: delete some first, or allow more", have)
	}
	if most := spec.MostReplicas(after); most < spec.MostReplicas(before) {
		for w := range snap.Workloads("", "") {
			if have := int(spec.Size(w.GetSpec())); have > most {
				refuse("limits.replicasPerWorkload", "must be at least %d, because workload %s has so many replicas: scale it down first, or allow more", have, state.Path(w))
				break
			}
		}
	}
	reservedFits(snap, before, after, refuse)
	ingressFits(snap, before, after, refuse)
	if len(broken.Violations) > 0 {
		return broken
	}
	return nil
}

// rangeFits refuses a range that is too small for the existing nodes, or that contains the
// address of one of the cluster's own machines: traffic to it would end at a node's
// containers. The subnets of existing nodes need no check, inside the range or not: new
// subnets avoid them.
func rangeFits(snap *state.Snapshot, where membership.Hosts, field, text string, refuse func(field, format string, args ...any)) {
	all, err := netip.ParsePrefix(text)
	if err != nil {
		refuse(field, "is not a range of addresses: %s", err)
		return
	}
	if have := snap.Count(state.KindNode); spec.NodesIn(all) < have {
		refuse(field, "has room for %d nodes, and %d are there: give a larger range", spec.NodesIn(all), have)
	}
	outsideMachines(snap, where, field, all, refuse)
}

// serviceRangeFits refuses a range for services that is too small for the existing ones, or that overlaps the subnet of
// a node or the address of a machine. Existing services keep their addresses, inside the range or not.
func serviceRangeFits(snap *state.Snapshot, where membership.Hosts, field, text string, refuse func(field, format string, args ...any)) {
	all, err := netip.ParsePrefix(text)
	if err != nil {
		refuse(field, "is not a range of addresses: %s", err)
		return
	}
	if have := uint64(snap.Count(state.KindService)); ipam.Addresses(all) < have {
		refuse(field, "has room for %d services, and %d are there: give a larger range", ipam.Addresses(all), have)
	}
	for node := range snap.Nodes("") {
		for _, text := range []string{node.GetSpec().GetSubnetV4(), node.GetSpec().GetSubnetV6()} {
			if p, err := netip.ParsePrefix(text); err == nil && p.Overlaps(all) {
				refuse(field, "overlaps %s, the subnet of node %s: give a range outside of the nodes' subnets", p, node.GetMetadata().GetName())
				return
			}
		}
	}
	outsideMachines(snap, where, field, all, refuse)
}

// outsideMachines refuses a range that contains the address of one of the cluster's own machines.
func outsideMachines(snap *state.Snapshot, where membership.Hosts, field string, all netip.Prefix, refuse func(field, format string, args ...any)) {
	for server := range snap.Servers("") {
		if a, inside := where.In(all, server.GetSpec().GetAddress()); inside {
			refuse(field, "contains %s, the address of server %s: give a range that none of the cluster's machines has an address in", a, server.GetMetadata().GetName())
			return
		}
	}
	subnets := subnetsOf(snap)
	for node := range snap.Nodes("") {
		for _, i := range node.GetStatus().GetInterfaces() {
			for _, address := range i.GetAddresses() {
				p, err := netip.ParsePrefix(address)
				if err != nil || !p.Overlaps(all) || within(p.Addr(), subnets) {
					continue
				}
				refuse(field, "overlaps %s, the network of %s on node %s: give a range that none of the cluster's machines has an address in",
					p.Masked(), i.GetName(), node.GetMetadata().GetName())
				return
			}
		}
	}
}

// subnetsOf returns the subnets that nodes use for their replicas.
func subnetsOf(snap *state.Snapshot) []netip.Prefix {
	var all []netip.Prefix
	for node := range snap.Nodes("") {
		for _, text := range []string{node.GetSpec().GetSubnetV4(), node.GetSpec().GetSubnetV6()} {
			if p, err := netip.ParsePrefix(text); err == nil {
				all = append(all, p)
			}
		}
	}
	return all
}

func within(a netip.Addr, subnets []netip.Prefix) bool {
	for _, p := range subnets {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// reservable are the resources that nodes reserve for the system.
var reservable = []struct {
	name     string
	capacity func(*v1.Node) string
	percent  func(*v1.Overcommit) int32
	reserved func(*v1.ResourceAmounts) string
	parse    func(string) (int64, error)
	format   func(int64) string
}{
	{"cpu", func(n *v1.Node) string { return n.GetStatus().GetCapacity().GetCpu() }, (*v1.Overcommit).GetCpu, (*v1.ResourceAmounts).GetCpu, spec.ParseCPU, spec.FormatCPU},
	{"memory", func(n *v1.Node) string { return n.GetStatus().GetCapacity().GetMemory() }, (*v1.Overcommit).GetMemory, (*v1.ResourceAmounts).GetMemory, spec.ParseBytes, spec.HumanBytes},
	{"disk", func(n *v1.Node) string { return n.GetStatus().GetCapacity().GetDisk() }, (*v1.Overcommit).GetDisk, (*v1.ResourceAmounts).GetDisk, spec.ParseBytes, spec.HumanBytes},
	{"bandwidth", spec.LinkOf, (*v1.Overcommit).GetBandwidth, (*v1.ResourceAmounts).GetBandwidth, spec.ParseBandwidth, spec.FormatBandwidth},
}

// reservedFits refuses a configuration that would leave a ready node nothing to promise of
// a resource, if the node can promise some of it now. It names one such node for each
// resource.
func reservedFits(snap *state.Snapshot, before, after *v1.ClusterSpec, refuse func(field, format string, args ...any)) {
	blamed := map[string]bool{}
	for n := range snap.Nodes("") {
		if n.GetStatus().GetState() != spec.NodeReady {
			continue
		}
		was, is := spec.NodePolicyOf(before, n), spec.NodePolicyOf(after, n)
		for _, r := range reservable {
			capacity, err := r.parse(r.capacity(n))
			if err != nil || blamed[r.name] {
				continue // unknown, or already refused
			}
			left := func(p spec.NodePolicy) int64 {
				kept, _ := r.parse(r.reserved(p.Reserved)) // empty or valid
				return promised(capacity, r.percent(p.Overcommit)) - kept
			}
			if left(was) <= 0 || left(is) > 0 {
				continue
			}
			blamed[r.name] = true
			field, class := "reserved."+r.name, spec.NodeClassOf(after, n)
			if r.reserved(class.GetReserved()) != "" {
				field = fmt.Sprintf("nodeClasses[%d].%s", slices.Index(after.GetNodeClasses(), class), field)
			}
			refuse(field, "would leave nothing to promise on node %s, which has %s of which the system would keep %s; keep less, or put the node into a class with a reserved.%s of its own",
				n.GetMetadata().GetName(), r.format(promised(capacity, r.percent(is.Overcommit))), r.reserved(is.Reserved), r.name)
		}
	}
}

// promised is how much of a capacity may be promised, before the reservation for the
// system.
func promised(capacity int64, percent int32) int64 {
	if percent == 0 {
		return capacity
	}
	return capacity/100*int64(percent) + capacity%100*int64(percent)/100
}
