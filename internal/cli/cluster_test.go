package cli

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/cli/phrase"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// TestMain ignores the clusters in the developer's environment.
func TestMain(m *testing.M) {
	for _, name := range []string{command.ContextEnv, client.ConfigEnv, local.DataDirEnv, command.TokenEnv, telemetry.OTLPEndpointEnv} {
		if err := os.Unsetenv(name); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// cluster is a fake server that remembers workloads and reports them as running.
type cluster struct {
	asked  []string             // the requests about images and revisions
	images []*cloudlessv1.Image // besides web:1
	nodes  []*cloudlessv1.Node  // box if nil
	cloudlessv1.UnimplementedWorkloadServiceServer
	cloudlessv1.UnimplementedDeploymentServiceServer
	cloudlessv1.UnimplementedNodeServiceServer
	cloudlessv1.UnimplementedTokenServiceServer
	cloudlessv1.UnimplementedImageServiceServer
	cloudlessv1.UnimplementedEventServiceServer
	cloudlessv1.UnimplementedClusterServiceServer
	cloudlessv1.UnimplementedPlanServiceServer
	cloudlessv1.UnimplementedNamespaceServiceServer
	cloudlessv1.UnimplementedExplainServiceServer
	routeStore

	config   string // client configuration with the address of this cluster
	address  string // where it listens
	ca       *identity.Trust
	revoked  string       // the secret of a revoked token
	registry http.Handler // answers everything that is not gRPC

	mu         sync.Mutex
	lastAuth   string // the authorization header of the newest call
	workloads  map[string]*cloudlessv1.Workload
	version    uint64
	replicas   []*cloudlessv1.Replica
	entries    []*cloudlessv1.LogEntry
	events     []*cloudlessv1.Event
	usage      []*cloudlessv1.Usage // the frames of a watch, which then stays silent
	lastEvents *cloudlessv1.ListEventsRequest
	lastLogs   *cloudlessv1.LogsRequest
	lastUpdate *cloudlessv1.UpdateNodeRequest
	// lastDrain and drained are the last request to drain a node, and its answer.
	lastDrain *cloudlessv1.DrainNodeRequest
	drained   *cloudlessv1.Node
	lastToken *cloudlessv1.CreateTokenRequest
	lastLogin *cloudlessv1.SetLoginRequest
	// standing is the status of every workload; "running" with all its replicas if nil.
	standing func(*cloudlessv1.Workload) *cloudlessv1.WorkloadStatus
	// moved is called before a plan is applied, and reports whether the plan is outdated.
	moved func() bool
	// story are the changes that a watch of replicas sends after the beginning.
	story func(send func(*cloudlessv1.Replica))
	exec  func(grpc.BidiStreamingServer[cloudlessv1.ExecRequest, cloudlessv1.ExecResponse]) error

	namespaces  map[string]*cloudlessv1.Namespace
	versions    *settled // of the configuration
	revisions   []*cloudlessv1.Revision
	deployments []*cloudlessv1.Deployment     // newest first
	end         *cloudlessv1.DeploymentStatus // of the newest one, while it is watched
	copy        func(copyServer) error
	forward     func(forwardServer) error
	watchEvents func(grpc.ServerStreamingServer[cloudlessv1.Event]) error // nil repeats a past one and adds a new one
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	ca, err := identity.NewCA("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	id, err := identity.NewID("test", identity.KindServer, "one")
	if err != nil {
		t.Fatal(err)
	}
	key, csr, err := identity.NewKeyAndCSR()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := ca.Issue(csr, id, identity.IssueOptions{TTL: time.Hour, Server: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	own, err := identity.NewCredentials(key, chain)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{
		workloads: map[string]*cloudlessv1.Workload{}, namespaces: map[string]*cloudlessv1.Namespace{},
		config: filepath.Join(t.TempDir(), "config.yaml"), address: listener.Addr().String(), ca: ca.Trust(),
	}
	server := grpc.NewServer(statusOf()...)
	cloudlessv1.RegisterWorkloadServiceServer(server, c)
	cloudlessv1.RegisterDeploymentServiceServer(server, c)
	cloudlessv1.RegisterNodeServiceServer(server, c)
	cloudlessv1.RegisterTokenServiceServer(server, c)
	cloudlessv1.RegisterImageServiceServer(server, c)
	cloudlessv1.RegisterEventServiceServer(server, c)
	cloudlessv1.RegisterClusterServiceServer(server, c)
	cloudlessv1.RegisterPlanServiceServer(server, c)
	cloudlessv1.RegisterNamespaceServiceServer(server, c)
	cloudlessv1.RegisterExplainServiceServer(server, c)
	c.registerRoutes(server)
	edge := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c.mu.Lock()
			c.lastAuth = r.Header.Get("Authorization")
			c.mu.Unlock()
			if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
				server.ServeHTTP(w, r)
				return
			}
			c.registry.ServeHTTP(w, r)
		}),
		TLSConfig:         identity.ServerTLS(ca.Trust(), own.Certificate),
		ReadHeaderTimeout: time.Minute,
	}
	go func() { _ = edge.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = edge.Close() })
	err = client.UpdateConfig(c.config, func(config *client.Config) error {
		config.Set(client.Context{
			Name: "test", Addresses: []string{c.address},
			Cluster: "test", CA: string(ca.Trust().PEM()), Token: "clapi_secret",
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// run runs one command line against the cluster.
func (c *cluster) run(ctx context.Context, stdin string, args ...string) result {
	return runCLI(ctx, Options{Stdin: strings.NewReader(stdin)}, append(args[:1:1], append([]string{"--config", c.config}, args[1:]...)...)...)
}

func (c *cluster) shown(w *cloudlessv1.Workload) *cloudlessv1.Workload {
	w = proto.Clone(w).(*cloudlessv1.Workload)
	if c.standing != nil {
		w.Status = c.standing(w)
	} else {
		w.Status = &cloudlessv1.WorkloadStatus{Phase: "running", Revision: 1, Desired: phrase.Desired(w), Running: phrase.Desired(w)}
	}
	return w
}

func (c *cluster) put(w *cloudlessv1.Workload) *cloudlessv1.Workload {
	w = proto.Clone(w).(*cloudlessv1.Workload)
	c.version++
	w.Metadata.Uid, w.Metadata.Version = "uid-"+w.GetMetadata().GetName(), c.version
	w.Metadata.CreateTime = timestamppb.New(time.Now().Add(-3 * time.Hour))
	c.workloads[w.GetMetadata().GetName()] = w
	return c.shown(w)
}

func (c *cluster) find(name string) (*cloudlessv1.Workload, error) {
	if w := c.workloads[name]; w != nil {
		return w, nil
	}
	return nil, status.Errorf(codes.NotFound, "workload %s does not exist in namespace default", name)
}

func (c *cluster) CreateWorkload(_ context.Context, r *cloudlessv1.CreateWorkloadRequest) (*cloudlessv1.Workload, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if name := r.GetWorkload().GetMetadata().GetName(); c.workloads[name] != nil {
		return nil, status.Errorf(codes.AlreadyExists, "workload %s exists already", name)
	}
	return c.put(r.GetWorkload()), nil
}

func (c *cluster) ApplyWorkload(_ context.Context, r *cloudlessv1.ApplyWorkloadRequest) (*cloudlessv1.ApplyWorkloadResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.workloads[r.GetWorkload().GetMetadata().GetName()]
	switch {
	case before == nil:
		return &cloudlessv1.ApplyWorkloadResponse{Workload: c.put(r.GetWorkload()), Result: "created"}, nil
	case proto.Equal(before.GetSpec(), r.GetWorkload().GetSpec()):
		return &cloudlessv1.ApplyWorkloadResponse{Workload: c.shown(before), Result: "unchanged"}, nil
	}
	return &cloudlessv1.ApplyWorkloadResponse{Workload: c.put(r.GetWorkload()), Result: "updated"}, nil
}

// tells sets the changes that the next watch of replicas sends.
func (c *cluster) tells(story func(send func(*cloudlessv1.Replica))) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.story = story
}

// makePlan plans without a scheduler: every new replica goes to box.
func (c *cluster) makePlan(r *cloudlessv1.PlanRequest) *cloudlessv1.Plan {
	plan := &cloudlessv1.Plan{}
	for _, o := range r.GetObjects() {
		n := o.GetNamespace()
		if n == nil {
			continue
		}
		before := c.namespaces[n.GetMetadata().GetName()]
		planned := &cloudlessv1.PlanChange{Kind: "Namespace", Name: n.GetMetadata().GetName(), Action: "unchanged"}
		if before == nil {
			planned.Action = "create"
		} else if !proto.Equal(before.GetSpec(), n.GetSpec()) {
			planned.Action = "update"
		}
		plan.Changes = append(plan.Changes, planned)
	}
	named := map[string]bool{}
	for _, w := range spec.WorkloadsIn(r.GetObjects()) {
		m := w.GetMetadata()
		named[m.GetName()] = true
		change := &cloudlessv1.PlanChange{Kind: "Workload", Namespace: m.GetNamespace(), Name: m.GetName(), Action: "unchanged"}
		before := c.workloads[m.GetName()]
		change.Version = before.GetMetadata().GetVersion()
		switch fields := spec.DiffWorkload(before, w); {
		case before == nil:
			change.Action = "create"
			change.Fields = []*cloudlessv1.FieldChange{{Path: "spec.image", After: w.GetSpec().GetImage()}}
			for range phrase.Desired(w) {
				change.Replicas = append(change.Replicas, &cloudlessv1.ReplicaStep{Action: "create", ToNode: "box"})
			}
		case len(fields) > 0:
			change.Action = "update"
			for _, f := range fields {
				change.Fields = append(change.Fields, &cloudlessv1.FieldChange{Path: f.Field, Before: f.Old, After: f.New})
			}
		}
		plan.Changes = append(plan.Changes, change)
	}
	if r.GetPrune() != "" {
		for _, name := range slices.Sorted(maps.Keys(c.workloads)) {
			if w := c.workloads[name]; !named[name] && w.GetMetadata().GetNamespace() == r.GetPruneNamespace() {
				plan.Changes = append(plan.Changes, &cloudlessv1.PlanChange{
					Kind: "Workload", Namespace: w.GetMetadata().GetNamespace(), Name: name, Action: "delete", Version: w.GetMetadata().GetVersion(),
				})
			}
		}
	}
	plan.Fingerprint = fmt.Sprintf("%x", sha256.Sum256(fmt.Append(nil, plan.GetChanges(), c.version)))
	return plan
}

func (c *cluster) MakePlan(_ context.Context, r *cloudlessv1.PlanRequest) (*cloudlessv1.Plan, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.makePlan(r), nil
}

func (c *cluster) ApplyPlan(_ context.Context, r *cloudlessv1.ApplyPlanRequest) (*cloudlessv1.ApplyPlanResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.moved != nil && c.moved() {
		return nil, status.Error(codes.Aborted, "the plan is outdated")
	}
	answer := &cloudlessv1.ApplyPlanResponse{Plan: c.makePlan(r.GetRequest()), Deployments: slices.Clone(c.deployments)}
	if answer.GetPlan().GetFingerprint() != r.GetFingerprint() {
		return nil, status.Error(codes.Aborted, "the plan is outdated")
	}
	for _, o := range r.GetRequest().GetObjects() {
		if n := o.GetNamespace(); n != nil {
			c.putNamespace(n)
			answer.Objects = append(answer.Objects, o)
			continue
		}
		w := o.GetWorkload()
		if before := c.workloads[w.GetMetadata().GetName()]; before != nil && len(spec.DiffWorkload(before, w)) == 0 {
			answer.Objects = append(answer.Objects, spec.ManifestOf(c.shown(before)))
			continue
		}
		answer.Objects = append(answer.Objects, spec.ManifestOf(c.put(w)))
	}
	for _, change := range answer.GetPlan().GetChanges() {
		if change.GetAction() == "delete" {
			delete(c.workloads, change.GetName())
		}
	}
	return answer, nil
}

func (c *cluster) GetWorkload(_ context.Context, r *cloudlessv1.GetWorkloadRequest) (*cloudlessv1.Workload, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, err := c.find(r.GetName())
	if err != nil {
		return nil, err
	}
	return c.shown(w), nil
}

func (c *cluster) ListWorkloads(_ context.Context, r *cloudlessv1.ListWorkloadsRequest) (*cloudlessv1.ListWorkloadsResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer := &cloudlessv1.ListWorkloadsResponse{}
	for _, w := range c.workloads {
		if r.GetSelection().GetNamespace() == "" || r.GetSelection().GetNamespace() == w.GetMetadata().GetNamespace() {
			answer.Items = append(answer.Items, c.shown(w))
		}
	}
	return answer, nil
}

func (c *cluster) ScaleWorkload(_ context.Context, r *cloudlessv1.ScaleWorkloadRequest) (*cloudlessv1.Workload, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, err := c.find(r.GetName())
	if err != nil {
		return nil, err
	}
	w = proto.Clone(w).(*cloudlessv1.Workload)
	w.Spec.Replicas = r.Replicas
	return c.put(w), nil
}

func (c *cluster) RestartWorkload(_ context.Context, r *cloudlessv1.RestartWorkloadRequest) (*cloudlessv1.Workload, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, err := c.find(r.GetName())
	if err != nil {
		return nil, err
	}
	return c.put(w), nil
}

func (c *cluster) DeleteWorkload(_ context.Context, r *cloudlessv1.DeleteWorkloadRequest) (*cloudlessv1.Workload, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, err := c.find(r.GetName())
	if err != nil {
		return nil, err
	}
	delete(c.workloads, r.GetName())
	return c.shown(w), nil
}

func (c *cluster) WatchWorkloads(r *cloudlessv1.WatchWorkloadsRequest, s grpc.ServerStreamingServer[cloudlessv1.WorkloadChange]) error {
	c.mu.Lock()
	var shown []*cloudlessv1.Workload
	for name, w := range c.workloads {
		if r.GetName() == "" || r.GetName() == name {
			shown = append(shown, c.shown(w))
		}
	}
	c.mu.Unlock()
	for _, w := range shown {
		if err := s.Send(&cloudlessv1.WorkloadChange{Change: "added", Workload: w}); err != nil {
			return err
		}
	}
	if err := s.Send(&cloudlessv1.WorkloadChange{Change: "synced"}); err != nil {
		return err
	}
	return untilEnd(s.Context())
}

// untilEnd is the rest of a watch. If the caller has a deadline, the server reaches it first.
func untilEnd(ctx context.Context) error {
	if _, limited := ctx.Deadline(); limited {
		return status.FromContextError(context.DeadlineExceeded).Err()
	}
	<-ctx.Done()
	return nil
}

func (c *cluster) ListReplicas(_ context.Context, r *cloudlessv1.ListReplicasRequest) (*cloudlessv1.ListReplicasResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer := &cloudlessv1.ListReplicasResponse{}
	for _, replica := range c.replicas {
		ended := replica.GetStatus().GetPhase() == "failed"
		if (r.GetWorkload() == "" || r.GetWorkload() == replica.GetSpec().GetWorkload()) && (!ended || r.GetEnded()) {
			answer.Items = append(answer.Items, replica)
		}
	}
	return answer, nil
}

func (c *cluster) GetReplica(_ context.Context, r *cloudlessv1.GetReplicaRequest) (*cloudlessv1.Replica, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, replica := range c.replicas {
		if replica.GetMetadata().GetName() == r.GetName() {
			return replica, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "replica %s does not exist in namespace default", r.GetName())
}

func (c *cluster) WatchReplicas(_ *cloudlessv1.WatchReplicasRequest, s grpc.ServerStreamingServer[cloudlessv1.ReplicaChange]) error {
	for _, replica := range c.replicas {
		if err := s.Send(&cloudlessv1.ReplicaChange{Change: "added", Replica: replica}); err != nil {
			return err
		}
	}
	if err := s.Send(&cloudlessv1.ReplicaChange{Change: "synced"}); err != nil {
		return err
	}
	c.mu.Lock()
	story := c.story
	c.mu.Unlock()
	if story != nil {
		story(func(r *cloudlessv1.Replica) { _ = s.Send(&cloudlessv1.ReplicaChange{Change: "changed", Replica: r}) })
	}
	if story != nil || len(c.replicas) == 0 {
		return untilEnd(s.Context())
	}
	return s.Send(&cloudlessv1.ReplicaChange{Change: "removed", Replica: c.replicas[0]})
}

func (c *cluster) Logs(r *cloudlessv1.LogsRequest, s grpc.ServerStreamingServer[cloudlessv1.LogEntry]) error {
	c.mu.Lock()
	c.lastLogs = r
	c.mu.Unlock()
	for _, entry := range c.entries {
		if r.GetReplica() != "" && r.GetReplica() != entry.GetReplica() {
			continue
		}
		if err := s.Send(entry); err != nil {
			return err
		}
	}
	if r.GetFollow() && (r.GetUntil() == nil || r.GetUntil().AsTime().After(time.Now())) {
		<-s.Context().Done()
	}
	return nil
}

func (c *cluster) Exec(s grpc.BidiStreamingServer[cloudlessv1.ExecRequest, cloudlessv1.ExecResponse]) error {
	return c.exec(s)
}

func (c *cluster) ListNodes(context.Context, *cloudlessv1.ListNodesRequest) (*cloudlessv1.ListNodesResponse, error) {
	if c.nodes != nil {
		return &cloudlessv1.ListNodesResponse{Items: c.nodes}, nil
	}
	return &cloudlessv1.ListNodesResponse{Items: []*cloudlessv1.Node{box}}, nil
}

func (c *cluster) GetNode(_ context.Context, r *cloudlessv1.GetNodeRequest) (*cloudlessv1.Node, error) {
	if r.GetName() != "box" {
		return nil, status.Errorf(codes.NotFound, "node %s does not exist", r.GetName())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.drained != nil {
		return c.drained, nil
	}
	return box, nil
}

var box = &cloudlessv1.Node{
	Metadata: &cloudlessv1.Metadata{Name: "box", Uid: "uid-box", Labels: map[string]string{"disk": "ssd", "arch": "arm"}},
	Spec: &cloudlessv1.NodeSpec{
		SubnetV4: "10.64.0.0/24", Price: 40, Bandwidth: "1G", Taints: []*cloudlessv1.Taint{{Key: "spot", Effect: "PreferNoSchedule"}},
	},
	Status: &cloudlessv1.NodeStatus{
		State:       "ready",
		Capacity:    &cloudlessv1.NodeResources{Cpu: "4", Memory: "8Gi", Disk: "100Gi", Gpu: 2},
		Gpus:        []*cloudlessv1.NodeGpu{{Id: "0000:01:00.0", Model: "tesla-t4"}, {Id: "0000:02:00.0", Model: "a100"}},
		Allocatable: &cloudlessv1.NodeResources{Cpu: "6", Memory: "7Gi", Bandwidth: "1G", Gpu: 2},
		Requested:   &cloudlessv1.NodeResources{Cpu: "1", Memory: "1Gi", Gpu: 1, Bandwidth: "100M"},
		Usage:       &cloudlessv1.NodeResources{Cpu: "250m", Memory: "1Gi"},
		Conditions:  []*cloudlessv1.Condition{{Type: "Ready", Status: true}, {Type: "DiskPressure", Status: true, Reason: "91 % used"}},
		Info:        &cloudlessv1.NodeInfo{Os: "linux", Arch: "arm64", Kernel: "6.1", Version: "v1", Battery: true},
		Drivers:     []*cloudlessv1.DriverInfo{{Name: "container", Version: "1.6", Missing: []string{"keep logs across restarts of containerd"}}},
		LastSeen:    timestamppb.New(time.Now().Add(-3 * time.Hour)),
		Reliability: &cloudlessv1.Reliability{
			Score:        91,
			Uptime:       &cloudlessv1.ReliabilityPart{Score: 99, Basis: "there for 99h of the 100h that count"},
			ResponseTime: &cloudlessv1.ReliabilityPart{Score: 80, Basis: "answers in 25 ms"},
			SuccessRate:  &cloudlessv1.ReliabilityPart{Score: 100, Basis: "no replica was started lately"},
			Capacity:     &cloudlessv1.ReliabilityPart{Score: 70, Basis: "35 % of memory is free, on average"},
			Stability:    &cloudlessv1.ReliabilityPart{Score: 100, Basis: "not lost lately"},
		},
	},
}

// UpdateNode returns a node with only the requested values.
func (c *cluster) UpdateNode(ctx context.Context, r *cloudlessv1.UpdateNodeRequest) (*cloudlessv1.Node, error) {
	found, err := c.GetNode(ctx, &cloudlessv1.GetNodeRequest{Name: r.GetName()})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastUpdate = r
	n := proto.CloneOf(found)
	n.Metadata.Labels, n.Spec.Taints, n.Spec.Price, n.Spec.Bandwidth = r.GetLabels(), r.GetTaints(), r.GetPrice(), r.GetBandwidth()
	return n, nil
}

func (c *cluster) CreateToken(_ context.Context, r *cloudlessv1.CreateTokenRequest) (*cloudlessv1.CreateTokenResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastToken = r
	return &cloudlessv1.CreateTokenResponse{
		Token:  &cloudlessv1.Token{Metadata: &cloudlessv1.Metadata{Name: "t1"}, Spec: &cloudlessv1.TokenSpec{Role: r.GetRole()}},
		Secret: "cljoin_secret",
	}, nil
}

func (c *cluster) ListTokens(context.Context, *cloudlessv1.ListTokensRequest) (*cloudlessv1.ListTokensResponse, error) {
	return &cloudlessv1.ListTokensResponse{Items: []*cloudlessv1.Token{
		{
			Metadata: &cloudlessv1.Metadata{Name: "t1"},
			Spec:     &cloudlessv1.TokenSpec{Role: "node", Uses: 2, ExpireTime: timestamppb.New(time.Now().Add(-time.Hour))},
			Status:   &cloudlessv1.TokenStatus{Used: 1},
		},
		{Metadata: &cloudlessv1.Metadata{Name: "ci"}, Spec: &cloudlessv1.TokenSpec{Role: "viewer"}},
	}}, nil
}

func (c *cluster) DeleteToken(context.Context, *cloudlessv1.DeleteTokenRequest) (*cloudlessv1.DeleteTokenResponse, error) {
	return &cloudlessv1.DeleteTokenResponse{}, nil
}

func (c *cluster) ListImages(context.Context, *cloudlessv1.ListImagesRequest) (*cloudlessv1.ListImagesResponse, error) {
	return &cloudlessv1.ListImagesResponse{Items: append([]*cloudlessv1.Image{{Status: &cloudlessv1.ImageStatus{
		Repository: "web", Tag: "1", Digest: "sha256:0123456789abcdef", Size: 2_345_678, Platforms: []string{"linux/amd64"},
	}}}, c.images...)}, nil
}

func (c *cluster) ListEvents(_ context.Context, r *cloudlessv1.ListEventsRequest) (*cloudlessv1.ListEventsResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastEvents = r
	ofNode := func(e *cloudlessv1.Event) bool { return e.GetSpec().GetObjectKind() == "Node" && r.GetWorkload() != "" }
	events := slices.DeleteFunc(slices.Clone(c.events), ofNode)
	if size := int(r.GetPage().GetSize()); size > 0 {
		events = events[:min(len(events), size)]
	}
	return &cloudlessv1.ListEventsResponse{Items: events}, nil
}

func (c *cluster) WatchEvents(_ *cloudlessv1.WatchEventsRequest, s grpc.ServerStreamingServer[cloudlessv1.Event]) error {
	if c.watchEvents != nil {
		return c.watchEvents(s)
	}
	// One that is also in the past, and a new one.
	for _, event := range []*cloudlessv1.Event{c.events[0], event("e9", "Started", "replica web-9 runs")} {
		if err := s.Send(event); err != nil {
			return err
		}
	}
	return nil
}

func event(uid, reason, message string) *cloudlessv1.Event {
	return &cloudlessv1.Event{
		Metadata: &cloudlessv1.Metadata{Uid: uid},
		Spec: &cloudlessv1.EventSpec{
			Time: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)), Severity: "info",
			Reason: reason, Message: message, ObjectKind: "Workload", ObjectName: "web",
		},
	}
}

func (c *cluster) GetCluster(context.Context, *cloudlessv1.GetClusterRequest) (*cloudlessv1.Cluster, error) {
	return &cloudlessv1.Cluster{Status: &cloudlessv1.ClusterStatus{Servers: []*cloudlessv1.ServerStatus{{Address: "box:7700", Version: "v1.2.4"}}}}, nil
}
