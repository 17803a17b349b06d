package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// closeTimeout is how long a server may take to read the end of a stream.
const closeTimeout = 10 * time.Second

// attachment is a stream that carries one log, exec, copy or forwarded connection.
type attachment struct {
	stream grpc.BidiStreamingClient[v1.AttachUp, v1.AttachDown]
	cancel context.CancelFunc

	work  sync.WaitGroup
	sends sync.Mutex
	ended chan struct{} // closed when the server has ended the stream
	err   error         // why the server ended it; valid once ended is closed
}

// attach serves a server's request on a stream of its own.
func (a *Agent) attach(ctx context.Context, open *v1.Open) {
	ctx, cancel := context.WithCancel(ctx)
	at := &attachment{cancel: cancel, ended: make(chan struct{})}
	defer at.work.Wait()
	defer cancel()
	var err error
	if at.stream, err = a.client.Attach(ctx); err == nil {
		err = a.serveOpen(ctx, at, open)
	}
	if err != nil && ctx.Err() == nil {
		a.log.Warn("stream to a server ended early", "stream", fmt.Sprintf("%T", open.GetWhat()), "error", err)
	}
}

func (a *Agent) serveOpen(ctx context.Context, at *attachment, open *v1.Open) error {
	if err := at.send(&v1.AttachUp{Message: &v1.AttachUp_Id{Id: open.GetId()}}); err != nil {
		return fmt.Errorf("name the stream: %w", err)
	}
	switch what := open.GetWhat().(type) {
	case *v1.Open_Logs:
		return a.serveLogs(ctx, at, what.Logs)
	case *v1.Open_Exec:
		return a.serveExec(ctx, at, what.Exec)
	case *v1.Open_Copy:
		return a.serveCopy(ctx, at, what.Copy)
	case *v1.Open_Forward:
		return a.serveForward(ctx, at, what.Forward)
	case *v1.Open_NetworkStatus:
		return a.serveNetworkStatus(ctx, at, what.NetworkStatus)
	case *v1.Open_NetworkProbe:
		return a.serveNetworkProbe(ctx, at, what.NetworkProbe)
	}
	at.listen(nil)
	return at.refuse(errors.New("this node's agent does not know what was asked for; upgrade it to the version of the servers"))
}

// runningTask finds a replica and its running task.
func (a *Agent) runningTask(uid string) (*replica, string, error) {
	r := a.replica(uid)
	if r == nil {
		return nil, "", fmt.Errorf("this node has no replica %q", uid)
	}
	if task, _ := r.running(); task != "" {
		return r, task, nil
	}
	return nil, "", notRunning(r)
}

func notRunning(r *replica) error {
	_, status := r.running()
	return fmt.Errorf("replica %s does not run, it is in phase %q; try again when it runs", r.name(), status.GetPhase())
}

// listen receives until the server ends the stream, and then cancels the work for it. A nil
// handler is for streams that only send.
func (at *attachment) listen(handle func(*v1.AttachDown)) {
	at.work.Go(func() {
		defer at.cancel()
		defer close(at.ended)
		for {
			down, err := at.stream.Recv()
			if err != nil {
				at.err = err
				return
			}
			if handle != nil {
				handle(down)
			}
		}
	})
}

func (at *attachment) send(up *v1.AttachUp) error {
	at.sends.Lock()
	defer at.sends.Unlock()
	return at.stream.Send(up)
}

// refuse says why the stream cannot be served, or no longer.
func (at *attachment) refuse(reason error) error {
	if err := at.send(&v1.AttachUp{Message: &v1.AttachUp_Error{Error: sentence(reason.Error())}}); err != nil {
		return err
	}
	return at.finish()
}

// finish ends our side and waits until the server has ended its own: cancelling a stream
// would drop what was not sent yet.
func (at *attachment) finish() error {
	if err := at.stream.CloseSend(); err != nil {
		return err
	}
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-at.ended:
		if errors.Is(at.err, io.EOF) {
			return nil
		}
		return at.err
	case <-timer.C:
		return fmt.Errorf("the server did not end the stream within %s", closeTimeout)
	}
}
