package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent/lease"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/spec"
)

// maxReceive is the longest message that the agent accepts. A session begins with all of
// the node's assignments in one message.
const maxReceive = 64 << 20

// maxReports bounds the reports in one message. Servers accept far shorter messages: a
// report has at most a few sentences.
const maxReports = 1000

// DialOptions are for a connection that reconnects as quickly as the session retries,
// detects a dead server, and accepts the assignments of a full node. The server must allow
// keepalive pings every ten seconds.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           grpcbackoff.Config{BaseDelay: retryFirst, Multiplier: 2, Jitter: 0.5, MaxDelay: retryMax},
			MinConnectTimeout: retryMax,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReceive)),
	}
}

// sessionStream is control only: assignments down, reports up.
type sessionStream = grpc.BidiStreamingClient[v1.SessionUp, v1.SessionDown]

// keepSession holds a session open until ctx ends. Replicas do not depend on it.
func (a *Agent) keepSession(ctx context.Context) error {
	var pause backoff
	var logged logLimiter
	accepted, saidGoodbye := false, false
	for ctx.Err() == nil {
		present, end, gone := a.departure.awaitPresence(ctx)
		if saidGoodbye = gone; gone {
			break
		}
		worked, err := a.session(present)
		left := present.Err() != nil
		end()
		if ctx.Err() != nil {
			saidGoodbye = errors.Is(err, io.EOF)
			break
		}
		if left {
			continue // it said goodbye
		}
		// An agent that was accepted before is not a copy: the server will reject the other
		// one.
		accepted = accepted || worked
		if turned := rejectedAsCopy(err); turned != nil && !accepted {
			return turned
		}
		if a.isRemoval(err) {
			return a.endRemoved(ctx, err)
		}
		a.metrics.SessionEnded()
		if a.noSession != nil {
			a.noSession(err)
		}
		if worked {
			pause.reset()
			logged = logLimiter{}
		}
		if logged.shouldLog(err.Error(), time.Now()) {
			a.log.Warn("no session with a server; replicas go on", "error", err)
		}
		a.awaitRetry(ctx, &pause)
	}
	if a.isGoingDown() && !saidGoodbye { // the last session ended before a goodbye
		_, _ = a.session(ctx)
	}
	return nil
}

// awaitRetry waits before the next session. It waits no longer when the machine's addresses or routes have changed.
func (a *Agent) awaitRetry(ctx context.Context, pause *backoff) {
	timer := time.NewTimer(pause.next())
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-a.retryNow:
		pause.reset()
	}
}

// The least time between two log lines about the same problem. It doubles.
const (
	complainFirst = time.Second
	complainMax   = 10 * time.Minute
)

// logLimiter limits the log lines about a problem that lasts, possibly for weeks.
type logLimiter struct {
	last  string
	next  time.Time
	lines int
}

// shouldLog reports whether to log this text: never the same one twice in a row, and different
// ones less and less often, because the text may change with every retry, for example with
// the server's name.
func (c *logLimiter) shouldLog(text string, now time.Time) bool {
	if text == c.last || now.Before(c.next) {
		return false
	}
	c.last, c.next = text, now.Add(grow(complainFirst, complainMax, c.lines))
	c.lines++
	return true
}

// isGoingDown reports whether this agent stops for `cloudless down` or with its machine, and
// not for a restart.
func (a *Agent) isGoingDown() bool {
	return a.departure.reasonOf() != "" || a.goingDown != nil && a.goingDown()
}

// ErrCopy says that this agent's data folder is a copy, and that the node runs elsewhere.
var ErrCopy = errors.New("this is not the node")

// rejectedAsCopy returns an error if a server says that another agent is this node.
func rejectedAsCopy(err error) error {
	s, ok := status.FromError(err)
	if !ok || s.Code() != codes.AlreadyExists {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrCopy, messageOf(err))
}

