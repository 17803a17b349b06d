package ingress

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/ingressd"
	"github.com/cloudless/cloudless/internal/sleep"
)

// Process is the ingress process of this node. A client of package ingressd is one: it keeps the process running.
type Process interface {
	// Send passes a message on. It does not block.
	Send(*v1.IngressDown) error
	// Reports are closed when the process is not kept running any more.
	Reports() <-chan *v1.IngressUp
	// Stop ends the process. Close leaves it running.
	Stop() error
	Close() error
}

// Options are what an Ingress works with.
type Options struct {
	// Dir is the folder of this cloud below /run.
	Dir string
	// Start joins the process that runs, or starts it. Clear ends a process that is not needed, if one runs.
	Start func(ctx context.Context) (Process, error)
	Clear func(ctx context.Context) error
	Log   *slog.Logger
}

// Ingressd are the options for the process of package ingressd.
func Ingressd(o ingressd.Options) Options {
	return Options{
		Dir: o.Dir, Log: o.Log,
		Start: func(ctx context.Context) (Process, error) { return ingressd.Start(ctx, o) },
		Clear: func(ctx context.Context) error { return ingressd.Stop(ctx, o.Dir) },
	}
}

// Clear ends the process of a cloud that has no agent any more, and forgets what it served.
func Clear(ctx context.Context, dir string) error {
	return errors.Join(ingressd.Stop(ctx, dir), forget(dir))
}

const (
	// beatEvery is how often servers hear of a node that answers for a route. One that they do not hear for some of these
	// intervals may have counted requests that they do not know.
	beatEvery = 5 * time.Second
	// The pause before another attempt to start the process.
	retryFirst, retryMax = 200 * time.Millisecond, 30 * time.Second
	// saveShare bounds the share of time that is spent on keeping the set: one in so many parts.
	saveShare = 20
)

// Ingress is the agent's side. Its methods do not block, but for Run and Remove. A nil Ingress does nothing.
type Ingress struct {
	Options
	wake, news, save chan struct{}
	removed          chan chan error

	mu sync.Mutex
	// set is nil before anything is known.
	set *set
	// pending is what the process does not know yet; sendAll says that it needs everything.
	pending []*v1.IngressDown
	sendAll bool
	states  func() map[string]string
	out     outbox
}

