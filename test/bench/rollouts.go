package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/spec"
)

const (
	rollingReplicas = 10
	rollingStarts   = 3
	// rollingRequests is how many requests of each kind are sent during updates, at rollingRate a second.
	rollingRequests = 50_000
	rollingRate     = 600
	// loadQuiet is how long requests are sent before anything changes, and loadAfter how long after a change.
	loadQuiet = 10 * time.Second
	loadAfter = 3 * time.Second

	switches   = 10
	switchRate = 600

	drainReplicas = 30
	singleMoves   = 12
)

var rolloutMeasurements = []measurement{
	{
		name: "rolling_10", unit: "ratio", measure: measureRolling((*rollingRun).ratio), target: atMost(4),
		what:  "three nodes under load: rolling update of 10 replicas with maxSurge 25% and a readiness probe, from the API call to succeeded, median of several, against starting 10 replicas at once, median of 3",
		floor: "none",
	},
	{
		name: "rolling_failed", unit: "count", measure: measureRolling((*rollingRun).failures), target: exactly(0),
		what:  "failed requests through the virtual address of the service during these updates, of 50,000 with and 50,000 without keep-alive",
		floor: "none",
	},
	{
		name: "rolling_p99", unit: "ratio", measure: measureRolling((*rollingRun).tail), target: atMost(3),
		what:  "P99 of the requests during these updates, against P99 before them",
		floor: "none",
	},
	{
		name: "blue_green_switch", unit: "ms", measure: measureSwitch((*switchRun).longest), target: under(200),
		what:  "three nodes: from the API call that promotes a blue-green deployment to the last new connection of any node that reaches the old replicas, the longest of 10",
		floor: "none",
	},
	{
		name: "blue_green_relapses", unit: "count", measure: measureSwitch((*switchRun).relapsed), target: exactly(0),
		what:  "connections of a node that reached the old replicas during these switches after it had reached the new ones",
		floor: "none",
	},
	{
		name: "blue_green_failed", unit: "count", measure: measureSwitch((*switchRun).failures), target: exactly(0),
		what:  "failed requests during these switches",
		floor: "none",
	},
	{
		name: "bad_release_failed", unit: "count", measure: measureBadRelease, target: exactly(0),
		what:  "failed requests to 3 replicas on three nodes while a release that exits after 2 s is deployed and rolled back, without and with a readiness probe",
		floor: "none",
	},
	{
		name: "single_update_failed", unit: "count", measure: measureSingle, target: exactly(0),
		what:  "failed requests to one replica while updates move it from node to node, each as soon as the new one is ready",
		floor: "none",
	},
	{
		name: "drain_failed", unit: "count", measure: measureDrain, target: exactly(0),
		what:  "failed requests to 30 replicas, all on one of three nodes, while it is drained",
		floor: "none",
	},
}

// rollingRun is the result of the updates, from which several figures come.
type rollingRun struct {
	starts, updates sample // seconds
	before, during  requests
	all             requests
}

func measureRolling(figure func(*rollingRun) result) func(context.Context, *lab) (result, error) {
	return func(ctx context.Context, l *lab) (result, error) {
		if l.rolling == nil {
			r, err := l.roll(ctx)
			if err != nil {
				return result{}, err
			}
			l.rolling = r
		}
		return figure(l.rolling), nil
	}
}

func (r *rollingRun) ratio() result {
	return result{value: r.updates.median() / r.starts.median(), notes: []string{
		r.updates.spread("update in s"), r.starts.spread("start of 10 at once in s"),
	}}
}

func (r *rollingRun) failures() result {
	return result{value: float64(len(r.all.failed())), notes: []string{
		"during the updates: " + r.during.count(), "in the whole run, which counts: " + r.all.count(), clientNote,
	}}
}