// session runs one session, from hello to its end. It worked if assignments came.
func (a *Agent) session(asked context.Context) (worked bool, err error) {
	// The stream outlives the request to stop for as long as a goodbye takes.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(asked))
	defer cancel(nil)
	defer context.AfterFunc(asked, func() {
		if a.isGoingDown() {
			_ = sleep.For(ctx, goodbyePatience)
		}
		cancel(asked.Err())
	})()
	stream, err := a.client.Session(ctx)
	if err != nil {
		return false, fmt.Errorf("open session: %w", err)
	}
	known, err := a.hello(stream)
	if err != nil {
		return false, err
	}
	a.ingress.Connected()
	a.secrets.Connected()
	var receiver sync.WaitGroup
	pings := make(chan uint64, 1)
	receiver.Go(func() {
		detector := a.detectHang(cancel)
		defer detector.stop()
		cancel(a.receive(stream, detector, pings, &worked))
	})
	err = a.send(ctx, asked.Done(), stream, pings, known)
	if asked.Err() == nil {
		cancel(err)
	}
	receiver.Wait()
	return worked, context.Cause(ctx)
}

// hello sends everything that a server needs to know, and returns the status that it sent.
// What does not fit into one message follows as reports.
func (a *Agent) hello(stream sessionStream) (*v1.NodeStatus, error) {
	status, err := a.status()
	if err != nil {
		return nil, err
	}
	a.reports.take() // newer reports are sent after hello
	a.mu.Lock()
	hello := &v1.Hello{Status: status, Epoch: a.epoch, Instance: a.instance, Follow: a.meshState.follows.all()}
	replicas := a.allReports()
	a.mu.Unlock()
	first := min(len(replicas), maxReports)
	hello.Replicas = replicas[:first]
	err = stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Hello{Hello: hello}})
	if err == nil {
		err = report(stream, replicas[first:])
	}
	if err != nil {
		return nil, fmt.Errorf("session: %w", whyEnded(stream, err)) // the same error as receive returns
	}
	return status, nil
}

// allReports are the reports of all replicas. The caller holds a.mu.
func (a *Agent) allReports() []*v1.ReplicaReport {
	replicas := make([]*v1.ReplicaReport, 0, len(a.replicas))
	for _, r := range a.replicas {
		replicas = append(replicas, r.report())
	}
	return replicas
}

// report sends reports, in messages that the server accepts.
func report(stream sessionStream, replicas []*v1.ReplicaReport) error {
	for part := range slices.Chunk(replicas, maxReports) {
		up := &v1.SessionUp{Message: &v1.SessionUp_Report{Report: &v1.Report{Replicas: part}}}
		if err := stream.Send(up); err != nil {
			return err
		}
	}
	return nil
}

// whyEnded returns why a stream has ended, which a failed send does not say.
func whyEnded(stream sessionStream, err error) error {
	if errors.Is(err, io.EOF) {
		if _, received := stream.Recv(); received != nil {
			return received
		}
	}
	return err
}

var errHangs = errors.New("the server has stopped giving signs of life")

// detectHang ends a session with a hanging server, and makes the next one use another server.
func (a *Agent) detectHang(end context.CancelCauseFunc) *hangDetector {
	return &hangDetector{silence: a.quiet, onHang: func() {
		if a.leave != nil {
			a.leave()
		}
		end(errHangs)
	}}
}

// receive handles the server's messages until the session ends.
func (a *Agent) receive(stream sessionStream, detector *hangDetector, pings chan<- uint64, worked *bool) error {
	for {
		down, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("session: %w", err)
		}
		detector.received()
		switch message := down.GetMessage().(type) {
		case *v1.SessionDown_Assignments:
			a.clock.setServerTime(message.Assignments.GetTime())
			if err := a.assign(message.Assignments); err != nil {
				return err
			}
			if err := a.pace.set(message.Assignments.GetHeartbeat()); err != nil {
				a.log.Error("cannot report as often as the cluster wants", "error", err)
			}
			if err := detector.setInterval(message.Assignments.GetAlive()); err != nil {
				a.log.Error("cannot detect a hanging server", "error", err)
			}
			if err := a.reserveMemory(message.Assignments.GetReservedMemory()); err != nil {
				a.log.Error("cannot reserve memory for the system", "error", err)
			}
			if disk := message.Assignments.GetDisk(); disk != nil {
				a.disk.Store(disk)
			}
			if servers := message.Assignments.GetServers(); len(servers) > 0 && a.servers != nil {
				a.servers(servers)
			}
			if !*worked {
				a.metrics.SessionOpened()
				a.log.Info("session with a server is open", "assignments", len(message.Assignments.GetAssign()), "epoch", message.Assignments.GetEpoch())
			}
			*worked = true
		case *v1.SessionDown_Lease:
			granted := message.Lease
			if err := a.leases.Grant(granted.GetNumber(), granted.GetDuration().AsDuration(), granted.GetReplicas()); err != nil {
				a.log.Error("a singleton has no lease", "error", err)
			}
		case *v1.SessionDown_Network:
			a.applyNetwork(message.Network)
		case *v1.SessionDown_Ingress:
			a.ingress.Apply(message.Ingress)
		case *v1.SessionDown_Secrets:
			if !a.outdated.Load() {
				a.secrets.Apply(message.Secrets)
			}
		case *v1.SessionDown_Trust:
			a.setTrust(message.Trust)
			a.identity.SetAuthorities(message.Trust.GetCertificates())
		case *v1.SessionDown_Open:
			a.open(message.Open)
		case *v1.SessionDown_Ping:
			select {
			case pings <- message.Ping.GetSequence():
			default: // the last ping is not even answered
			}
		}
	}
}

