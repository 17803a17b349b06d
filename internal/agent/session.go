package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
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
		worked, err := a.session(ctx)
		if ctx.Err() != nil {
			saidGoodbye = errors.Is(err, io.EOF)
			break
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
		_ = sleep.For(ctx, pause.next())
	}
	if a.isGoingDown() && !saidGoodbye { // the last session ended before a goodbye
		_, _ = a.session(ctx)
	}
	return nil
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

// isGoingDown reports whether this agent stops for `cloudless down`, and not for a restart.
func (a *Agent) isGoingDown() bool { return a.goingDown != nil && a.goingDown() }

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
	replicas := make([]*v1.ReplicaReport, 0, len(a.replicas))
	for _, r := range a.replicas {
		replicas = append(replicas, r.report())
	}
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
			if servers := message.Assignments.GetServers(); len(servers) > 0 && a.servers != nil {
				a.servers(servers)
			}
			if !*worked {
				a.metrics.SessionOpened()
				a.log.Info("session with a server is open", "assignments", len(message.Assignments.GetAssign()), "epoch", message.Assignments.GetEpoch())
			}
			*worked = true
		case *v1.SessionDown_Network:
			a.applyNetwork(message.Network)
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
	ticker := time.NewTicker(a.pace.now())
	defer ticker.Stop()
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
		case <-a.changed:
			err = beat()
		case <-a.pace.changed:
			ticker.Reset(a.pace.now())
			err = beat() // the old interval no longer counts
		case <-a.meshState.follows.wake:
			err = stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Follow{Follow: &v1.Follow{Namespaces: a.meshState.follows.all()}}})
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
	err := stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Goodbye{Goodbye: &v1.Goodbye{Reason: "stopped by cloudless down"}}})
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
	return &v1.SessionUp{Message: &v1.SessionUp_Heartbeat{Heartbeat: beat}}, status
}
