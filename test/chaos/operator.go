package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/spec"
)

const (
	shopName     = "shop"
	shopReplicas = 4
	shopLeast    = 3 // minAvailable

	// The names of releases begin with what they are; the program knows them, too.
	goodRelease   = "good"
	neverReady    = "never-ready"
	exitsInMoment = "exits"

	drainLasts, drainPause = 15 * time.Second, 4 * time.Second
)

func badRelease(release string) bool {
	return strings.HasPrefix(release, neverReady) || strings.HasPrefix(release, exitsInMoment)
}

// outcomeOf is how a deployment of a release must end.
func outcomeOf(release string) string {
	if badRelease(release) {
		return spec.DeploymentRolledBack
	}
	return spec.DeploymentSucceeded
}

// release is one deployment of the shop.
type release struct {
	name    string
	ended   *v1.Deployment
	leaders []string // one after the other while it was open
}

// operator releases the shop again and again, and takes nodes out of service, while the faults happen: most releases
// are good, and some are bad.
type operator struct {
	lab   *lab
	image string
	seed  uint64

	releases        []release
	drains, emptied int
}

// open runs the shop and waits until it answers.
func (l *lab) open(ctx context.Context, seed uint64) (*operator, error) {
	image, err := l.pushProgram(ctx, l.admin, shopName, "1")
	if err != nil {
		return nil, err
	}
	// Connections go to all replicas alike, so that each of them is heard all the time.
	if _, err := client.Service(l.admin, v1.NewServiceServiceClient).CreateService(ctx, &v1.CreateServiceRequest{Service: &v1.Service{
		Metadata: &v1.Metadata{Name: shopName},
		Spec:     &v1.ServiceSpec{Ports: []*v1.ServicePort{{Port: 8080}}, Balancer: &v1.Balancer{Locality: "none"}},
	}}); err != nil {
		return nil, err
	}
	if _, err := client.Service(l.admin, v1.NewRouteServiceClient).CreateRoute(ctx, &v1.CreateRouteRequest{Route: &v1.Route{
		Metadata: &v1.Metadata{Name: shopName},
		Spec:     &v1.RouteSpec{Host: shopHost, Backends: []*v1.RouteBackend{{Service: shopName}}},
	}}); err != nil {
		return nil, err
	}
	o := &operator{lab: l, image: image, seed: seed}
	if err := o.release(ctx, goodRelease+"-0", false); err != nil {
		return nil, err
	}
	return o, l.until(ctx, l.routed)
}

func (o *operator) workload(name string) *v1.Workload {
	deadline := "3m" // without progress: the faults may cost a good release so much
	if strings.HasPrefix(name, neverReady) {
		deadline = "6s"
	}
	return &v1.Workload{
		Metadata: &v1.Metadata{Name: shopName},
		Spec: &v1.WorkloadSpec{
			Image: o.image, Args: []string{name}, Replicas: proto.Int32(shopReplicas), MinAvailable: shopLeast,
			Ports:     []*v1.Port{{Port: 8080, Publish: shopPublished}},
			Placement: &v1.Placement{Spread: []*v1.Spread{{Key: "node", MaxSkew: 1}}},
			Probes:    &v1.Probes{Readiness: &v1.Probe{Http: &v1.HttpProbe{Path: "/", Port: 8081}, Period: "500ms", Failures: 2}},
			// Longer than a release lives that exits.
			Update: &v1.Update{MinReady: "3s", ProgressDeadline: deadline, MaxSurge: "2"},
		},
	}
}

// work releases and drains until the context ends, and leaves nothing open. It goes on until the leader has changed
// during a deployment.
func (o *operator) work(ctx context.Context) error {
	var both sync.WaitGroup
	var released, drained error
	both.Go(func() { released = o.releaseAll(ctx) })
	both.Go(func() { drained = o.drainAll(ctx) })
	both.Wait()
	if released != nil {
		return fmt.Errorf("releases: %w", released)
	}
	if drained != nil {
		return fmt.Errorf("drains: %w", drained)
	}
	return nil
}

func (o *operator) releaseAll(ctx context.Context) error {
	order := []string{goodRelease, exitsInMoment, goodRelease, neverReady}
	if o.seed%2 == 0 {
		order[1], order[3] = order[3], order[1]
	}
	for n := 1; ctx.Err() == nil || o.leaderChanges() == 0; n++ {
		kind := order[(n-1)%len(order)]
		if ctx.Err() != nil {
			kind = goodRelease
		}
		handOver := n%2 == 1 || o.leaderChanges() == 0
		if err := o.release(context.WithoutCancel(ctx), fmt.Sprintf("%s-%d", kind, n), handOver); err != nil {
			return err
		}
		_ = sleep.For(ctx, time.Second)
	}
	return nil
}

