package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Kind is the type of a metric.
type Kind string

// The kinds of metrics.
const (
	KindCounter   Kind = "counter"
	KindGauge     Kind = "gauge"
	KindHistogram Kind = "histogram"
)

// The roles that have a metric.
const (
	FromServer = "server"
	FromAgent  = "agent"
	FromBoth   = "server, agent"
)

// Metric is one line of the catalogue.
type Metric struct {
	Name string
	Kind Kind
	// Unit of its value, empty for a plain count.
	Unit   string
	Labels []string
	Help   string
	// From says which role has it.
	From string
	// Buckets of a histogram.
	Buckets []float64
}

// From half a millisecond to half a minute.
var callBuckets = prometheus.ExponentialBuckets(0.0005, 4, 9)

// From 50 microseconds to three seconds: typical of a disk.
var diskBuckets = prometheus.ExponentialBuckets(0.00005, 4, 9)

// From five milliseconds to two minutes: typical of a container.
var driverBuckets = prometheus.ExponentialBuckets(0.005, 3, 10)

// The catalogue. A label has few values, except for replicas, whose number is bounded when
// they are shown (see MaxReplicas).
var (
	APICalls = Metric{
		Name: "cloudless_api_calls_total", Kind: KindCounter, From: FromServer,
		Labels: []string{"method", "code"}, Help: "API calls that have ended, by gRPC method and code.",
	}
	APIErrors = Metric{
		Name: "cloudless_api_errors_total", Kind: KindCounter, From: FromServer,
		Labels: []string{"method"}, Help: "API calls that failed because of the server, not of the caller.",
	}
	APISeconds = Metric{
		Name: "cloudless_api_call_seconds", Kind: KindHistogram, Unit: "seconds", From: FromServer, Buckets: callBuckets,
		Labels: []string{"method"}, Help: "Time to answer an API call; for streams, how long they lasted.",
	}
	APIOpen = Metric{
		Name: "cloudless_api_calls_open", Kind: KindGauge, From: FromServer,
		Help: "API calls and streams that are being answered now.",
	}
	HTTPRequests = Metric{
		Name: "cloudless_http_requests_total", Kind: KindCounter, From: FromServer,
		Labels: []string{"route", "code"}, Help: "HTTP requests by route (api, registry, metrics, openapi, health, other) and status code.",
	}

	RaftLeader = Metric{
		Name: "cloudless_raft_leader", Kind: KindGauge, From: FromServer, Help: "1 while this server leads.",
	}
	RaftTerm = Metric{
		Name: "cloudless_raft_term", Kind: KindGauge, From: FromServer, Help: "Current term.",
	}
	RaftLastIndex = Metric{
		Name: "cloudless_raft_last_index", Kind: KindGauge, From: FromServer, Help: "Index of the newest entry of the log.",
	}
	RaftCommitIndex = Metric{
		Name: "cloudless_raft_commit_index", Kind: KindGauge, From: FromServer, Help: "Index of the newest committed entry.",
	}
	RaftAppliedIndex = Metric{
		Name: "cloudless_raft_applied_index", Kind: KindGauge, From: FromServer, Help: "Index of the newest entry that Raft has applied.",
	}
	RaftSnapshotIndex = Metric{
		Name: "cloudless_raft_snapshot_index", Kind: KindGauge, From: FromServer, Help: "Index of the newest entry in the newest snapshot.",
	}
	RaftCommitSeconds = Metric{
		Name: "cloudless_raft_commit_seconds", Kind: KindHistogram, Unit: "seconds", From: FromServer, Buckets: callBuckets,
		Labels: []string{"result"}, Help: "Time from a proposal to its outcome, by result: accepted, refused or failed.",
	}
	RaftFsyncSeconds = Metric{
		Name: "cloudless_raft_fsync_seconds", Kind: KindHistogram, Unit: "seconds", From: FromServer, Buckets: diskBuckets,
		Help: "Time to write entries to the log on disk, fsync included.",
	}
	RaftSnapshotSeconds = Metric{
		Name: "cloudless_raft_snapshot_seconds", Kind: KindHistogram, Unit: "seconds", From: FromServer, Buckets: callBuckets,
		Help: "Time to write a snapshot of the state to disk.",
	}

	NamesLeader = Metric{
		Name: "cloudless_names_leader", Kind: KindGauge, From: FromServer,
		Help: "1 while this server leads the group that keeps the names of objects.",
	}
	NamesAppliedIndex = Metric{
		Name: "cloudless_names_applied_index", Kind: KindGauge, From: FromServer,
		Help: "Index of the newest entry of that group that this server has applied.",
	}
	NamesProposals = Metric{
		Name: "cloudless_names_proposals_total", Kind: KindCounter, From: FromServer, Labels: []string{"result"},
		Help: "Changes of the names of objects that this server was asked for while it led, by result: accepted, refused or failed.",
	}
	NamesCommitSeconds = Metric{
		Name: "cloudless_names_commit_seconds", Kind: KindHistogram, Unit: "seconds", From: FromServer, Buckets: callBuckets,
		Help: "Time from such a proposal to its outcome, of those that were accepted.",
	}
	NamesFsyncSeconds = Metric{
		Name: "cloudless_names_fsync_seconds", Kind: KindHistogram, Unit: "seconds", From: FromServer, Buckets: diskBuckets,
		Help: "Time to write entries to the log of that group on disk, fsync included.",
	}

	StateIndex = Metric{
		Name: "cloudless_state_index", Kind: KindGauge, From: FromServer, Help: "Index of the newest entry that the state includes.",
	}
	StateObjects = Metric{
		Name: "cloudless_state_objects", Kind: KindGauge, From: FromServer,
		Labels: []string{"kind"}, Help: "Objects in the replicated state by kind, ended replicas included.",
	}
	Workloads = Metric{
		Name: "cloudless_workloads", Kind: KindGauge, From: FromServer, Labels: []string{"phase"}, Help: "Workloads by phase.",
	}
	Replicas = Metric{
		Name: "cloudless_replicas", Kind: KindGauge, From: FromServer, Labels: []string{"phase"}, Help: "Replicas by phase, ended ones included.",
	}
	Services = Metric{
		Name: "cloudless_services", Kind: KindGauge, From: FromServer,
		Labels: []string{"kind"}, Help: "Services by kind: those of workloads (workload) and those that users applied (applied).",
	}
	Endpoints = Metric{
		Name: "cloudless_endpoints", Kind: KindGauge, From: FromServer,
		Labels: []string{"state"}, Help: "Endpoints of all services by state (ready, draining, unready).",
	}
	ReplicaRestarts = Metric{
		Name: "cloudless_replica_restarts", Kind: KindGauge, From: FromServer, Help: "Sum of the restarts of all live replicas.",
	}
	Nodes = Metric{
		Name: "cloudless_nodes", Kind: KindGauge, From: FromServer, Labels: []string{"state"}, Help: "Nodes by state.",
	}
	DrainingReplicas = Metric{
		Name: "cloudless_draining_replicas", Kind: KindGauge, From: FromServer,
		Labels: []string{"node"}, Help: "Replicas that are still on a draining node.",
	}
	LostReplicas = Metric{
		Name: "cloudless_lost_replicas", Kind: KindGauge, From: FromServer,
		Help: "Replicas on offline nodes of which no replacement serves yet, without those of daemons.",
	}
	DeferredReplicas = Metric{
		Name: "cloudless_deferred_replicas", Kind: KindGauge, From: FromServer,
		Help: "Lost replicas whose replacement waits for its turn, because failover.replicas of the configuration limits how many are replaced. Only the leader counts them.",
	}
	Certificates = Metric{
		Name: "cloudless_certificates", Kind: KindGauge, From: FromServer,
		Labels: []string{"source", "state"}, Help: "Certificates of routes by source (auto, cluster, own) and state (pending, ready, expired).",
	}
	CertificatesFailing = Metric{
		Name: "cloudless_certificates_failing", Kind: KindGauge, From: FromServer,
		Help: "Certificates that the last attempt did not issue or renew.",
	}
	CertificateExpiry = Metric{
		Name: "cloudless_certificate_expiry_timestamp_seconds", Kind: KindGauge, Unit: "seconds", From: FromServer,
		Labels: []string{"source"}, Help: "When the first certificate of a source expires, in seconds since 1970.",
	}
	Secrets = Metric{
		Name: "cloudless_secrets", Kind: KindGauge, From: FromServer,
		Labels: []string{"state"}, Help: "Secrets by the state of their current version (valid, expired).",
	}
	SecretsSent = Metric{
		Name: "cloudless_secrets_sent_total", Kind: KindCounter, From: FromServer,
		Help: "Values of secrets that this server sent to nodes.",
	}
	SecretsDelivered = Metric{
		Name: "cloudless_secrets_delivered_total", Kind: KindCounter, From: FromServer,
		Help: "Acknowledgements of nodes that a replica has a version of a secret.",
	}
	SecretFailures = Metric{
		Name: "cloudless_secret_failures_total", Kind: KindCounter, From: FromServer,
		Labels: []string{"reason"}, Help: "Secrets that could not be decrypted (open), and acknowledgements that did not count (refused).",
	}
	AuthorityExpiry = Metric{
		Name: "cloudless_authority_expiry_timestamp_seconds", Kind: KindGauge, Unit: "seconds", From: FromServer,
		Help: "When the cluster's certificate authority expires, in seconds since 1970.",
	}
	Rotation = Metric{
		Name: "cloudless_rotation_step", Kind: KindGauge, From: FromServer,
		Labels: []string{"key", "step"}, Help: "1 for the step of a rotation that runs, by key (ca, kek).",
	}
	CertificateOrders = Metric{
		Name: "cloudless_certificate_orders_total", Kind: KindCounter, From: FromServer,
		Labels: []string{"source", "result"}, Help: "Attempts of this server to issue certificates, by source (auto, cluster) and result (issued, failed).",
	}
	AutoscaleDecisions = Metric{
		Name: "cloudless_autoscale_decisions_total", Kind: KindCounter, From: FromServer,
		Labels: []string{"decision"}, Help: "Decisions of autoscaling, by the reason of their event. Only the leader counts them.",
	}
	MovedReplicas = Metric{
		Name: "cloudless_moved_replicas_total", Kind: KindCounter, From: FromServer,
		Help: "Replicas that rebalancing has begun to move to a better node. Only the leader counts them.",
	}
	RouteRequests = routeMetric("cloudless_route_requests_total", KindCounter, "", "Requests of a route; for TCP and UDP, connections and flows.")
	RouteErrors   = routeMetric("cloudless_route_errors_total", KindCounter, "", "Requests of a route that failed: status 500 and higher, or no answer.")
	RouteReceived = routeMetric("cloudless_route_received_bytes_total", KindCounter, "bytes", "Bytes that clients have sent to a route.")
	RouteSent     = routeMetric("cloudless_route_sent_bytes_total", KindCounter, "bytes", "Bytes that a route has sent to clients.")
	RouteOpen     = routeMetric("cloudless_route_open", KindGauge, "", "Requests and connections of a route that are open now.")
	RouteSeconds  = Metric{
		Name: "cloudless_route_seconds", Kind: KindHistogram, Unit: "seconds", From: FromServer, Buckets: callBuckets,
		Labels: []string{"namespace", "route"}, Help: "Time until the answer of a route begins. Only the leader counts; the sum is estimated from buckets.",
	}
	Users = Metric{
		Name: "cloudless_users", Kind: KindGauge, From: FromServer,
		Labels: []string{"role"}, Help: "API tokens that have not expired, by role.",
	}
	Images = Metric{
		Name: "cloudless_images", Kind: KindGauge, From: FromServer, Help: "Tagged images in the cluster's registry.",
	}
	Sessions = Metric{
		Name: "cloudless_sessions", Kind: KindGauge, From: FromServer, Help: "Agents that are connected to this server.",
	}

	SchedulingDecisions = Metric{
		Name: "cloudless_scheduling_decisions_total", Kind: KindCounter, From: FromServer,
		Labels: []string{"result"}, Help: "Scheduled replicas, by result: placed or unplaced.",
	}
	SchedulingSeconds = Metric{
		Name: "cloudless_scheduling_seconds", Kind: KindHistogram, Unit: "seconds", From: FromServer, Buckets: diskBuckets,
		Help: "Time of one scheduling round.",
	}
	PendingReplicas = Metric{
		Name: "cloudless_pending_replicas", Kind: KindGauge, From: FromServer, Labels: []string{"reason"},
		Help: "Replicas without a node, by main reason: the filter that refused most nodes (such as ready, driver, labels, fit or ports), quota (used up), nodes (none exist), revision (deleted), placing (about to be placed), preemption (victims are still ending), update (the predecessor has not ended yet), backoff (earlier replicas took their nodes down or were evicted) or secret (one that they use does not exist, has expired or is for others).",
	}

	NodeCPU = Metric{
		Name: "cloudless_node_cpu_used", Kind: KindGauge, Unit: "CPUs", From: FromServer, Labels: []string{"node"}, Help: "CPUs in use on the machine.",
	}
	NodeCPUCapacity = Metric{
		Name: "cloudless_node_cpu_capacity", Kind: KindGauge, Unit: "CPUs", From: FromServer, Labels: []string{"node"}, Help: "CPUs of the machine.",
	}
	NodeMemory = Metric{
		Name: "cloudless_node_memory_used_bytes", Kind: KindGauge, Unit: "bytes", From: FromServer, Labels: []string{"node"}, Help: "Memory in use on the machine.",
	}
	NodeMemoryCapacity = Metric{
		Name: "cloudless_node_memory_capacity_bytes", Kind: KindGauge, Unit: "bytes", From: FromServer, Labels: []string{"node"}, Help: "Memory of the machine.",
	}
	NodeDisk = Metric{
		Name: "cloudless_node_disk_used_bytes", Kind: KindGauge, Unit: "bytes", From: FromServer, Labels: []string{"node"}, Help: "Disk space in use on the file system of the data folder.",
	}
	NodeDiskCapacity = Metric{
		Name: "cloudless_node_disk_capacity_bytes", Kind: KindGauge, Unit: "bytes", From: FromServer, Labels: []string{"node"}, Help: "Size of the file system of the data folder.",
	}

	ReplicaCPU       = replicaMetric("cloudless_replica_cpu_seconds_total", KindCounter, "seconds", "CPU time used since the start.")
	ReplicaThrottled = replicaMetric("cloudless_replica_cpu_throttled_seconds_total", KindCounter, "seconds",
		"Time for which the CPU limit kept the replica from running.")
	ReplicaThrottledPeriods = replicaMetric("cloudless_replica_cpu_throttled_periods_total", KindCounter, "", "Periods in which the replica was throttled.")
	ReplicaMemory           = replicaMetric("cloudless_replica_memory_bytes", KindGauge, "bytes", "Memory in use, without reclaimable file cache.")
	ReplicaMemoryLimit      = replicaMetric("cloudless_replica_memory_limit_bytes", KindGauge, "bytes", "Memory limit; absent if there is none.")
	ReplicaPIDs             = replicaMetric("cloudless_replica_pids", KindGauge, "", "Processes and threads.")
	ReplicaReceived         = replicaMetric("cloudless_replica_network_received_bytes_total", KindCounter, "bytes", "Bytes received; absent on the host network.")
	ReplicaSent             = replicaMetric("cloudless_replica_network_sent_bytes_total", KindCounter, "bytes", "Bytes sent; absent on the host network.")
	ReplicaRead             = replicaMetric("cloudless_replica_block_read_bytes_total", KindCounter, "bytes", "Bytes read from block devices.")
	ReplicaWritten          = replicaMetric("cloudless_replica_block_written_bytes_total", KindCounter, "bytes", "Bytes written to block devices.")
	ReplicasOmitted         = Metric{
		Name: "cloudless_replica_usage_omitted", Kind: KindGauge, From: FromBoth,
		Help: "Running replicas whose usage is omitted because there are too many.",
	}

	NodeReceived = Metric{
		Name: "cloudless_node_network_received_bytes_total", Kind: KindCounter, Unit: "bytes", From: FromAgent, Help: "Bytes received by the machine's network devices.",
	}
	NodeSent = Metric{
		Name: "cloudless_node_network_sent_bytes_total", Kind: KindCounter, Unit: "bytes", From: FromAgent, Help: "Bytes sent by the machine's network devices.",
	}
	NodeRead = Metric{
		Name: "cloudless_node_block_read_bytes_total", Kind: KindCounter, Unit: "bytes", From: FromAgent, Help: "Bytes read from the machine's disks.",
	}
	NodeWritten = Metric{
		Name: "cloudless_node_block_written_bytes_total", Kind: KindCounter, Unit: "bytes", From: FromAgent, Help: "Bytes written to the machine's disks.",
	}

	AgentReplicas = Metric{
		Name: "cloudless_agent_replicas", Kind: KindGauge, From: FromAgent, Labels: []string{"phase"}, Help: "Replicas of this node by phase.",
	}
	AgentConnected = Metric{
		Name: "cloudless_agent_connected", Kind: KindGauge, From: FromAgent, Help: "1 while the agent has a session with a server.",
	}
	AgentSessions = Metric{
		Name: "cloudless_agent_sessions_total", Kind: KindCounter, From: FromAgent, Help: "Sessions opened with a server; all but the first are reconnects.",
	}
	AgentSessionFailures = Metric{
		Name: "cloudless_agent_session_failures_total", Kind: KindCounter, From: FromAgent, Help: "Sessions that ended or could not be opened.",
	}
	AgentDriverSeconds = Metric{
		Name: "cloudless_agent_driver_seconds", Kind: KindHistogram, Unit: "seconds", From: FromAgent, Buckets: driverBuckets,
		Labels: []string{"driver", "verb", "result"}, Help: "Time of driver calls, by verb (prepare, start, stop, remove) and result: done or failed.",
	}
	AgentRestarts = Metric{
		Name: "cloudless_agent_restarts_total", Kind: KindCounter, From: FromAgent, Help: "Restarts of replicas after an exit.",
	}
	AgentEvictions = Metric{
		Name: "cloudless_agent_evictions_total", Kind: KindCounter, From: FromAgent, Help: "Replicas that were evicted because memory or disk was short, or because they had written more than they may.",
	}
	AgentImagesRemoved = Metric{
		Name: "cloudless_agent_images_removed_total", Kind: KindCounter, From: FromAgent, Help: "Unused images that were removed because the disk was filling up.",
	}
	AgentImageBytesRemoved = Metric{
		Name: "cloudless_agent_image_bytes_removed_total", Kind: KindCounter, Unit: "bytes", From: FromAgent, Help: "Their size, with layers that other images may share.",
	}
	AgentExits = Metric{
		Name: "cloudless_agent_exits_total", Kind: KindCounter, From: FromAgent,
		Labels: []string{"result"}, Help: "Exits of replicas without a request to stop, by result: completed, failed, oom or unhealthy.",
	}
	AgentProbes = Metric{
		Name: "cloudless_agent_probes_total", Kind: KindCounter, From: FromAgent,
		Labels: []string{"probe", "result"}, Help: "Attempts of probes (startup, liveness, readiness), by result: success, failure or unknown.",
	}
	AgentPulls = Metric{
		Name: "cloudless_agent_pulls_total", Kind: KindCounter, From: FromAgent,
		Labels: []string{"result"}, Help: "Images requested from a driver, whether cached or not, by result: done or failed.",
	}
	AgentLogBytes = Metric{
		Name: "cloudless_agent_log_bytes", Kind: KindGauge, Unit: "bytes", From: FromAgent, Help: "Size of the logs of replicas on this node's disk.",
	}
	AgentMeasureSeconds = Metric{
		Name: "cloudless_agent_measure_seconds", Kind: KindHistogram, Unit: "seconds", From: FromAgent, Buckets: diskBuckets,
		Help: "Time to measure all running replicas once.",
	}

	ChunkOperations = Metric{
		Name: "cloudless_chunk_operations_total", Kind: KindCounter, From: FromServer, Labels: []string{"operation", "result"},
		Help: "Chunks of the object store that this server has put on nodes, got from them, or had them fetch from each other, by operation (put, get, fetch) and result: done, missing, damaged, full, cancelled or failed.",
	}
	ChunkBytes = Metric{
		Name: "cloudless_chunk_bytes_total", Kind: KindCounter, Unit: "bytes", From: FromServer, Labels: []string{"operation"},
		Help: "Bytes of these chunks, of those that were done.",
	}
	ChunkSeconds = Metric{
		Name: "cloudless_chunk_seconds", Kind: KindHistogram, Unit: "seconds", From: FromServer, Labels: []string{"operation"}, Buckets: callBuckets,
		Help: "Time to put a chunk durably on a node, or to get it.",
	}
	ChunksDeleted = Metric{
		Name: "cloudless_chunks_deleted_total", Kind: KindCounter, From: FromServer, Help: "Chunks that this server has deleted from nodes.",
	}
	ChunksDamaged = Metric{
		Name: "cloudless_chunks_damaged_total", Kind: KindCounter, From: FromServer, Help: "Chunks that nodes have reported to this server as damaged or missing.",
	}
	DisksConnected = Metric{
		Name: "cloudless_disks_connected", Kind: KindGauge, From: FromServer, Help: "Nodes whose chunks this server can reach now.",
	}
	DiskStoreUsed = Metric{
		Name: "cloudless_disk_store_used_bytes", Kind: KindGauge, Unit: "bytes", From: FromServer, Labels: []string{"node"}, Help: "What the object store uses of a node's disk.",
	}
	DiskStoreFree = Metric{
		Name: "cloudless_disk_store_free_bytes", Kind: KindGauge, Unit: "bytes", From: FromServer, Labels: []string{"node"}, Help: "What the object store may still use of a node's disk.",
	}
	DiskStoreChunks = Metric{
		Name: "cloudless_disk_store_chunks", Kind: KindGauge, From: FromServer, Labels: []string{"node"}, Help: "Chunks on a node's disk.",
	}
	ObjectChunksShort = Metric{
		Name: "cloudless_object_chunks_short", Kind: KindGauge, From: FromServer,
		Help: "Chunks that have fewer copies on nodes that answer than they should and could have. Only the server that leads the names of objects has this and what follows.",
	}
	ObjectChunksUnreachable = Metric{
		Name: "cloudless_object_chunks_unreachable", Kind: KindGauge, From: FromServer, Help: "Chunks of which no node that answers has a copy.",
	}
	ObjectChunksGarbage = Metric{
		Name: "cloudless_object_chunks_garbage", Kind: KindGauge, From: FromServer, Help: "Chunks that nothing refers to and that are not deleted yet.",
	}
	ObjectEpoch = Metric{
		Name: "cloudless_object_epoch", Kind: KindGauge, From: FromServer, Help: "Epoch of the collection of garbage.",
	}
	ObjectChunksRepaired = Metric{
		Name: "cloudless_object_chunks_repaired_total", Kind: KindCounter, From: FromServer, Help: "Copies that chunks with too few of them have got.",
	}
	ObjectBytesRepaired = Metric{
		Name: "cloudless_object_repaired_bytes_total", Kind: KindCounter, Unit: "bytes", From: FromServer, Help: "Bytes of these copies.",
	}
	ObjectRepairsFailed = Metric{
		Name: "cloudless_object_repairs_failed_total", Kind: KindCounter, From: FromServer, Help: "Copies that could not be made; they are tried again.",
	}
	ObjectPlacesCorrected = Metric{
		Name: "cloudless_object_places_corrected_total", Kind: KindCounter, From: FromServer, Labels: []string{"kind"},
		Help: "Copies about which a node and the names did not agree, by kind: missing or damaged (the node does not have it), found (the names did not know it), stray (nothing needs it; deleted), surplus (one more than needed).",
	}
	ObjectChunksCollected = Metric{
		Name: "cloudless_object_chunks_collected_total", Kind: KindCounter, From: FromServer, Help: "Chunks that nothing referred to and that were deleted from all nodes.",
	}
	ObjectsExpired = Metric{
		Name: "cloudless_objects_expired_total", Kind: KindCounter, From: FromServer, Help: "Objects, unfinished uploads and lists of blocks that were removed because their time was over.",
	}
	AgentChunkOperations = Metric{
		Name: "cloudless_agent_chunk_operations_total", Kind: KindCounter, From: FromAgent, Labels: []string{"operation", "result"},
		Help: "Chunks that this node has stored, read, or fetched from other nodes, by operation (put, get, fetch) and result: done, missing, damaged, full or failed.",
	}
	AgentChunkBytes = Metric{
		Name: "cloudless_agent_chunk_bytes_total", Kind: KindCounter, Unit: "bytes", From: FromAgent, Labels: []string{"operation"},
		Help: "Bytes of these chunks, of those that were done.",
	}

	MeshPeers = Metric{
		Name: "cloudless_mesh_peers", Kind: KindGauge, From: FromAgent,
		Labels: []string{"state"}, Help: "Other nodes by how this one reaches them (direct, relayed, down, idle).",
	}
	MeshReceived = Metric{
		Name: "cloudless_mesh_received_bytes_total", Kind: KindCounter, Unit: "bytes", From: FromAgent, Help: "Encrypted bytes received from other nodes.",
	}
	MeshSent = Metric{
		Name: "cloudless_mesh_sent_bytes_total", Kind: KindCounter, Unit: "bytes", From: FromAgent, Help: "Encrypted bytes sent to other nodes.",
	}
	MeshHandshakes = Metric{
		Name: "cloudless_mesh_handshakes_total", Kind: KindCounter, From: FromAgent, Help: "Keys that were agreed on with other nodes.",
	}
	DroppedPackets = Metric{
		Name: "cloudless_network_dropped_packets_total", Kind: KindCounter, From: FromAgent,
		Labels: []string{"rule"}, Help: "Packets that the rules of the node have dropped, by rule.",
	}

	S3Requests = Metric{
		Name: "cloudless_s3_requests_total", Kind: KindCounter, From: FromServer, Labels: []string{"operation", "code"},
		Help: "Requests to the S3 API that have ended, by operation, such as GetObject, and HTTP status code.",
	}
	S3Seconds = Metric{
		Name: "cloudless_s3_request_seconds", Kind: KindHistogram, Unit: "seconds", From: FromServer, Labels: []string{"operation"}, Buckets: callBuckets,
		Help: "Time to answer such a request, with the transfer of its content.",
	}
	S3Received = Metric{
		Name: "cloudless_s3_received_bytes_total", Kind: KindCounter, Unit: "bytes", From: FromServer, Help: "Bytes of the bodies of these requests.",
	}
	S3Sent = Metric{
		Name: "cloudless_s3_sent_bytes_total", Kind: KindCounter, Unit: "bytes", From: FromServer, Help: "Bytes of the bodies of their answers.",
	}
)

