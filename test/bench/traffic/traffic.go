// Package traffic measures what routes do with a service whose replicas change: the share of a canary, the first request
// to a sleeping service, and how soon a load gets another replica.
//
// It must not know how a cloud is started, nor how figures are recorded.
package traffic

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/spec"
)

const (
	app     = "web"
	appPort = 8080
	host    = "web.bench.test"
	// pollEvery is how often the API is asked where nothing is timed, and settle how long nodes have to learn a change.
	pollEvery = 50 * time.Millisecond
	settle    = 2 * time.Second
)

// Stand is a cloud on one machine, whose routes answer on a port of it.
type Stand struct {
	API *client.Client
	// Command runs a command of the binary.
	Command func(ctx context.Context, args ...string) error
	// Image is the example app, which answers with its greeting.
	Image string
	// Ingress is the port for HTTP.
	Ingress int
}

func (s *Stand) workload(greeting string, replicas int32) *v1.Workload {
	return &v1.Workload{Metadata: &v1.Metadata{Name: app}, Spec: &v1.WorkloadSpec{
		Image: s.Image, Args: []string{"--greeting", greeting}, Replicas: proto.Int32(replicas), Ports: []*v1.Port{{Name: "http", Port: appPort}},
	}}
}

// open starts the app, adds a route to it and waits for the first answer.
func (s *Stand) open(ctx context.Context, w *v1.Workload) error {
	if _, err := s.API.Workloads().ApplyWorkload(ctx, &v1.ApplyWorkloadRequest{Workload: w}); err != nil {
		return err
	}
	if err := s.untilServing(ctx, int(w.GetSpec().GetReplicas())); err != nil {
		return err
	}
	return s.Command(ctx, "route", "add", host, fmt.Sprintf("%s:%d", app, appPort))
}

// client returns a client that reaches every host by the route's port.
func (s *Stand) client() *http.Client {
	dialer := &net.Dialer{}
	return &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 256,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", s.Ingress))
		},
	}}
}

// ask sends a request by the route and returns the greeting of who answers.
func ask(ctx context.Context, by *http.Client) (string, error) {
	get, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/", nil)
	if err != nil {
		return "", err
	}
	response, err := by.Do(get)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", response.Status, body)
	}
	greeting, _, _ := strings.Cut(string(body), " ")
	return greeting, nil
}

func (s *Stand) replicas(ctx context.Context, is func(*v1.Replica) bool) (some []*v1.Replica, err error) {
	list, err := s.API.Workloads().ListReplicas(ctx, &v1.ListReplicasRequest{Workload: app})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.GetItems(), func(r *v1.Replica) bool { return !is(r) }), nil
}

// untilServing waits until there are so many replicas and all of them serve.
func (s *Stand) untilServing(ctx context.Context, want int) error {
	for {
		live, err := s.replicas(ctx, func(r *v1.Replica) bool { return spec.Live(r.GetStatus().GetPhase()) })
		if err != nil || len(live) == want && !slices.ContainsFunc(live, func(r *v1.Replica) bool { return !spec.Serves(r) }) {
			return err
		}
		if err := sleep.For(ctx, pollEvery); err != nil {
			return err
		}
	}
}

func (s *Stand) scale(ctx context.Context, to int32) error {
	_, err := s.API.Workloads().ScaleWorkload(ctx, &v1.ScaleWorkloadRequest{Name: app, Replicas: proto.Int32(to)})
	return err
}

// scaledTo scales and waits until that is so.
func (s *Stand) scaledTo(ctx context.Context, to int32) error {
	if err := s.scale(ctx, to); err != nil {
		return err
	}
	return s.untilServing(ctx, int(to))
}

// another measures the time from a beginning to when an already open watch shows one more replica that serves.
func (s *Stand) another(ctx context.Context, begin func() error) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := s.API.Workloads().WatchReplicas(ctx, &v1.WatchReplicasRequest{Workload: app})
	if err != nil {
		return 0, err
	}
	known := map[string]bool{}
	for synced := false; !synced; {
		c, err := watch.Recv()
		if err != nil {
			return 0, err
		}
		known[c.GetReplica().GetMetadata().GetUid()] = true
		synced = c.GetChange() == "synced"
	}
	began := time.Now()
	if err := begin(); err != nil {
		return 0, err
	}
	for {
		c, err := watch.Recv()
		if err != nil {
			return 0, err
		}
		if r := c.GetReplica(); !known[r.GetMetadata().GetUid()] && spec.Serves(r) {
			return time.Since(began), nil
		}
	}
}