// open serves a stream beside the session. It outlives the session and ends with its
// server.
func (a *Agent) open(open *v1.Open) {
	a.mu.Lock()
	ctx := a.running
	a.mu.Unlock()
	a.work.Go(func() { a.attach(ctx, open) })
}

// send sends heartbeats and queued reports until the session ends.
func (a *Agent) send(ctx context.Context, asked <-chan struct{}, stream sessionStream, pings <-chan uint64, known *v1.NodeStatus) error {
	ticker, renewals := time.NewTicker(a.pace.now()), time.NewTicker(lease.Renewal)
	defer ticker.Stop()
	defer renewals.Stop()
	beat := func() error {
		up, status := a.beat(ctx, known)
		known = status
		return stream.Send(up)
	}
	for {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-asked:
			return a.goodbye(stream)
		case <-a.reports.wake:
			if err = report(stream, a.reports.take()); err == nil {
				err = a.sendEvents(stream)
			}
		case <-ticker.C:
			err = beat()
		case <-renewals.C: // heartbeats may be rare
			if len(a.singletons()) > 0 {
				err = beat()
			}
		case <-a.changed:
			err = beat()
		case <-a.pace.changed:
			ticker.Reset(a.pace.now())
			err = beat() // the old interval no longer counts
		case <-a.meshState.follows.wake:
			err = stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Follow{Follow: &v1.Follow{Namespaces: a.meshState.follows.all()}}})
		case <-a.ingress.News():
			if up := a.ingress.Take(); up != nil {
				err = stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Ingress{Ingress: up}})
			}
		case <-a.secrets.Acknowledgements():
			if up := a.secrets.Take(); up != nil {
				err = stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Secrets{Secrets: up}})
			}
		case <-a.trustDue:
			err = stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Trust{Trust: a.trust.Report()}})
		case <-a.trustChanges():
			err = stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Trust{Trust: a.trust.Report()}})
		case sequence := <-pings:
			err = stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Pong{Pong: &v1.Pong{Sequence: sequence}}})
		}
		if err != nil {
			if errors.Is(err, io.EOF) { // the receiver learns why
				<-ctx.Done()
			}
			return err
		}
	}
}

// goodbyePatience is how long a server may take to receive a goodbye.
const goodbyePatience = 5 * time.Second

// goodbye tells a server that this machine goes down, if so, so that its replicas are
// replaced at once. An agent that is only restarted says nothing: its replicas go on.
func (a *Agent) goodbye(stream sessionStream) error {
	if !a.isGoingDown() {
		return nil
	}
	reason := cmp.Or(a.departure.reasonOf(), "stopped by cloudless down")
	a.mu.Lock()
	last := a.allReports() // how the last replicas have ended
	a.mu.Unlock()
	err := report(stream, last)
	if err != nil {
		return err
	}
	err = stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Goodbye{Goodbye: &v1.Goodbye{Reason: reason}}})
	return errors.Join(err, stream.CloseSend())
}

// sendEvents sends the queued events. Events that cannot be sent wait for the next session.
func (a *Agent) sendEvents(stream sessionStream) error {
	events := a.reports.takeEvents()
	if len(events) == 0 {
		return nil
	}
	err := stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Report{Report: &v1.Report{Events: events}}})
	if err != nil {
		a.reports.addEvent(events...)
	}
	return err
}