// New returns an Ingress that does nothing before Run.
func New(o Options) *Ingress {
	return &Ingress{
		Options: o, wake: make(chan struct{}, 1), news: make(chan struct{}, 1), save: make(chan struct{}, 1), removed: make(chan chan error),
		out: newOutbox(), states: func() map[string]string { return nil },
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Apply takes what a server says of routes.
func (i *Ingress) Apply(down *v1.IngressDown) {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.set == nil {
		i.set = newSet()
	}
	i.set.merge(down)
	if down.GetFull() {
		i.sendAll, i.pending = true, nil
	} else if !i.sendAll {
		i.pending = append(i.pending, down)
	}
	signal(i.wake)
	signal(i.save)
}

// ServingChanged passes on that replicas of this node have begun or ceased to serve, without waiting for the servers.
func (i *Ingress) ServingChanged(addresses []string) {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.set == nil || i.sendAll {
		return
	}
	again := &v1.IngressDown{}
	for _, s := range i.set.services {
		if has(s, addresses) {
			again.Services = append(again.Services, s)
		}
	}
	if len(again.GetServices()) > 0 {
		i.pending = append(i.pending, again)
		signal(i.wake)
	}
}

func has(s *v1.IngressService, addresses []string) bool {
	return slices.ContainsFunc(s.GetEndpoints(), func(e *v1.IngressEndpoint) bool {
		return slices.ContainsFunc(e.GetAddresses(), func(a string) bool { return slices.Contains(addresses, a) })
	})
}

// Connected says that a server does not know anything of this node yet.
func (i *Ingress) Connected() {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.out.again()
	signal(i.news)
}

// News has a token while there may be something to [Take].
func (i *Ingress) News() <-chan struct{} {
	if i == nil {
		return nil
	}
	return i.news
}

// Take returns what a server has to hear; nil if that is nothing.
func (i *Ingress) Take() *v1.IngressUp {
	i.mu.Lock()
	defer i.mu.Unlock()
	up, more := i.out.take()
	if more {
		signal(i.news)
	}
	return up
}

// Run works until ctx ends, and leaves the process running. states returns the states of this node's replicas as it knows
// them, by their addresses. It calls opened, which may be nil, with the ports that are open whenever they may have changed.
func (i *Ingress) Run(ctx context.Context, states func() map[string]string, opened func([]*v1.IngressPort)) {
	if i == nil {
		return
	}
	i.restore(states)
	saving, stopSaving := context.WithCancel(ctx)
	var saver sync.WaitGroup
	saver.Go(func() { i.keepSet(saving) })
	defer saver.Wait()
	defer stopSaving()
	r := runner{Ingress: i, opened: opened}
	defer r.close()
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for {
		r.reconcile(ctx)
		select {
		case <-ctx.Done():
			return
		case done := <-i.removed:
			stopSaving()
			saver.Wait()
			done <- r.remove(ctx)
			return
		case <-i.wake:
		case <-r.retry():
		case up, more := <-r.reports():
			r.hear(up, more)
		case <-beat.C:
			r.beat()
		}
	}
}

// Remove ends the process, because the node was removed from its cluster, and Run with it. It returns when that is done.
func (i *Ingress) Remove(ctx context.Context) error {
	if i == nil {
		return nil
	}
	done := make(chan error, 1)
	select {
	case i.removed <- done:
		return <-done
	case <-ctx.Done():
		return ctx.Err()
	}
}

// restore begins with what an earlier agent has kept.
func (i *Ingress) restore(states func() map[string]string) {
	kept, err := load(i.Dir)
	if err != nil {
		i.Log.Warn("routes wait for a server", "error", err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.states = states
	if i.set == nil && kept != nil {
		i.set, i.sendAll = newSet(), true
		i.set.merge(kept)
	}
}

// keepSet writes the set when it changes, until ctx ends.
func (i *Ingress) keepSet(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-i.save:
			began := time.Now()
			i.saveSet()
			_ = sleep.For(ctx, saveShare*time.Since(began))
		}
	}
	select {
	case <-i.save:
		i.saveSet()
	default:
	}
}

func (i *Ingress) saveSet() {
	i.mu.Lock()
	full := i.set.full()
	i.mu.Unlock()
	if err := keep(i.Dir, full); err != nil {
		i.Log.Warn("an agent that starts without servers will not answer for all routes", "error", err)
	}
}

// runner is what only the goroutine of Run uses.
type runner struct {
	*Ingress
	process Process
	cleared bool // no process runs that nobody needs
	pause   time.Duration
	// notBefore is when the next attempt is due after a failure; zero if nothing has failed.
	notBefore time.Time
	problem   string // why there is no process, as last reported
	opened    func([]*v1.IngressPort)
}

// tellOpen says which of the ports are open.
func (r *runner) tellOpen(ports []*v1.IngressPort) {
	if r.opened != nil {
		r.opened(slices.DeleteFunc(slices.Clone(ports), func(p *v1.IngressPort) bool { return p.GetProblem() != "" }))
	}
}

// retry has a value when the next attempt is due.
func (r *runner) retry() <-chan time.Time {
	if r.notBefore.IsZero() {
		return nil
	}
	return time.After(time.Until(r.notBefore))
}

// reconcile starts or ends the process, and tells it what it does not know.
func (r *runner) reconcile(ctx context.Context) {
	if time.Now().Before(r.notBefore) {
		return
	}
	r.notBefore = time.Time{}
	r.mu.Lock()
	known, wanted := r.set != nil, r.set != nil && !r.set.empty()
	r.mu.Unlock()
	switch {
	case !known: // a process of an earlier agent goes on
	case !wanted:
		r.end(ctx)
	case r.process != nil || r.start(ctx):
		r.send()
	}
}

func (r *runner) start(ctx context.Context) bool {
	process, err := r.Start(ctx)
	if err != nil {
		if ctx.Err() == nil {
			r.failed(err)
		}
		return false
	}
	r.process, r.cleared, r.pause, r.problem = process, false, 0, ""
	r.mu.Lock()
	r.sendAll, r.pending = true, nil
	r.mu.Unlock()
	return true
}

// failed reports that the process does not run, so that servers do not wait for this node's figures, and plans another
// attempt.
func (r *runner) failed(err error) {
	r.tellOpen(nil)
	r.pause = min(max(2*r.pause, retryFirst), retryMax)
	r.notBefore = time.Now().Add(r.pause)
	if err.Error() == r.problem {
		return
	}
	r.problem = err.Error()
	r.Log.Error("this node does not answer for routes", "error", err)
	r.mu.Lock()
	defer r.mu.Unlock()
	up := &v1.IngressUp{PortsSet: true}
	for _, port := range []int32{cmp.Or(r.set.settings.GetHttpPort(), 80), cmp.Or(r.set.settings.GetHttpsPort(), 443)} {
		up.Ports = append(up.Ports, &v1.IngressPort{Protocol: "tcp", Port: port, Problem: "the ingress does not run: " + r.problem})
	}
	r.out.add(up)
	signal(r.news)
}

// send tells the process what it does not know yet.
func (r *runner) send() {
	r.mu.Lock()
	messages := r.pending
	if r.sendAll {
		messages = []*v1.IngressDown{r.set.full()}
	}
	r.pending, r.sendAll = nil, false
	states := r.states
	r.mu.Unlock()
	if len(messages) == 0 {
		return
	}
	own := states()
	for _, m := range messages {
		if err := r.process.Send(withOwn(m, own)); err != nil {
			r.Log.Warn("the ingress does not hear of all routes; telling it everything again", "error", err)
			r.mu.Lock()
			r.sendAll, r.pending = true, nil
			r.mu.Unlock()
			r.notBefore = time.Now().Add(retryFirst)
			return
		}
	}
}

// end ends the process, because no route needs it.
func (r *runner) end(ctx context.Context) {
	r.mu.Lock()
	r.pending, r.sendAll = nil, false
	r.mu.Unlock()
	var err error
	switch {
	case r.process != nil:
		err = r.process.Stop()
		r.process = nil
		r.tellOpen(nil)
	case !r.cleared:
		err = r.Clear(ctx)
	default:
		return
	}
	if r.cleared = err == nil; !r.cleared {
		r.Log.Warn("the ingress, which no route needs any more, does not end; trying again", "error", err)
		r.notBefore = time.Now().Add(retryMax)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out.processEnded()
	r.out.portsDue, r.out.portsSet, r.out.ports = r.out.portsSet, false, nil
	r.problem = ""
	signal(r.news)
}

func (r *runner) reports() <-chan *v1.IngressUp {
	if r.process == nil {
		return nil
	}
	return r.process.Reports()
}

func (r *runner) hear(up *v1.IngressUp, more bool) {
	if !more {
		r.process = nil
		r.failed(errors.New("it has ended"))
		return
	}
	if up.GetPortsSet() {
		r.tellOpen(up.GetPorts())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out.add(up)
	signal(r.news)
}

// beat makes the servers hear of this node, even if there is nothing new.
func (r *runner) beat() {
	if r.process == nil && r.problem == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out.beat = true
	signal(r.news)
}

func (r *runner) remove(ctx context.Context) error {
	r.mu.Lock()
	r.set = newSet()
	r.mu.Unlock()
	r.tellOpen(nil)
	var err error
	if r.process != nil {
		err = r.process.Stop()
		r.process = nil
	} else {
		err = r.Clear(ctx)
	}
	return errors.Join(err, forget(r.Dir))
}

func (r *runner) close() {
	if r.process != nil {
		if err := r.process.Close(); err != nil {
			r.Log.Warn("leave the ingress process", "error", err)
		}
	}
}
