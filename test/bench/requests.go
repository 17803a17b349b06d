package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/test/bench/routes"
)

const (
	shopApp   = "web"
	shopPort  = 8080
	shopImage = "hello:1"
)

// clientNote says what the clients do, because it decides which requests can fail.
const clientNote = "clients are Go's http.Client in replicas on every node; it repeats a GET by itself only if the server closes a connection that was idle"

// shop is a field with the example backend and a client on each node.
type shop struct {
	*field
	load    string // the program that sends requests
	clients []shopClient
}

// shopClient is a replica from which requests are sent.
type shopClient struct{ node, network string }

func (l *lab) newShop(ctx context.Context) (_ *shop, err error) {
	s := &shop{}
	if s.load, err = l.build(ctx, "load", "./test/bench/load"); err != nil {
		return nil, err
	}
	hello, err := l.build(ctx, "hello", "./examples/hello")
	if err != nil {
		return nil, err
	}
	if s.field, err = l.newField(ctx, 3); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := pushProgram(ctx, s.api, hello, shopImage); err != nil {
		return nil, err
	}
	return s, s.addClients(ctx)
}

func (s *shop) addClients(ctx context.Context) error {
	sleeper, err := s.push(ctx, s.api)
	if err != nil {
		return err
	}
	if _, err := s.api.Workloads().CreateWorkload(ctx, &v1.CreateWorkloadRequest{Workload: &v1.Workload{
		Metadata: &v1.Metadata{Name: "client"}, Spec: &v1.WorkloadSpec{Image: sleeper, Kind: spec.KindDaemon},
	}}); err != nil {
		return err
	}
	for {
		list, err := s.api.Workloads().ListReplicas(ctx, &v1.ListReplicasRequest{Workload: "client"})
		if err != nil {
			return err
		}
		serving := slices.DeleteFunc(list.GetItems(), func(r *v1.Replica) bool { return !spec.Serves(r) })
		if len(serving) < len(s.nodes) {
			if err := sleep.For(ctx, 50*time.Millisecond); err != nil {
				return err
			}
			continue
		}
		for _, r := range serving {
			found, err := filepath.Glob("/run/cloudless/*/netns/" + r.GetMetadata().GetUid())
			if err != nil || len(found) != 1 {
				return fmt.Errorf("the network namespace of %s: found %v, %w", r.GetMetadata().GetName(), found, err)
			}
			s.clients = append(s.clients, shopClient{r.GetSpec().GetNode(), found[0]})
		}
		return nil
	}
}

// app is the example backend, which answers with its version.
func (s *shop) app(name, version string, replicas int32) *v1.Workload {
	return &v1.Workload{
		Metadata: &v1.Metadata{Name: name},
		Spec: &v1.WorkloadSpec{
			Image: shopImage, Args: []string{"--greeting", version}, Replicas: proto.Int32(replicas),
			Ports: []*v1.Port{{Name: "http", Port: shopPort}},
		},
	}
}

// withReadiness adds a readiness probe.
func withReadiness(w *v1.Workload) *v1.Workload {
	w.Spec.Probes = &v1.Probes{Readiness: &v1.Probe{Http: &v1.HttpProbe{Path: "/"}}}
	return w
}

// url is the virtual address of the service.
func (s *shop) url(ctx context.Context) (string, error) {
	kind, _ := api.KindOf("service")
	for {
		one, err := s.api.Objects(kind).Get(ctx, "default", shopApp)
		if err != nil {
			return "", err
		}
		if address := one.(*v1.Service).GetStatus().GetAddressV4(); address != "" {
			return fmt.Sprintf("http://%s:%d/", address, shopPort), nil
		}
		if err := sleep.For(ctx, 50*time.Millisecond); err != nil {
			return "", err
		}
	}
}

// deploy applies a workload and waits until its deployment has got as far as wanted.
func (s *shop) deploy(ctx context.Context, w *v1.Workload, reached func(*v1.Deployment) bool) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := s.api.Deployments().WatchDeployments(ctx, &v1.WatchDeploymentsRequest{Workload: shopApp})
	if err != nil {
		return 0, err
	}
	began := time.Now()
	applied, err := s.api.Workloads().ApplyWorkload(ctx, &v1.ApplyWorkloadRequest{Workload: w})
	if err != nil {
		return 0, err
	}
	uid := applied.GetWorkload().GetStatus().GetDeploymentUid()
	last, err := await(watch.Recv, func(c *v1.DeploymentChange) bool {
		d := c.GetDeployment()
		return d.GetMetadata().GetUid() == uid && (reached(d) || !spec.DeploymentOpen(d))
	})
	if err != nil {
		return 0, err
	}
	if d := last.GetDeployment(); !reached(d) {
		return 0, fmt.Errorf("deployment %s is %s: %s", d.GetMetadata().GetName(), d.GetStatus().GetPhase(), d.GetStatus().GetReason())
	}
	return time.Since(began), nil
}

func inPhase(phase string) func(*v1.Deployment) bool {
	return func(d *v1.Deployment) bool { return d.GetStatus().GetPhase() == phase }
}

// request is one request of the load, see test/bench/load.
type request struct {
	Client int    `json:"c"`
	At     int64  `json:"at"`
	Took   int64  `json:"took"`
	Answer string `json:"a"`
	Error  string `json:"e"`
	node   string
	fresh  bool // whether it made a connection of its own
}