// singletons are the uids of the live replicas that need a lease.
func (a *Agent) singletons() (uids []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid, r := range a.replicas {
		if _, status := r.running(); !ended(status.GetPhase()) && r.wanted().assignment.GetRevision().GetSpec().GetWorkload().GetSingleton() {
			uids = append(uids, uid)
		}
	}
	return uids
}

// beat is a heartbeat. It includes the status if the server does not know it yet.
func (a *Agent) beat(ctx context.Context, known *v1.NodeStatus) (*v1.SessionUp, *v1.NodeStatus) {
	beat := &v1.Heartbeat{Interval: spec.FormatDuration(a.pace.now()), Replicas: a.usageNow(ctx)}
	status, err := a.status()
	if err != nil {
		a.log.Warn("cannot measure this machine", "error", err)
		status = known
	} else {
		beat.Usage = status.GetUsage()
	}
	if !sameButUsage(status, known) {
		beat.Status = status
	}
	beat.Leases, beat.LeaseNumber = a.leases.Ask(a.singletons())
	return &v1.SessionUp{Message: &v1.SessionUp_Heartbeat{Heartbeat: beat}}, status
}

// departure is whether the machine is about to shut down or to sleep. First the servers move
// its replicas to other nodes; then the agent says goodbye, and opens no session until the
// machine is back.
type departure struct {
	changed func() // tells a server

	mu     sync.Mutex
	reason string // empty while the machine stays
	since  time.Time
	// endSession ends the current session with a goodbye, and ended is closed then.
	endSession context.CancelFunc
	ended      chan struct{}
	// back is closed when the machine is back; nil while it is there.
	back chan struct{}
}

// depart announces that the machine is about to leave. It returns when no replica is left on
// it, or when ctx ends, and the servers know that the node is gone.
func (a *Agent) depart(ctx context.Context, reason string) {
	a.log.Info("replicas move to other nodes", "reason", reason)
	a.departure.begin(reason)
	a.noteChange()
	if a.hasPeers(ctx) {
		a.mu.Lock()
		replicas := slices.Collect(maps.Values(a.replicas))
		a.mu.Unlock()
		for _, r := range replicas {
			select {
			case <-r.end():
			case <-ctx.Done():
			}
		}
	}
	a.departure.leave(ctx)
}

// hasPeers reports whether there are other nodes, as far as this one knows.
func (a *Agent) hasPeers(ctx context.Context) bool {
	if a.mesh == nil {
		return true
	}
	status, err := a.mesh.Status(ctx, false)
	if err != nil {
		return true
	}
	peers := 0
	for _, count := range status.States {
		peers += count
	}
	return peers > 0
}

func (d *departure) begin(reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reason, d.since = reason, time.Now()
}

// farewellPatience is how long a machine waits for its goodbye to be sent.
const farewellPatience = 400 * time.Millisecond

// leave ends the session with a goodbye.
func (d *departure) leave(ctx context.Context) {
	d.mu.Lock()
	d.back = make(chan struct{})
	end, ended := d.endSession, d.ended
	d.mu.Unlock()
	if end == nil {
		return
	}
	end()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellPatience)
	defer cancel()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// end puts the node into service again.
func (d *departure) end() {
	d.mu.Lock()
	d.reason = ""
	if d.back != nil {
		close(d.back)
		d.back = nil
	}
	d.mu.Unlock()
	d.changed()
}

// reasonOf is why the machine leaves, empty if it stays.
func (d *departure) reasonOf() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reason
}

// condition is nil while the machine stays.
func (d *departure) condition() *v1.Condition {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reason == "" {
		return nil
	}
	return &v1.Condition{Type: spec.Departing, Status: true, Reason: d.reason, ChangeTime: timestamppb.New(d.since)}
}

// awaitPresence waits until the machine is there, and returns a context for a session that ends
// when it leaves, and a function to call after the session. gone is whether ctx has ended while
// the machine was away.
func (d *departure) awaitPresence(ctx context.Context) (present context.Context, end func(), gone bool) {
	for {
		d.mu.Lock()
		back := d.back
		if back == nil {
			present, d.endSession = context.WithCancel(ctx)
			cancel, ended := d.endSession, make(chan struct{})
			d.ended = ended
			d.mu.Unlock()
			return present, func() { cancel(); close(ended) }, false
		}
		d.mu.Unlock()
		select {
		case <-back:
		case <-ctx.Done():
			return ctx, func() {}, true
		}
	}
}