// release deploys a release and waits until its deployment has ended. It may hand over leadership meanwhile.
func (o *operator) release(ctx context.Context, name string, handOver bool) error {
	r := release{name: name}
	var number uint64
	if err := o.lab.until(ctx, func(ctx context.Context) error {
		answer, err := o.lab.admin.Workloads().ApplyWorkload(ctx, &v1.ApplyWorkloadRequest{Workload: o.workload(name)})
		number = answer.GetWorkload().GetStatus().GetDeployment()
		if err == nil && number == 0 {
			err = fmt.Errorf("the workload has no deployment: %v", answer.GetWorkload().GetStatus())
		}
		return err
	}); err != nil {
		return fmt.Errorf("apply %s: %w", name, err)
	}
	o.lab.told.note("deployment %d of the shop: release %s", number, name)
	err := o.lab.until(ctx, func(ctx context.Context) error {
		d, err := o.deployment(ctx, number)
		if err != nil {
			return err
		}
		if spec.DeploymentEnded(d.GetStatus().GetPhase()) {
			r.ended = d
			return nil
		}
		if leader, err := o.lab.leader(ctx); err == nil {
			if count := len(r.leaders); count == 0 || r.leaders[count-1] != leader.name {
				r.leaders = append(r.leaders, leader.name)
			}
			if handOver && d.GetStatus().GetPhase() == spec.DeploymentRunning {
				handOver = o.handOver(ctx, leader) != nil
			}
		}
		return fmt.Errorf("it is %v", d.GetStatus())
	})
	if err != nil {
		return fmt.Errorf("deployment %d of the shop, %s: %w", number, name, err)
	}
	o.lab.told.note("deployment %d of the shop: %s (%s), leaders %v", number, r.ended.GetStatus().GetPhase(), r.ended.GetStatus().GetReason(), r.leaders)
	o.releases = append(o.releases, r)
	return nil
}

func (o *operator) deployment(ctx context.Context, number uint64) (*v1.Deployment, error) {
	all, err := o.lab.admin.Deployments().ListDeployments(ctx, &v1.ListDeploymentsRequest{Workload: shopName})
	if err != nil {
		return nil, err
	}
	for _, d := range all.GetItems() {
		if d.GetSpec().GetNumber() == number {
			return d, nil
		}
	}
	return nil, fmt.Errorf("it is not listed")
}

func (o *operator) handOver(ctx context.Context, from *machine) error {
	i := slices.Index(o.lab.servers, from)
	to := o.lab.servers[(i+1)%len(o.lab.servers)].name
	_, err := o.lab.admin.Servers().TransferLeader(ctx, &v1.TransferLeaderRequest{To: to})
	o.lab.told.note("leadership handed to %s during a deployment (%v)", to, err)
	return err
}

// leaderChanges counts changes of the leader while a deployment was open.
func (o *operator) leaderChanges() (count int) {
	for _, r := range o.releases {
		count += max(0, len(r.leaders)-1)
	}
	return count
}

// drainAll drains one node after another for a while.
func (o *operator) drainAll(ctx context.Context) error {
	random := rand.New(rand.NewPCG(o.seed, 1))
	for sleep.For(ctx, drainPause/2) == nil {
		node := o.lab.nodes[random.IntN(len(o.lab.nodes))].name
		if home := o.lab.census.home(); home != "" && random.IntN(2) == 0 {
			node = home
		}
		during, cancel := context.WithTimeout(ctx, callTimeout)
		_, err := o.lab.admin.Nodes().DrainNode(during, &v1.DrainNodeRequest{Name: node, Reason: "chaos"})
		cancel()
		if err != nil { // refused, or there was no answer
			o.lab.told.note("drain of %s: %v", node, err)
		} else {
			o.drains++
			o.lab.told.note("draining %s", node)
		}
		left := o.left(context.WithoutCancel(ctx), node)
		if err := o.lab.until(context.WithoutCancel(ctx), func(ctx context.Context) error {
			_, err := o.lab.admin.Nodes().UncordonNode(ctx, &v1.UncordonNodeRequest{Name: node})
			return err
		}); err != nil {
			return fmt.Errorf("uncordon %s: %w", node, err)
		}
		o.lab.told.note("%s is back in service; it had %s", node, left)
		_ = sleep.For(ctx, drainPause/2)
	}
	return nil
}

// left waits for a while until a node is empty, and says which replicas it has then.
func (o *operator) left(ctx context.Context, node string) string {
	ctx, cancel := context.WithTimeout(ctx, drainLasts)
	defer cancel()
	var left []string
	for sleep.For(ctx, 200*time.Millisecond) == nil {
		all, err := o.lab.admin.Workloads().ListReplicas(ctx, &v1.ListReplicasRequest{})
		if err != nil {
			continue
		}
		left = nil
		for _, r := range all.GetItems() {
			if r.GetSpec().GetNode() == node && !spec.Ended(r.GetStatus().GetPhase()) {
				left = append(left, r.GetMetadata().GetName())
			}
		}
		if len(left) == 0 {
			o.emptied++
			return "no replica left"
		}
	}
	return "still " + strings.Join(left, ", ")
}

// complaints are deployments that ended in another way than they must.
func (o *operator) complaints() (all []string) {
	for _, r := range o.releases {
		if phase := r.ended.GetStatus().GetPhase(); phase != outcomeOf(r.name) {
			all = append(all, fmt.Sprintf("deployment %d, of release %s, ended as %s and not as %s: %s",
				r.ended.GetSpec().GetNumber(), r.name, phase, outcomeOf(r.name), r.ended.GetStatus().GetReason()))
		}
	}
	if o.leaderChanges() == 0 {
		all = append(all, "the leader never changed during a deployment")
	}
	return all
}

func (o *operator) String() string {
	return fmt.Sprintf("%d releases, %d changes of the leader during them, %d drains of which %d emptied the node", len(o.releases), o.leaderChanges(), o.drains, o.emptied)
}

// idle says which deployment has not ended.
func (l *lab) idle(ctx context.Context) error {
	all, err := l.admin.Deployments().ListDeployments(ctx, &v1.ListDeploymentsRequest{})
	if err != nil {
		return err
	}
	for _, d := range all.GetItems() {
		if !spec.DeploymentEnded(d.GetStatus().GetPhase()) {
			return fmt.Errorf("deployment %d of %s is %s", d.GetSpec().GetNumber(), d.GetSpec().GetWorkload(), d.GetStatus().GetPhase())
		}
	}
	return nil
}
