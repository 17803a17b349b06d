package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/test/bench/secrets"
)

const (
	fanoutNodes      = 1000
	fanoutNamespaces = 50
	fanoutServices   = 20 // in each namespace
	fanoutEndpoints  = 10 // of each service
	fanoutRate       = 100
	fanoutTime       = time.Minute
	fanoutWriters    = 16
)

// measureFanout changes endpoints, and lets nodes say how long it took until they knew.
func measureFanout(ctx context.Context, l *lab) (r result, err error) {
	err = l.withServer(ctx, "fanout", func(c *cloud, y *yard, conn *grpc.ClientConn) (err error) {
		r, err = c.fanoutTo(ctx, y, conn)
		return err
	})
	return r, err
}

// fanoutTo connects the nodes before it measures.
func (c *cloud) fanoutTo(ctx context.Context, y *yard, conn *grpc.ClientConn) (_ result, err error) {
	if err := makeServices(ctx, conn); err != nil {
		return result{}, err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	seen, err := watchNodes(watching, v1.NewNodeServiceClient(conn))
	if err != nil {
		return result{}, err
	}
	args := []string{"--sources", fleetSources, "--follow", fmt.Sprint(fanoutNamespaces)}
	f, err := c.startFleet(ctx, fleetPlan{nodes: fanoutNodes, args: args, inside: y.inside}, conn)
	if err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, f.end()) }()
	if err := f.await(ctx, seen); err != nil {
		return result{}, err
	}
	if err := sleep.For(ctx, fleetSettle); err != nil {
		return result{}, err
	}
	return c.fanout(ctx, f, conn)
}

// makeServices creates all services and their endpoints.
func makeServices(ctx context.Context, conn *grpc.ClientConn) error {
	namespaces, services, endpoints := v1.NewNamespaceServiceClient(conn), v1.NewServiceServiceClient(conn), v1.NewEndpointServiceClient(conn)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fanoutWriters)
	for n := range fanoutNamespaces {
		g.Go(func() error {
			namespace := fmt.Sprintf("ns-%d", n)
			_, err := namespaces.CreateNamespace(ctx, &v1.CreateNamespaceRequest{Namespace: &v1.Namespace{Metadata: &v1.Metadata{Name: namespace}}})
			for i := 0; err == nil && i < fanoutServices; i++ {
				s := &v1.Service{
					Metadata: &v1.Metadata{Namespace: namespace, Name: fmt.Sprintf("s-%d", i)},
					Spec:     &v1.ServiceSpec{Ports: []*v1.ServicePort{{Port: 80}}},
				}
				if _, err = services.CreateService(ctx, &v1.CreateServiceRequest{Service: s}); err != nil {
					break
				}
				for e := 0; err == nil && e < fanoutEndpoints-1; e++ {
					_, err = endpoints.RegisterEndpoint(ctx, &v1.RegisterEndpointRequest{
						Namespace: namespace, Service: s.Metadata.Name, Name: fmt.Sprintf("e-%d", e), Addresses: []string{fmt.Sprintf("198.51.100.%d", e+1)},
					})
				}
			}
			return err
		})
	}
	return g.Wait()
}

