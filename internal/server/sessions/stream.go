package sessions

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/assignment"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/telemetry"
)

type sessionStream = grpc.BidiStreamingServer[v1.SessionUp, v1.SessionDown]

// Session serves the session of one agent until its stream ends.
func (s *Sessions) Session(stream sessionStream) error {
	if !s.Consensus.IsLeader() {
		return core.Refuse(codes.Unavailable, "this server does not lead the cluster now; try another one")
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if hello == nil {
		return core.Refuse(codes.InvalidArgument, "a session begins with hello")
	}
	node := core.Caller(stream.Context()).ID.Name()
	if err := checkStatus(hello.GetStatus()); err != nil {
		return err
	}
	if err := s.admitInstance(stream.Context(), node, hello.GetInstance(), machineName(hello.GetStatus())); err != nil {
		return err
	}
	if err := s.checkMeshKey(stream.Context(), node, hello.GetStatus()); err != nil {
		return err
	}
	current := s.connected.enter(stream.Context(), node, hello.GetInstance(), func() {
		s.nodes.Connected(node, auth.MachineOf(stream.Context()), hello.GetStatus())
		s.traffic.Began(node)
		s.reports.submit(node, s.progress.extract(s.Store.Snapshot(), node, hello.GetReplicas()))
	})
	defer s.connected.leave(current, func() {
		s.nodes.Disconnected(node)
		s.traffic.Ended(node)
		s.progress.forgetNode(node)
		s.meshKeys.release(node)
	})
	current.follow(hello.GetFollow(), s.Store.Snapshot)
	received := make(chan error, 1)
	go func() { received <- s.receive(stream, current) }() // ends with the stream
	return s.send(stream, current, received)
}

// ReportAgentLoss notes that the agent of a node has ended. A report about an agent that another one has replaced is
// out of date.
func (s *Sessions) ReportAgentLoss(ctx context.Context, request *v1.ReportAgentLossRequest) (*v1.ReportAgentLossResponse, error) {
	node := core.Caller(ctx).ID.Name()
	if current := s.connected.get(node); current == nil || current.instance == request.GetInstance() {
		s.nodes.AgentLost(node, request.GetRunning())
	}
	return &v1.ReportAgentLossResponse{}, nil
}

// maxNodeStatus bounds what one node can put into the replicated state.
const maxNodeStatus = 256 << 10

func checkStatus(status *v1.NodeStatus) error {
	if size := proto.Size(status); size > maxNodeStatus {
		return core.Refuse(codes.InvalidArgument, "the node's status has %d bytes, more than the %d that a node may take", size, maxNodeStatus)
	}
	return nil
}

// receive handles the agent's messages until the stream ends.
func (s *Sessions) receive(stream sessionStream, current *session) error {
	node := current.node
	for {
		up, err := stream.Recv()
		if err != nil {
			return err
		}
		switch m := up.GetMessage().(type) {
		case *v1.SessionUp_Heartbeat:
			if err := checkStatus(m.Heartbeat.GetStatus()); err != nil {
				return err
			}
			if err := s.checkMeshKey(stream.Context(), node, m.Heartbeat.GetStatus()); err != nil {
				return err
			}
			current.noteHeartbeat(m.Heartbeat)
			current.handle(func() { s.nodes.Heartbeat(node, m.Heartbeat) })
			s.grantLeases(current, m.Heartbeat)
			if current.pings.schedule(time.Now()) {
				current.signal()
			}
		case *v1.SessionUp_Pong:
			if took, ok := current.pings.answered(m.Pong.GetSequence(), time.Now()); ok {
				current.handle(func() { s.nodes.Answered(node, took) })
			}
		case *v1.SessionUp_Goodbye:
			current.handle(func() { s.nodes.Goodbye(node, shorten(m.Goodbye.GetReason())) })
		case *v1.SessionUp_Report:
			current.handle(func() {
				s.reports.submit(node, s.progress.extract(s.Store.Snapshot(), node, m.Report.GetReplicas()))
				s.reports.submitEvents(node, m.Report.GetEvents(), s.Now())
			})
		case *v1.SessionUp_Follow:
			current.follow(m.Follow.GetNamespaces(), s.Store.Snapshot)
		case *v1.SessionUp_Ingress:
			current.handle(func() { s.hearIngress(node, m.Ingress) })
		case *v1.SessionUp_Secrets:
			current.handle(func() { s.hearSecrets(current, m.Secrets) })
		case *v1.SessionUp_Trust:
			s.hearTrust(current, m.Trust)
		default:
			return core.Refuse(codes.InvalidArgument, "after hello a session takes heartbeats, reports, pongs, follows, reports of routes, acknowledgements of secrets and a goodbye only")
		}
	}
}

// send sends what waits in the session until the stream ends.
func (s *Sessions) send(stream sessionStream, current *session, received <-chan error) error {
	keepalive := newKeepalive()
	defer keepalive.Stop()
	for {
		select {
		case err := <-received:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-current.ctx.Done():
			return core.Refuse(codes.Unavailable, "%s", context.Cause(current.ctx))
		case <-keepalive.C:
			if !keepalive.due(s.collector.Holds()) {
				continue
			}
			if err := stream.Send(alive); err != nil {
				return err
			}
			continue
		case <-current.wake:
		}
		if err := s.sendTrust(stream, current); err != nil {
			return err
		}
		if lease := current.takeLease(); lease != nil {
			if err := stream.Send(&v1.SessionDown{Message: &v1.SessionDown_Lease{Lease: lease}}); err != nil {
				return err
			}
		}
		if err := s.sendSecrets(stream, current); err != nil { // before the replicas that need them
			return err
		}
		if current.mayAssign() {
			sent, err := s.sendAssignments(stream, current)
			if err != nil {
				return err
			}
			if sent {
				keepalive.restart(current.alive)
			}
		}
		if err := s.sendNetwork(stream, current); err != nil {
			return err
		}
		if err := s.sendIngress(stream, current); err != nil {
			return err
		}
		if sequence, ok := current.pings.take(time.Now()); ok {
			if err := stream.Send(&v1.SessionDown{Message: &v1.SessionDown_Ping{Ping: &v1.Ping{Sequence: sequence}}}); err != nil {
				return err
			}
		}
		for _, o := range current.takeOpens() {
			if err := stream.Send(&v1.SessionDown{Message: &v1.SessionDown_Open{Open: o}}); err != nil {
				return err
			}
		}
	}
}

// sendAssignments sends what the agent does not know yet, if there is anything.
func (s *Sessions) sendAssignments(stream sessionStream, current *session) (sent bool, err error) {
	full, dirty := current.take()
	message := s.withPace(current, s.withServers(current, s.assignments(current.node, full, dirty)))
	if message == nil {
		return false, nil
	}
	end := s.traceAssignments(stream.Context(), message)
	for _, one := range message.GetAssign() {
		one.Revision = s.encoded.of(one.GetRevision())
	}
	err = stream.Send(&v1.SessionDown{Message: &v1.SessionDown_Assignments{Assignments: message}})
	end(err)
	return true, err
}

// assignments returns all assignments of a node, or what is new about the dirty
// replicas, nil if there is nothing.
func (s *Sessions) assignments(node string, full bool, dirty []string) *v1.Assignments {
	snap := s.Store.Snapshot()
	message := assignment.News(snap, node, dirty)
	if full {
		message = assignment.Full(snap, node)
		message.Time = timestamppb.New(s.Now())
	}
	for _, one := range message.GetAssign() {
		one.Login = s.login(snap, one.GetRevision())
	}
	return message
}

// withServers adds the addresses of the servers to a message if the agent needs them.
// The message may be nil.
func (s *Sessions) withServers(current *session, message *v1.Assignments) *v1.Assignments {
	if !current.takeServers() {
		return message
	}
	if message == nil {
		message = &v1.Assignments{Epoch: s.Store.Snapshot().Cluster().GetStatus().GetEpoch()}
	}
	message.Servers = s.addresses()
	return message
}

// traceAssignments starts a span for each assignment in a message. The caller ends them
// when the message is sent.
func (s *Sessions) traceAssignments(ctx context.Context, message *v1.Assignments) (end func(error)) {
	if s.Tracing == nil || message.GetFull() {
		return func(error) {}
	}
	var spans []*telemetry.Span
	for _, a := range message.GetAssign() {
		if parent := telemetry.TraceOf(a.GetRevision(), time.Now()); parent != "" {
			_, span := s.Tracing.Start(telemetry.WithTraceparent(ctx, parent), telemetry.SpanInternal, "assign",
				"replica", a.GetReplica().GetMetadata().GetName(), "node", a.GetReplica().GetSpec().GetNode())
			spans = append(spans, span)
		}
	}
	return func(err error) {
		for _, span := range spans {
			span.End(err)
		}
	}
}