func (r request) began() time.Time { return time.UnixMicro(r.At) }
func (r request) ended() time.Time { return time.UnixMicro(r.At + r.Took) }

// requests are those of all clients.
type requests []request

// between are those that began in a span of time.
func (all requests) between(s span) requests {
	return all.having(func(r request) bool { return !r.began().Before(s.begin) && r.began().Before(s.end) })
}

func (all requests) having(is func(request) bool) (some requests) {
	for _, r := range all {
		if is(r) {
			some = append(some, r)
		}
	}
	return some
}

func (all requests) failed() requests {
	return all.having(func(r request) bool { return r.Error != "" })
}
func (all requests) fresh() requests { return all.having(func(r request) bool { return r.fresh }) }
func (all requests) kept() requests  { return all.having(func(r request) bool { return !r.fresh }) }

// times are how long they took, in ms.
func (all requests) times() (s sample) {
	for _, r := range all {
		s = append(s, float64(r.Took)/1000)
	}
	return s
}

// count says how many there were, and why some failed.
func (all requests) count() string {
	text := fmt.Sprintf("%d requests with keep-alive, of which %d failed, and %d without, of which %d failed",
		len(all.kept()), len(all.kept().failed()), len(all.fresh()), len(all.fresh().failed()))
	reasons := map[string]int{}
	for _, r := range all.failed() {
		reasons[r.node+": "+r.Error]++
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		text += fmt.Sprintf("; %d times %s", reasons[reason], reason)
	}
	return text
}

// senders are clients that send requests.
type senders []*sender

type sender struct {
	cmd   *exec.Cmd
	in    io.Closer
	out   bytes.Buffer
	node  string
	fresh bool
}

// startLoad sends requests from all nodes to the service, at a rate for those with keep-alive and another for those
// without.
func (s *shop) startLoad(ctx context.Context, kept, fresh float64) (all senders, err error) {
	url, err := s.url(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range s.clients {
		for _, rate := range []float64{kept, fresh} {
			if rate == 0 {
				continue
			}
			l := &sender{node: c.node, fresh: len(all)%2 == 1 || kept == 0}
			l.cmd = inNetwork(ctx, c.network, s.load, "-url", url,
				fmt.Sprintf("-keep-alive=%t", !l.fresh), "-rate", fmt.Sprint(rate/float64(len(s.clients))))
			l.cmd.Stdout, l.cmd.Stderr = &l.out, s.lab.out
			if l.in, err = l.cmd.StdinPipe(); err == nil {
				err = l.cmd.Start()
			}
			if err != nil {
				_, _ = all.stop()
				return nil, err
			}
			all = append(all, l)
		}
	}
	return all, nil
}

// stop ends all clients and returns what they did.
func (all senders) stop() (sent requests, err error) {
	for _, l := range all {
		_ = l.in.Close()
	}
	for _, l := range all {
		err = errors.Join(err, l.cmd.Wait())
		for lines := json.NewDecoder(bufio.NewReader(&l.out)); lines.More(); {
			r := request{node: l.node, fresh: l.fresh}
			if bad := lines.Decode(&r); bad != nil {
				return nil, errors.Join(err, bad)
			}
			sent = append(sent, r)
		}
	}
	return sent, err
}

var routeMeasurements = []measurement{
	{
		name: "route_vs_nginx", unit: "per s", measure: measureRoutes(routeThroughput), target: ratioAtLeast(0.5),
		what:  "requests by TLS and HTTP/1.1 through a route on 64 connections of h2load, 1 KiB each, median of 5 rounds",
		floor: "the same through Debian's nginx with 2 workers and 64 kept connections to the same backend, in turns",
	},
	{
		name: "route_p99", unit: "ms", measure: measureRoutes(routeLatency), target: ratioAtMost(2),
		what:  "P99 of the same at 4,000 requests a second, median of 5 rounds",
		floor: "the same through nginx, in turns",
	},
	{
		name: "route_rss", unit: "MB", measure: measureRoutes(routeMemory), target: noTarget,
		what:  "VmRSS of the ingress process with 1,000 routes and certificates, each used once",
		floor: "none",
	},
}

// measureRoutes measures the ingress beside nginx.
func measureRoutes(of func(context.Context, *routes.Rig) (result, error)) func(context.Context, *lab) (result, error) {
	return func(ctx context.Context, l *lab) (_ result, err error) {
		program, err := l.build(ctx, "cloudless-ingress", "./cmd/cloudless-ingress", "-tags", "no_grpc")
		if err != nil {
			return result{}, err
		}
		rig, err := routes.New(ctx, l.dir, program)
		if err != nil {
			return result{}, err
		}
		defer func() { err = errors.Join(err, rig.Close()) }()
		return of(ctx, rig)
	}
}

func routeThroughput(ctx context.Context, r *routes.Rig) (result, error) {
	ours, nginx, err := r.Throughput(ctx)
	return result{value: ours, floor: nginx}, err
}

// routeRate is how many requests a second both pass without effort.
const routeRate = 4000

func routeLatency(ctx context.Context, r *routes.Rig) (result, error) {
	ours, nginx, err := r.Latency(ctx, routeRate)
	return result{value: float64(ours.Microseconds()) / 1000, floor: float64(nginx.Microseconds()) / 1000}, err
}

func routeMemory(ctx context.Context, r *routes.Rig) (result, error) {
	mb, err := r.Memory(ctx)
	return result{value: mb}, err
}