// byHand is how long the same program needs to serve if somebody adds a replica.
func (s *Stand) byHand(ctx context.Context, from int32) (time.Duration, error) {
	if err := s.scaledTo(ctx, from); err != nil {
		return 0, err
	}
	return s.another(ctx, func() error { return s.scale(ctx, from+1) })
}

// off lets the number of replicas stay as it is.
func (s *Stand) off(ctx context.Context) error {
	return s.Command(ctx, "workload", "autoscale", app, "--off")
}

// A canary gets canaryShare of the requests, which canaryClients send on kept connections.
const (
	canaryShare, canaryRequests   = 5, 50_000
	canaryClients, canaryReplicas = 16, 4
)

// Canary returns the share of the new revision in percent while a canary deployment holds its first step, and how many
// requests that is of.
func (s *Stand) Canary(ctx context.Context) (share float64, requests int, err error) {
	version := func(greeting string) *v1.Workload {
		w := s.workload(greeting, canaryReplicas)
		w.Spec.Update = &v1.Update{Strategy: spec.StrategyCanary, MinReady: "1s", Canary: &v1.Canary{Steps: []string{fmt.Sprintf("%d%%", canaryShare)}, Bake: "1h"}}
		return w
	}
	if err := s.open(ctx, version("old")); err != nil {
		return 0, 0, err
	}
	if err := s.untilSucceeded(ctx); err != nil {
		return 0, 0, err
	}
	if _, err := s.API.Workloads().ApplyWorkload(ctx, &v1.ApplyWorkloadRequest{Workload: version("new")}); err != nil {
		return 0, 0, err
	}
	if err := s.untilDeployment(ctx, func(d *v1.Deployment) bool { return d.GetStatus().GetWeight() == canaryShare }); err != nil {
		return 0, 0, err
	}
	if err := sleep.For(ctx, settle); err != nil {
		return 0, 0, err
	}
	answers, err := s.count(ctx)
	if err != nil {
		return 0, 0, err
	}
	requests = answers["old"] + answers["new"]
	return 100 * float64(answers["new"]) / float64(requests), requests, s.untilDeployment(ctx, func(d *v1.Deployment) bool {
		return d.GetStatus().GetWeight() == canaryShare // all the time: a step does not come back
	})
}

// count sends the requests of Canary and counts the answers by greeting.
func (s *Stand) count(ctx context.Context) (map[string]int, error) {
	by := s.client()
	defer by.CloseIdleConnections()
	var (
		all    sync.WaitGroup
		mu     sync.Mutex
		failed error
		left   atomic.Int64
	)
	left.Store(canaryRequests)
	answers := map[string]int{}
	for range canaryClients {
		all.Go(func() {
			own := map[string]int{}
			for left.Add(-1) >= 0 {
				greeting, err := ask(ctx, by)
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					failed = err
					return
				}
				own[greeting]++
			}
			mu.Lock()
			defer mu.Unlock()
			for greeting, n := range own {
				answers[greeting] += n
			}
		})
	}
	all.Wait()
	return answers, failed
}

func (s *Stand) untilSucceeded(ctx context.Context) error {
	return s.untilDeployment(ctx, func(d *v1.Deployment) bool { return d.GetStatus().GetPhase() == spec.DeploymentSucceeded })
}

// untilDeployment waits until the newest deployment has got as far as wanted.
func (s *Stand) untilDeployment(ctx context.Context, reached func(*v1.Deployment) bool) error {
	for {
		w, err := s.API.Workloads().GetWorkload(ctx, &v1.GetWorkloadRequest{Name: app})
		if err != nil {
			return err
		}
		list, err := s.API.Deployments().ListDeployments(ctx, &v1.ListDeploymentsRequest{Workload: app})
		if err != nil {
			return err
		}
		for _, d := range list.GetItems() {
			switch {
			case d.GetMetadata().GetUid() != w.GetStatus().GetDeploymentUid():
			case reached(d):
				return nil
			case !spec.DeploymentOpen(d):
				return fmt.Errorf("deployment %s is %s: %s", d.GetMetadata().GetName(), d.GetStatus().GetPhase(), d.GetStatus().GetReason())
			}
		}
		if err := sleep.For(ctx, pollEvery); err != nil {
			return err
		}
	}
}

