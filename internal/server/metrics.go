package server

import (
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/secret"
	"github.com/cloudless/cloudless/internal/services"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"

	"github.com/cloudless/cloudless/internal/server/core"
)

// registerMetrics registers the metrics that are computed when they are scraped.
func (s *Server) registerMetrics(r *telemetry.Registry) {
	r.Collect([]telemetry.Metric{
		telemetry.RaftLeader, telemetry.RaftTerm, telemetry.RaftLastIndex, telemetry.RaftCommitIndex,
		telemetry.RaftAppliedIndex, telemetry.RaftSnapshotIndex,
	}, s.collectRaft)
	r.Collect([]telemetry.Metric{telemetry.NamesLeader, telemetry.NamesAppliedIndex}, s.collectNames)
	r.Collect([]telemetry.Metric{
		telemetry.StateIndex, telemetry.StateObjects, telemetry.Workloads, telemetry.Replicas, telemetry.ReplicaRestarts,
		telemetry.Nodes, telemetry.DrainingReplicas, telemetry.LostReplicas, telemetry.Users, telemetry.Sessions, telemetry.PendingReplicas,
	}, s.collectState)
	r.Collect([]telemetry.Metric{telemetry.Images}, s.collectImages)
	r.Collect([]telemetry.Metric{telemetry.Certificates, telemetry.CertificatesFailing, telemetry.CertificateExpiry}, s.collectCertificates)
	r.Collect([]telemetry.Metric{telemetry.Secrets}, s.collectSecrets)
	r.Collect([]telemetry.Metric{telemetry.AuthorityExpiry, telemetry.Rotation}, s.collectAuthority)
	r.Collect([]telemetry.Metric{telemetry.Services, telemetry.Endpoints}, s.collectServices)
	r.Collect([]telemetry.Metric{
		telemetry.NodeCPU, telemetry.NodeCPUCapacity, telemetry.NodeMemory, telemetry.NodeMemoryCapacity,
		telemetry.NodeDisk, telemetry.NodeDiskCapacity,
	}, s.collectNodes)
	r.Collect(telemetry.Disks(), s.collectDisks)
	r.Collect(telemetry.ReplicaUsage(), func(emit telemetry.Emit) { telemetry.EmitReplicas(emit, s.allUsage().GetReplicas()) })
}

func (s *Server) collectRaft(emit telemetry.Emit) {
	stats := s.Consensus.Stats()
	leads := 0.0
	if s.Consensus.IsLeader() {
		leads = 1
	}
	emit(telemetry.RaftLeader, leads)
	emit(telemetry.RaftTerm, float64(stats.Term))
	emit(telemetry.RaftLastIndex, float64(stats.LastIndex))
	emit(telemetry.RaftCommitIndex, float64(stats.CommitIndex))
	emit(telemetry.RaftAppliedIndex, float64(stats.AppliedIndex))
	emit(telemetry.RaftSnapshotIndex, float64(stats.SnapshotIndex))
}

func (s *Server) collectNames(emit telemetry.Emit) {
	if s.names == nil {
		return
	}
	leads := 0.0
	if s.names.IsLeader() {
		leads = 1
	}
	emit(telemetry.NamesLeader, leads)
	emit(telemetry.NamesAppliedIndex, float64(s.names.Stats().AppliedIndex))
}

func (s *Server) collectSecrets(emit telemetry.Emit) {
	counts := map[string]float64{"valid": 0, "expired": 0}
	for one := range s.Store.Snapshot().Secrets("", "") {
		if secret.Expired(secret.VersionOf(one, one.GetStatus().GetVersion()), s.Now()) {
			counts["expired"]++
		} else {
			counts["valid"]++
		}
	}
	for label, count := range counts {
		emit(telemetry.Secrets, count, label)
	}
}

func (s *Server) collectState(emit telemetry.Emit) {
	snap := s.Store.Snapshot()
	emit(telemetry.StateIndex, float64(snap.Index()))
	for _, kind := range state.Kinds() {
		emit(telemetry.StateObjects, float64(snap.Count(kind)), string(kind))
	}
	count := func(m telemetry.Metric, by map[string]int) {
		for label, n := range by {
			emit(m, float64(n), label)
		}
	}
	workloads, replicas, nodes := map[string]int{}, map[string]int{}, map[string]int{}
	for w := range snap.Workloads("", "") {
		workloads[s.presentWorkload(snap, w, false).GetStatus().GetPhase()]++
	}
	var restarts int32
	lost := 0
	for r := range snap.Replicas("", "") {
		replicas[r.GetStatus().GetPhase()]++
		if spec.Live(r.GetStatus().GetPhase()) {
			restarts += r.GetStatus().GetRestarts()
		}
		if placement.Wanted(r) && placement.Away(snap, r) && snap.Workload(r.GetSpec().GetWorkloadUid()).GetSpec().GetKind() != spec.KindDaemon {
			lost++
		}
	}
	for n := range snap.Nodes("") {
		nodes[n.GetStatus().GetState()]++
		if spec.Drains(n) {
			emit(telemetry.DrainingReplicas, float64(placement.LiveOn(snap, n)), n.GetMetadata().GetName())
		}
	}
	emit(telemetry.LostReplicas, float64(lost))
	count(telemetry.Workloads, workloads)
	count(telemetry.Replicas, replicas)
	count(telemetry.Nodes, nodes)
	count(telemetry.Users, s.users(snap))
	count(telemetry.PendingReplicas, s.placement.Pending(snap))
	emit(telemetry.ReplicaRestarts, float64(restarts))
	emit(telemetry.Sessions, float64(s.sessions.Count()))
}