// Disks are the metrics of the disks of the object store, as a server knows them.
func Disks() []Metric {
	return []Metric{DisksConnected, DiskStoreUsed, DiskStoreFree, DiskStoreChunks}
}

// objectLoops are the metrics of the server that leads the names of objects.
func objectLoops() []Metric {
	return []Metric{
		ObjectChunksShort, ObjectChunksUnreachable, ObjectChunksGarbage, ObjectEpoch, ObjectChunksRepaired, ObjectBytesRepaired,
		ObjectRepairsFailed, ObjectPlacesCorrected, ObjectChunksCollected, ObjectsExpired,
	}
}

// Mesh is the metrics of a node's network.
func Mesh() []Metric {
	return []Metric{MeshPeers, MeshReceived, MeshSent, MeshHandshakes, DroppedPackets}
}

func replicaMetric(name string, kind Kind, unit, help string) Metric {
	return Metric{
		Name: name, Kind: kind, Unit: unit, Help: help, From: FromBoth,
		Labels: []string{"namespace", "workload", "replica", "node"},
	}
}

func routeMetric(name string, kind Kind, unit, help string) Metric {
	return Metric{
		Name: name, Kind: kind, Unit: unit, Help: help + " Only the leader counts.", From: FromServer, Labels: []string{"namespace", "route"},
	}
}

