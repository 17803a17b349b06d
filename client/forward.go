package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// ForwardOptions say which port of which replica a connection goes to.
type ForwardOptions struct {
	Namespace string
	Workload  string
	// Replica is the name of the replica; any running one if empty.
	Replica string
	// Port is the TCP port inside the replica. It need not be in the ports of the workload.
	Port uint16
	// Prefer names the replica to use if Replica is empty and that one still runs.
	Prefer string
	// Started is called when the connection is established, with the name of the replica. It may be nil.
	Started func(replica string)
}

func (o *ForwardOptions) start(check bool) *cloudlessv1.ForwardRequest {
	return &cloudlessv1.ForwardRequest{Message: &cloudlessv1.ForwardRequest_Start{Start: &cloudlessv1.ForwardStart{
		Namespace: o.Namespace, Workload: o.Workload, Replica: o.Replica, Port: uint32(o.Port), Prefer: o.Prefer, Check: check,
	}}}
}

// HalfCloser is a connection of which each direction can end by itself, such as *net.TCPConn.
type HalfCloser interface {
	io.ReadWriteCloser
	CloseWrite() error
}

type forwardStream interface {
	Send(*cloudlessv1.ForwardRequest) error
	Recv() (*cloudlessv1.ForwardResponse, error)
}

// errForwardCut says that the end of a connection never came.
var errForwardCut = errors.New("the connection to the replica ended too early")

// ForwardTarget returns the name of the replica that a connection would go to now.
func (c *Client) ForwardTarget(ctx context.Context, o ForwardOptions) (replica string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.beginForward(ctx, o.start(true))
	if err != nil {
		return "", err
	}
	answer, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		err = errForwardCut
	}
	return answer.GetStarted().GetReplica(), err
}

// Forward connects conn with a port inside a replica, until both have ended their side or the connection breaks. It does
// not close conn: after an error the caller resets it, so that the program behind it can tell that data is missing.
// A Read of conn may be pending when Forward returns.
func (c *Client) Forward(ctx context.Context, o ForwardOptions, conn HalfCloser) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := c.beginForward(ctx, o.start(false))
	if err != nil {
		return err
	}
	go func() {
		if err := sendConnection(stream, conn); err != nil {
			cancel(err) // the replica must not take this for an orderly end
		}
	}()
	err = o.receive(stream, conn)
	if broken := context.Cause(ctx); broken != nil && err != nil {
		return broken
	}
	return err
}

func (c *Client) beginForward(ctx context.Context, start *cloudlessv1.ForwardRequest) (forwardStream, error) {
	stream, err := c.Workloads().Forward(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(start); err != nil && !errors.Is(err, io.EOF) { // after io.EOF the reason comes from Recv
		return nil, err
	}
	return stream, nil
}

// sendConnection sends what it reads, and then the end. It returns only read errors; Recv says why a stream breaks.
func sendConnection(stream forwardStream, conn io.Reader) error {
	buffer := make([]byte, 32<<10)
	for {
		n, err := conn.Read(buffer)
		if n > 0 && stream.Send(&cloudlessv1.ForwardRequest{Message: &cloudlessv1.ForwardRequest_Data{Data: buffer[:n]}}) != nil {
			return nil
		}
		if errors.Is(err, io.EOF) {
			_ = stream.Send(&cloudlessv1.ForwardRequest{Message: &cloudlessv1.ForwardRequest_End{End: true}})
			return nil
		}
		if err != nil {
			return fmt.Errorf("read from the local connection: %w", err)
		}
	}
}

func (o *ForwardOptions) receive(stream forwardStream, conn HalfCloser) error {
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return errForwardCut
		}
		if err != nil {
			return err
		}
		switch message := response.GetMessage().(type) {
		case *cloudlessv1.ForwardResponse_Started:
			if o.Started != nil {
				o.Started(message.Started.GetReplica())
			}
		case *cloudlessv1.ForwardResponse_Data:
			if _, err := conn.Write(message.Data); err != nil {
				return fmt.Errorf("write to the local connection: %w", err)
			}
		case *cloudlessv1.ForwardResponse_End:
			if err := conn.CloseWrite(); err != nil {
				return fmt.Errorf("end the local connection: %w", err)
			}
		case *cloudlessv1.ForwardResponse_Done:
			if message.Done.GetError() != "" {
				return errors.New(message.Done.GetError())
			}
			return nil
		}
	}
}