// users counts the API tokens by role.
func (s *Server) users(snap *state.Snapshot) map[string]int {
	counts := map[string]int{core.RoleAdmin: 0, core.RoleOperator: 0, core.RoleViewer: 0}
	for t := range snap.Tokens("") {
		if role := t.GetSpec().GetRole(); role != core.RoleNode && s.Now().Before(t.GetSpec().GetExpireTime().AsTime()) {
			counts[role]++
		}
	}
	return counts
}

func (s *Server) collectImages(emit telemetry.Emit) {
	tags := 0
	for t := range s.Store.Snapshot().Tags() {
		if t.GetDigest() != "" {
			tags++
		}
	}
	emit(telemetry.Images, float64(tags))
}

func (s *Server) collectCertificates(emit telemetry.Emit) {
	type class struct{ source, state string }
	counts, ends, failing := map[class]int{}, map[string]time.Time{}, 0
	for c := range s.Store.Snapshot().Certificates("", "") {
		source := c.GetSpec().GetSource()
		counts[class{source, c.GetStatus().GetState()}]++
		if c.GetStatus().GetFailures() > 0 {
			failing++
		}
		if end := c.GetStatus().GetNotAfter(); end != nil && (ends[source].IsZero() || end.AsTime().Before(ends[source])) {
			ends[source] = end.AsTime()
		}
	}
	for of, n := range counts {
		emit(telemetry.Certificates, float64(n), of.source, of.state)
	}
	for source, end := range ends {
		emit(telemetry.CertificateExpiry, float64(end.Unix()), source)
	}
	emit(telemetry.CertificatesFailing, float64(failing))
}

func (s *Server) collectAuthority(emit telemetry.Emit) {
	snap := s.Store.Snapshot()
	emit(telemetry.AuthorityExpiry, float64(s.ca.Trust().NotAfter().Unix()))
	if step := snap.Authority().GetStep(); step != "" {
		emit(telemetry.Rotation, 1, "ca", step)
	}
	if step := snap.KeyEncryptionKey().GetStep(); step != "" {
		emit(telemetry.Rotation, 1, "kek", step)
	}
}

func (s *Server) collectServices(emit telemetry.Emit) {
	snap, kinds, states := s.Store.Snapshot(), map[string]int{}, map[string]int{}
	for service := range snap.Services("", "") {
		if spec.IsImplicit(service) {
			kinds["workload"]++
		} else {
			kinds["applied"]++
		}
		for _, e := range services.Endpoints(snap, service) {
			states[e.GetStatus().GetState()]++
		}
	}
	for _, kind := range []string{"workload", "applied"} {
		emit(telemetry.Services, float64(kinds[kind]), kind)
	}
	for _, one := range []string{spec.EndpointReady, spec.EndpointDraining, spec.EndpointUnready} {
		emit(telemetry.Endpoints, float64(states[one]), one)
	}
}

func (s *Server) collectNodes(emit telemetry.Emit) {
	for _, n := range s.allUsage().GetNodes() {
		emitAmount := func(m telemetry.Metric, text string, parse func(string) (int64, error), unit float64) {
			if value, err := parse(text); err == nil && text != "" {
				emit(m, float64(value)/unit, n.GetNode())
			}
		}
		emitAmount(telemetry.NodeCPU, n.GetUsage().GetCpu(), spec.ParseCPU, 1000)
		emitAmount(telemetry.NodeCPUCapacity, n.GetCapacity().GetCpu(), spec.ParseCPU, 1000)
		emitAmount(telemetry.NodeMemory, n.GetUsage().GetMemory(), spec.ParseBytes, 1)
		emitAmount(telemetry.NodeMemoryCapacity, n.GetCapacity().GetMemory(), spec.ParseBytes, 1)
		emitAmount(telemetry.NodeDisk, n.GetUsage().GetDisk(), spec.ParseBytes, 1)
		emitAmount(telemetry.NodeDiskCapacity, n.GetCapacity().GetDisk(), spec.ParseBytes, 1)
	}
}

func (s *Server) collectDisks(emit telemetry.Emit) {
	connected := 0
	for _, n := range s.disks.Nodes() {
		if !n.Connected {
			continue
		}
		connected++
		emit(telemetry.DiskStoreUsed, float64(n.Used), n.Name)
		emit(telemetry.DiskStoreFree, float64(n.Free), n.Name)
		emit(telemetry.DiskStoreChunks, float64(n.Chunks), n.Name)
	}
	emit(telemetry.DisksConnected, float64(connected))
}

// allUsage returns the usage of everything. Only the leader receives reports from nodes:
// another server shows none, because what it remembers from its own leadership is outdated.
func (s *Server) allUsage() *v1.Usage {
	if !s.Consensus.IsLeader() {
		return nil
	}
	frame, _ := s.usage(core.Principal{}, s.Store.Snapshot(), &v1.GetUsageRequest{})
	return frame
}