// ReplicaUsage are the metrics about single replicas.
func ReplicaUsage() []Metric {
	return []Metric{
		ReplicaCPU, ReplicaThrottled, ReplicaThrottledPeriods, ReplicaMemory, ReplicaMemoryLimit, ReplicaPIDs,
		ReplicaReceived, ReplicaSent, ReplicaRead, ReplicaWritten, ReplicasOmitted,
	}
}

// Catalogue is every metric of Cloudless itself, in the order of the docs.
func Catalogue() []Metric {
	all := []Metric{
		APICalls, APIErrors, APISeconds, APIOpen, HTTPRequests,
		RaftLeader, RaftTerm, RaftLastIndex, RaftCommitIndex, RaftAppliedIndex, RaftSnapshotIndex,
		RaftCommitSeconds, RaftFsyncSeconds, RaftSnapshotSeconds,
		StateIndex, StateObjects, Workloads, Replicas, Services, Endpoints, ReplicaRestarts, Nodes, DrainingReplicas, LostReplicas, DeferredReplicas, AutoscaleDecisions, MovedReplicas, Certificates, CertificatesFailing, CertificateExpiry, CertificateOrders, AuthorityExpiry, Rotation, Secrets, SecretsSent, SecretsDelivered, SecretFailures, Users, Images, Sessions,
		SchedulingDecisions, SchedulingSeconds, PendingReplicas,
		NodeCPU, NodeCPUCapacity, NodeMemory, NodeMemoryCapacity, NodeDisk, NodeDiskCapacity,
	}
	all = append(all, NamesLeader, NamesAppliedIndex, NamesProposals, NamesCommitSeconds, NamesFsyncSeconds)
	all = append(all, ChunkOperations, ChunkBytes, ChunkSeconds, ChunksDeleted, ChunksDamaged)
	all = append(all, S3Requests, S3Seconds, S3Received, S3Sent)
	all = append(all, Disks()...)
	all = append(all, objectLoops()...)
	all = append(all, Routes()...)
	all = append(all, ReplicaUsage()...)
	all = append(all, Mesh()...)
	return append(all,
		NodeReceived, NodeSent, NodeRead, NodeWritten,
		AgentReplicas, AgentConnected, AgentSessions, AgentSessionFailures, AgentDriverSeconds,
		AgentRestarts, AgentEvictions, AgentImagesRemoved, AgentImageBytesRemoved, AgentExits, AgentProbes, AgentPulls, AgentLogBytes, AgentMeasureSeconds,
		AgentChunkOperations, AgentChunkBytes,
	)
}