// Wake returns how long the first request to a sleeping service takes, and how long the same program needs to serve if
// it is scaled from 0 to 1 by hand, in turns.
func (s *Stand) Wake(ctx context.Context, times int) (first, byHand []time.Duration, err error) {
	if err := s.open(ctx, s.workload("awake", 1)); err != nil {
		return nil, nil, err
	}
	for range times {
		if err := s.Command(ctx, "workload", "autoscale", app, "--min", "0", "--max", "2", "--idle", "10s"); err != nil {
			return nil, nil, err
		}
		if err := s.untilServing(ctx, 0); err != nil {
			return nil, nil, err
		}
		if err := sleep.For(ctx, settle); err != nil {
			return nil, nil, err
		}
		by := s.client()
		began := time.Now()
		_, err := ask(ctx, by)
		took := time.Since(began)
		by.CloseIdleConnections()
		if err != nil {
			return nil, nil, fmt.Errorf("the request that wakes: %w", err)
		}
		if err := s.off(ctx); err != nil {
			return nil, nil, err
		}
		hand, err := s.byHand(ctx, 0)
		if err != nil {
			return nil, nil, err
		}
		first, byHand = append(first, took), append(byHand, hand)
	}
	return first, byHand, nil
}

// A load of calm requests a second becomes one of busy. A replica should get each of them.
const (
	Calm, Busy, Each = 25, 150, 50
	calmFor          = 20 * time.Second
	// phase moves each step against the ticks of the leader.
	phase = 900 * time.Millisecond
)

// Reactions are what React measures.
type Reactions struct {
	// Times are from a load step to the first additional replica that serves, and ByHand how long the same program needs
	// to serve if it is scaled from 1 to 2 by hand, in turns.
	Times, ByHand []time.Duration
	Sent, Failed  int
}

// React measures how soon a load gets another replica.
func (s *Stand) React(ctx context.Context, times int) (r Reactions, err error) {
	if err := s.open(ctx, s.workload("busy", 1)); err != nil {
		return r, err
	}
	for n := range times {
		if err := s.Command(ctx, "workload", "autoscale", app, "--min", "1", "--max", "4", "--requests", strconv.Itoa(Each)); err != nil {
			return r, err
		}
		took, err := s.step(ctx, calmFor+time.Duration(n)*phase, &r)
		if err != nil {
			return r, err
		}
		if err := s.off(ctx); err != nil {
			return r, err
		}
		hand, err := s.byHand(ctx, 1)
		if err != nil {
			return r, err
		}
		if err := s.scaledTo(ctx, 1); err != nil {
			return r, err
		}
		r.Times, r.ByHand = append(r.Times, took), append(r.ByHand, hand)
	}
	return r, nil
}

// step increases the load after so long, and measures until there is another replica.
func (s *Stand) step(ctx context.Context, after time.Duration, r *Reactions) (time.Duration, error) {
	l := s.startLoad(ctx)
	defer func() {
		l.stop()
		r.Sent, r.Failed = r.Sent+int(l.sent.Load()), r.Failed+int(l.failed.Load())
	}()
	if err := sleep.For(ctx, after); err != nil {
		return 0, err
	}
	return s.another(ctx, func() error { l.rate.Store(Busy); return nil })
}

// load sends requests at a rate that may change, each when it is due, whether earlier ones are answered or not.
type load struct {
	rate         atomic.Int64
	cancel       context.CancelFunc
	all          sync.WaitGroup
	sent, failed atomic.Int64
}

func (s *Stand) startLoad(ctx context.Context) *load {
	ctx, cancel := context.WithCancel(ctx)
	l := &load{cancel: cancel}
	l.rate.Store(Calm)
	by := s.client()
	l.all.Go(func() {
		for due := time.Now(); sleep.For(ctx, time.Until(due)) == nil; due = due.Add(time.Second / time.Duration(l.rate.Load())) {
			l.all.Go(func() {
				l.sent.Add(1)
				// What was sent is answered, also after the end.
				if _, err := ask(context.WithoutCancel(ctx), by); err != nil {
					l.failed.Add(1)
				}
			})
		}
	})
	return l
}

// stop ends the load and waits for the last answer.
func (l *load) stop() {
	l.cancel()
	l.all.Wait()
}