// fanout changes endpoints at a steady rate.
func (c *cloud) fanout(ctx context.Context, f *fleetProcess, conn *grpc.ClientConn) (result, error) {
	pid, err := c.pid()
	if err != nil {
		return result{}, err
	}
	before, err := cpuTicks(pid)
	if err != nil {
		return result{}, err
	}
	endpoints := v1.NewEndpointServiceClient(conn)
	g, calling := errgroup.WithContext(ctx)
	g.SetLimit(fanoutRate) // more calls than that at once are a second late
	ticker := time.NewTicker(time.Second / fanoutRate)
	defer ticker.Stop()
	began, changes := time.Now(), 0
	for ; time.Since(began) < fanoutTime && calling.Err() == nil; changes++ {
		<-ticker.C
		at, i := time.Now(), changes
		g.Go(func() error { return clock(calling, endpoints, i, at) })
	}
	if err := g.Wait(); err != nil {
		return result{}, err
	}
	took := time.Since(began).Seconds()
	after, err := cpuTicks(pid)
	if err != nil {
		return result{}, err
	}
	if err := sleep.For(ctx, time.Second); err != nil { // the last ones arrive
		return result{}, err
	}
	times, err := f.changes(ctx)
	if err != nil {
		return result{}, err
	}
	wanted := changes * fanoutNodes / fanoutNamespaces
	lost := len(times) < wanted*99/100 // then a quantile of the rest says nothing
	return result{value: times.quantile(0.95), absent: lost, notes: []string{
		times.spread("call to node in ms"),
		fmt.Sprintf("%d of %d expected news arrived, of %.4g changes a second", len(times), wanted, float64(changes)/took),
		fmt.Sprintf("the server used %.2g cores", float64(after-before)/ticksPerSecond/took),
	}}, nil
}

// clock registers an endpoint whose address says when.
func clock(ctx context.Context, endpoints v1.EndpointServiceClient, i int, at time.Time) error {
	address := netip.MustParseAddr("fd00::").As16()
	binary.BigEndian.PutUint64(address[8:], uint64(at.UnixNano()))
	_, err := endpoints.RegisterEndpoint(ctx, &v1.RegisterEndpointRequest{
		Namespace: fmt.Sprintf("ns-%d", i%fanoutNamespaces), Service: fmt.Sprintf("s-%d", i/fanoutNamespaces%fanoutServices), Name: "clock",
		Addresses: []string{netip.AddrFrom16(address).String()},
	})
	return err
}

// changes asks how long the news took, in milliseconds.
func (f *fleetProcess) changes(ctx context.Context) (sample, error) {
	if _, err := fmt.Fprintln(f.in, "changes"); err != nil {
		return nil, err
	}
	w, err := f.answer(ctx)
	return w.Millis, err
}

var secretMeasurements = []measurement{
	{
		name: "secret_deliver", unit: "ms", measure: measureSecrets, target: under(500),
		what:  "from setting a secret until it is in a file of 10 real replicas and acknowledged by the nodes of 1,000 simulated ones, as a watch sees it, median of 9",
		floor: "none",
	},
}

const (
	secretNodes    = 1000
	secretReplicas = 10 // real ones
	secretVersions = 9
)

// measureSecrets measures on a cloud of one real node, which simulated ones join.
func measureSecrets(ctx context.Context, l *lab) (_ result, err error) {
	c, err := l.newStage(ctx, "secrets")
	if err != nil {
		return result{}, err
	}
	defer c.close()
	nodes, err := c.api.Nodes().ListNodes(ctx, &v1.ListNodesRequest{})
	if err != nil {
		return result{}, err
	}
	if err := c.run(ctx, "node", "label", nodes.GetItems()[0].GetMetadata().GetName(), secrets.Where+"="+secrets.Real); err != nil {
		return result{}, err
	}
	conn, err := c.connect()
	if err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	seen, err := watchNodes(watching, v1.NewNodeServiceClient(conn))
	if err != nil {
		return result{}, err
	}
	here := func(start func() error) error { return start() }
	f, err := c.startFleet(ctx, fleetPlan{nodes: secretNodes, args: []string{"--sources", fleetSources, "--label", secrets.Where + "=" + secrets.Simulated}, inside: here}, conn)
	if err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, f.end()) }()
	if err := f.await(ctx, seen); err != nil {
		return result{}, err
	}
	took, err := (&secrets.Stand{API: c.api, Image: c.image, Real: secretReplicas, Simulated: secretNodes}).Deliver(ctx, secretVersions)
	all := inMilliseconds(took)
	return result{value: all.median(), notes: []string{all.spread("each in ms"), "one server, which is also the real node; a version has 22 bytes"}}, err
}