func (r *rollingRun) tail() result {
	return result{value: r.during.times().quantile(0.99) / r.before.times().quantile(0.99), notes: []string{
		tails("before", r.before), tails("during", r.during), fmt.Sprintf("%d requests a second of each kind", rollingRate),
	}}
}

func tails(when string, all requests) string {
	kept, fresh := all.kept().times(), all.fresh().times()
	return fmt.Sprintf("%s: P99 %.3g ms with keep-alive and %.3g ms without, median %.3g and %.3g ms",
		when, kept.quantile(0.99), fresh.quantile(0.99), kept.median(), fresh.median())
}

// roll updates the service under load, again and again until there were enough requests.
func (l *lab) roll(ctx context.Context) (*rollingRun, error) {
	s, err := l.newShop(ctx)
	if err != nil {
		return nil, err
	}
	defer s.close()
	version := func(n int) *v1.Workload {
		return withReadiness(s.app(shopApp, fmt.Sprintf("v%d", n), rollingReplicas))
	}
	if _, err := s.deploy(ctx, version(0), inPhase(spec.DeploymentSucceeded)); err != nil {
		return nil, err
	}
	sending, err := s.startLoad(ctx, rollingRate, rollingRate)
	if err != nil {
		return nil, err
	}
	r := &rollingRun{}
	spans, err := r.update(ctx, s, version)
	sent, stopped := sending.stop()
	if err != nil || stopped != nil {
		return nil, errors.Join(err, stopped)
	}
	r.all, r.before = sent, sent.between(spans[0])
	for _, one := range spans[1:] {
		r.during = append(r.during, sent.between(one)...)
	}
	return r, nil
}

// update returns when nothing happened, and when each update did.
func (r *rollingRun) update(ctx context.Context, s *shop, version func(int) *v1.Workload) (spans []span, err error) {
	began := time.Now()
	if err := sleep.For(ctx, loadQuiet); err != nil {
		return nil, err
	}
	spans = append(spans, span{began, time.Now()})
	for range rollingStarts {
		took, err := s.serve(ctx, withReadiness(s.app("other", "other", rollingReplicas)))
		if err != nil {
			return nil, err
		}
		r.starts = append(r.starts, took.Seconds())
		if err := removeWorkload(ctx, s.api, "other"); err != nil {
			return nil, err
		}
	}
	const enough = rollingRequests * time.Second / rollingRate
	for updating := time.Duration(0); updating < enough; {
		began := time.Now()
		took, err := s.deploy(ctx, version(len(spans)), inPhase(spec.DeploymentSucceeded))
		if err != nil {
			return nil, err
		}
		r.updates = append(r.updates, took.Seconds())
		updating += took
		spans = append(spans, span{began, time.Now()})
		if err := sleep.For(ctx, time.Second); err != nil { // the last old replicas stop
			return nil, err
		}
	}
	return spans, nil
}

// measureBadRelease deploys releases that exit after 2 s.
func measureBadRelease(ctx context.Context, l *lab) (result, error) {
	s, err := l.newShop(ctx)
	if err != nil {
		return result{}, err
	}
	defer s.close()
	r := result{notes: []string{clientNote}}
	for what, probed := range map[string]func(*v1.Workload) *v1.Workload{
		"without a probe": func(w *v1.Workload) *v1.Workload { return w }, "with a readiness probe": withReadiness,
	} {
		if _, err := s.deploy(ctx, probed(s.app(shopApp, "good", 3)), inPhase(spec.DeploymentSucceeded)); err != nil {
			return result{}, err
		}
		bad := probed(s.app(shopApp, "bad", 3))
		bad.Spec.Args = append(bad.Spec.Args, "--fail-after", "2s")
		var took time.Duration
		sent, err := s.during(ctx, func() (err error) {
			took, err = s.deploy(ctx, bad, inPhase(spec.DeploymentRolledBack))
			return err
		})
		if err != nil {
			return result{}, err
		}
		reached := sent.having(func(r request) bool { return r.Answer == "bad" })
		r.value += float64(len(sent.failed()))
		r.notes = append(r.notes, fmt.Sprintf("%s: rolled back after %.3g s; %d requests reached the bad release; %s", what, took.Seconds(), len(reached), sent.count()))
	}
	return r, nil
}

