package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// CopyOptions say which files of which replica are copied.
type CopyOptions struct {
	Namespace string
	Workload  string
	// Replica is the name of the replica; any running one if empty.
	Replica string
	// Path inside the replica, absolute.
	Path string
	// Started is called before the first file, with the name of the replica and the total size of the files, which is
	// known only when copying out of the replica. It may be nil.
	Started func(replica string, totalBytes int64)
}

func (o *CopyOptions) start(into bool) *cloudlessv1.CopyRequest {
	return &cloudlessv1.CopyRequest{Message: &cloudlessv1.CopyRequest_Start{Start: &cloudlessv1.CopyStart{
		Namespace: o.Namespace, Workload: o.Workload, Replica: o.Replica, Path: o.Path, Into: into,
	}}}
}

// errCopyCut says that the end of a copy never came.
var errCopyCut = errors.New("the connection to the replica ended before the copy had")

// CopyFrom writes the file or folder at the path as a tar archive. The archive is complete only if there is no error.
func (c *Client) CopyFrom(ctx context.Context, o CopyOptions, to io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Workloads().Copy(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(o.start(false)); err != nil && !errors.Is(err, io.EOF) { // after io.EOF the reason comes from Recv
		return err
	}
	return o.receive(stream, to)
}

// CopyInto extracts a tar archive at the path. If it fails, or from does, nothing incomplete is left there.
func (c *Client) CopyInto(ctx context.Context, o CopyOptions, from io.Reader) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := c.Workloads().Copy(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(o.start(true)); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		err := sendArchive(stream, from)
		if err != nil {
			cancel(err)
		}
		sent <- err
	}()
	err = o.receive(stream, nil)
	cancel(nil)
	if failed := <-sent; failed != nil && context.Cause(ctx) == failed { //nolint:errorlint // the very same
		return failed
	}
	return err
}

// sendArchive sends the archive and then its end. It returns only read errors; Recv says why a stream breaks.
func sendArchive(stream interface {
	Send(*cloudlessv1.CopyRequest) error
}, from io.Reader,
) error {
	for {
		buffer := make([]byte, 128<<10)
		n, err := io.ReadFull(from, buffer)
		if n > 0 && stream.Send(&cloudlessv1.CopyRequest{Message: &cloudlessv1.CopyRequest_Data{Data: buffer[:n]}}) != nil {
			return nil
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			_ = stream.Send(&cloudlessv1.CopyRequest{Message: &cloudlessv1.CopyRequest_End{End: true}})
			return nil
		case err != nil:
			return err
		}
	}
}

func (o *CopyOptions) receive(stream interface {
	Recv() (*cloudlessv1.CopyResponse, error)
}, to io.Writer,
) error {
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return errCopyCut
		}
		if err != nil {
			return err
		}
		switch message := response.GetMessage().(type) {
		case *cloudlessv1.CopyResponse_Started:
			if o.Started != nil {
				o.Started(message.Started.GetReplica(), message.Started.GetTotalBytes())
			}
		case *cloudlessv1.CopyResponse_Data:
			if err := write(to, message.Data); err != nil {
				return fmt.Errorf("take what the replica sends: %w", err)
			}
		case *cloudlessv1.CopyResponse_Done:
			if message.Done.GetError() != "" {
				return errors.New(message.Done.GetError())
			}
			return nil
		}
	}
}
