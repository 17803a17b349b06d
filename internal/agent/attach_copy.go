package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/tarcopy"
)

// copyChunk is how much of an archive one message carries.
const copyChunk = 128 << 10

var errReplicaEnded = errors.New("the replica ended before the copy had")

// serveCopy reads or writes files of a replica. It ends with the stream and with the
// replica: an open root folder could not be removed from the disk.
func (a *Agent) serveCopy(ctx context.Context, at *attachment, open *v1.OpenCopy) error {
	r, root, task, err := a.copyTarget(ctx, open.GetReplicaUid())
	if err != nil {
		at.listen(nil)
		return at.refuse(err)
	}
	defer root.Dir.Close()
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	at.work.Go(func() {
		if _, err := r.driver.Wait(work, task); err == nil {
			cancel(errReplicaEnded)
		}
	})
	serve := a.copyFrom
	if open.GetStart().GetInto() {
		serve = a.copyInto
	}
	if err = visible(r.name(), root, open.GetStart().GetPath()); err == nil {
		err = serve(work, at, r, root, open.GetStart())
	}
	if err != nil && errors.Is(context.Cause(work), errReplicaEnded) {
		err = errReplicaEnded
	}
	cancel(nil)
	return at.copied(r, err)
}

// copyTarget finds the running task of a replica and its root folder.
func (a *Agent) copyTarget(ctx context.Context, uid string) (*replica, driver.Root, string, error) {
	r, task, err := a.runningTask(uid)
	if err != nil {
		return nil, driver.Root{}, "", err
	}
	rooter, able := r.driver.(driver.Rooter)
	if !able {
		return nil, driver.Root{}, "", fmt.Errorf("replica %s runs by driver %q, whose files cannot be reached", r.name(), r.driver.Name())
	}
	root, err := rooter.Root(ctx, task)
	if errors.Is(err, driver.ErrNotRunning) || errors.Is(err, driver.ErrNotFound) {
		return nil, driver.Root{}, "", notRunning(r)
	}
	return r, root, task, err
}

// visible refuses a path at which the replica sees other files than this machine does.
func visible(replica string, root driver.Root, name string) error {
	name = path.Clean("/" + name)
	for _, hidden := range root.Hidden {
		if name == hidden || strings.HasPrefix(name, hidden+"/") {
			return fmt.Errorf("%s of replica %s is in the memory of its sandbox and cannot be reached; copy from or to another folder", name, replica)
		}
	}
	return nil
}

// copyFrom sends the file or folder at the path.
func (a *Agent) copyFrom(ctx context.Context, at *attachment, r *replica, root driver.Root, start *v1.CopyStart) error {
	at.listen(nil)
	out := bufio.NewWriterSize(archive{at}, copyChunk)
	var sent error
	err := tarcopy.Inside(root.Dir).Pack(ctx, out, start.GetPath(), tarcopy.PackOptions{
		As:    tarcopy.Base(start.GetPath()),
		Total: func(bytes int64) { sent = at.copyStarted(r, bytes) },
	})
	return errors.Join(sent, err, out.Flush())
}

// copyInto writes the received archive to the path.
func (a *Agent) copyInto(ctx context.Context, at *attachment, r *replica, root driver.Root, start *v1.CopyStart) error {
	reader, writer := io.Pipe()
	defer reader.Close() // later writes are dropped
	stop := context.AfterFunc(ctx, func() { writer.CloseWithError(context.Cause(ctx)) })
	defer stop()
	at.listen(func(down *v1.AttachDown) {
		switch message := down.GetCopy().GetMessage().(type) {
		case *v1.CopyRequest_Data:
			_, _ = writer.Write(message.Data) // fails once the reader is closed
		case *v1.CopyRequest_End:
			_ = writer.Close()
		}
	})
	if err := at.copyStarted(r, 0); err != nil {
		return err
	}
	err := tarcopy.Inside(root.Dir).Unpack(ctx, reader, tarcopy.UnpackOptions{
		Path: start.GetPath(), Owner: &tarcopy.Owner{UID: root.UID, GID: root.GID},
	})
	if errors.Is(err, unix.EROFS) {
		return fmt.Errorf("%s cannot be written: the root of replica %s is read-only there; copy to a folder that is not, or set readOnlyRoot to false", start.GetPath(), r.name())
	}
	return err
}

// archive is a writer that sends each write as a message.
type archive struct{ *attachment }

func (a archive) Write(b []byte) (int, error) {
	if err := a.sendCopy(&v1.CopyResponse{Message: &v1.CopyResponse_Data{Data: b}}); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (at *attachment) sendCopy(response *v1.CopyResponse) error {
	return at.send(&v1.AttachUp{Message: &v1.AttachUp_Copy{Copy: response}})
}

func (at *attachment) copyStarted(r *replica, total int64) error {
	return at.sendCopy(&v1.CopyResponse{Message: &v1.CopyResponse_Started{Started: &v1.CopyStarted{Replica: r.name(), TotalBytes: total}}})
}

// copied reports the outcome of the copy.
func (at *attachment) copied(r *replica, err error) error {
	done := &v1.CopyDone{}
	if err != nil {
		done.Error = sentence(fmt.Sprintf("replica %s: %v", r.name(), err))
	}
	if err := at.sendCopy(&v1.CopyResponse{Message: &v1.CopyResponse_Done{Done: done}}); err != nil {
		return err
	}
	return at.finish()
}