// during sends requests while f does something, and for a while afterwards.
func (s *shop) during(ctx context.Context, f func() error) (requests, error) {
	sending, err := s.startLoad(ctx, rollingRate, rollingRate)
	if err != nil {
		return nil, err
	}
	err = f()
	if err == nil {
		err = sleep.For(ctx, loadAfter)
	}
	sent, stopped := sending.stop()
	return sent, errors.Join(err, stopped)
}

// measureSingle moves the only replica of a service.
func measureSingle(ctx context.Context, l *lab) (result, error) {
	s, err := l.newShop(ctx)
	if err != nil {
		return result{}, err
	}
	defer s.close()
	move := func(n int) error {
		w := withReadiness(s.app(shopApp, fmt.Sprintf("v%d", n), 1))
		w.Spec.Update = &v1.Update{MinReady: "0s"}
		w.Spec.Placement = &v1.Placement{Labels: map[string]string{spec.LabelName: s.clients[n%len(s.clients)].node}}
		_, err := s.deploy(ctx, w, inPhase(spec.DeploymentSucceeded))
		return err
	}
	if err := move(0); err != nil {
		return result{}, err
	}
	sent, err := s.during(ctx, func() error {
		for n := range singleMoves {
			if err := move(n + 1); err != nil {
				return err
			}
			if err := sleep.For(ctx, time.Second); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return result{}, err
	}
	return result{value: float64(len(sent.failed())), notes: []string{fmt.Sprintf("%d moves", singleMoves), sent.count(), clientNote}}, nil
}

// measureDrain drains the node that has all replicas, while the other nodes send requests.
func measureDrain(ctx context.Context, l *lab) (result, error) {
	s, err := l.newShop(ctx)
	if err != nil {
		return result{}, err
	}
	defer s.close()
	drained, others := s.clients[0].node, s.clients[1:]
	for _, c := range others {
		if _, err := s.api.Nodes().CordonNode(ctx, &v1.CordonNodeRequest{Name: c.node}); err != nil {
			return result{}, err
		}
	}
	if _, err := s.deploy(ctx, withReadiness(s.app(shopApp, "v1", drainReplicas)), inPhase(spec.DeploymentSucceeded)); err != nil {
		return result{}, err
	}
	for _, c := range others {
		if _, err := s.api.Nodes().UncordonNode(ctx, &v1.UncordonNodeRequest{Name: c.node}); err != nil {
			return result{}, err
		}
	}
	s.clients = others // the client on the drained node leaves with it
	var took time.Duration
	sent, err := s.during(ctx, func() error {
		began := time.Now()
		_, err := s.api.Nodes().DrainNode(ctx, &v1.DrainNodeRequest{Name: drained})
		if err == nil {
			err = s.untilEmpty(ctx, drained)
		}
		took = time.Since(began)
		return err
	})
	if err != nil {
		return result{}, err
	}
	return result{value: float64(len(sent.failed())), notes: []string{
		sent.count(), fmt.Sprintf("the node was empty after %.3g s", took.Seconds()), clientNote,
	}}, nil
}

// untilEmpty waits until no replica of the service is on a node.
func (s *shop) untilEmpty(ctx context.Context, node string) error {
	for {
		list, err := s.api.Workloads().ListReplicas(ctx, &v1.ListReplicasRequest{Workload: shopApp})
		if err != nil || !slices.ContainsFunc(list.GetItems(), func(r *v1.Replica) bool {
			return r.GetSpec().GetNode() == node && spec.Live(r.GetStatus().GetPhase())
		}) {
			return err
		}
		if err := sleep.For(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// measureSwitch promotes blue-green deployments while each node connects all the time.
// switchRun is the result of the switches, from which several figures come.
type switchRun struct {
	took, answered sample // ms
	all            requests
	relapses       int
}

func measureSwitch(figure func(*switchRun) result) func(context.Context, *lab) (result, error) {
	return func(ctx context.Context, l *lab) (result, error) {
		if l.switching == nil {
			r, err := l.switchOver(ctx)
			if err != nil {
				return result{}, err
			}
			l.switching = r
		}
		return figure(l.switching), nil
	}
}

func (r *switchRun) longest() result {
	return result{value: r.took.quantile(1), notes: []string{
		r.took.spread("call to the last new connection to an old replica in ms"), r.answered.spread("call to its answer in ms"), r.all.count(),
	}}
}

func (r *switchRun) relapsed() result {
	return result{value: float64(r.relapses), notes: []string{r.all.count()}}
}

func (r *switchRun) failures() result {
	return result{value: float64(len(r.all.failed())), notes: []string{r.all.count(), clientNote}}
}

func (l *lab) switchOver(ctx context.Context) (*switchRun, error) {
	s, err := l.newShop(ctx)
	if err != nil {
		return nil, err
	}
	defer s.close()
	version := func(n int) *v1.Workload {
		w := s.app(shopApp, fmt.Sprintf("v%d", n), 3)
		w.Spec.Update = &v1.Update{Strategy: spec.StrategyBlueGreen, ManualSwitch: true}
		return w
	}
	if _, err := s.deploy(ctx, version(0), inPhase(spec.DeploymentSucceeded)); err != nil {
		return nil, err
	}
	r := &switchRun{}
	for n := range switches {
		one, err := s.switchTo(ctx, version(n+1), fmt.Sprintf("v%d", n+1))
		if err != nil {
			return nil, err
		}
		r.took, r.answered = append(r.took, one.last), append(r.answered, one.answered)
		r.all, r.relapses = append(r.all, one.sent...), r.relapses+one.relapses
	}
	return r, nil
}

// switched is how one switch went. Times are in ms since the call.
type switched struct {
	last, answered float64
	relapses       int
	sent           requests
}

func (s *shop) switchTo(ctx context.Context, w *v1.Workload, version string) (r switched, err error) {
	// Every replica of the new set has served for long enough: nothing progresses before an operator promotes it.
	ready := func(d *v1.Deployment) bool {
		return d.GetStatus().GetPhase() == spec.DeploymentRunning && d.GetStatus().GetServing() > 0 && d.GetStatus().Progress == nil
	}
	if _, err := s.deploy(ctx, w, ready); err != nil {
		return r, err
	}
	sending, err := s.startLoad(ctx, 0, switchRate)
	if err != nil {
		return r, err
	}
	err = sleep.For(ctx, time.Second)
	called := time.Now()
	if err == nil {
		_, err = s.api.Deployments().PromoteDeployment(ctx, &v1.PromoteDeploymentRequest{Workload: shopApp})
	}
	r.answered = milliseconds(time.Since(called))
	if err == nil {
		err = sleep.For(ctx, loadAfter)
	}
	sent, stopped := sending.stop()
	if err != nil || stopped != nil {
		return r, errors.Join(err, stopped)
	}
	r.sent = sent
	arrived := map[string]time.Time{} // when the first client of a node had an answer of the new set
	for _, one := range sent {
		if first, ok := arrived[one.node]; one.Answer == version && (!ok || one.ended().Before(first)) {
			arrived[one.node] = one.ended()
		}
	}
	if len(arrived) < len(s.clients) {
		return r, fmt.Errorf("only the nodes %v reached %s", arrived, version)
	}
	for _, one := range sent {
		if one.Error == "" && one.Answer != version {
			r.last = max(r.last, milliseconds(one.began().Sub(called)))
			if one.began().After(arrived[one.node]) {
				r.relapses++
			}
		}
	}
	return r, nil
}
