package agent

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
)

// login returns the credentials for the image's registry, or nil.
func (r *replica) login() *driver.Login {
	login := r.wanted().login
	if login == nil {
		return nil
	}
	return &driver.Login{Username: login.GetUsername(), Password: login.GetPassword()}
}

// progressInterval is the shortest time between two progress reports of a pull.
const progressInterval = 500 * time.Millisecond

// prepare fetches what the task needs and reports the progress.
func (r *replica) prepare(ctx context.Context, task driver.Task) error {
	source, ok := r.driver.(driver.Progresser)
	if !ok {
		return r.driver.Prepare(ctx, task)
	}
	following, stop := context.WithCancel(ctx)
	var follower sync.WaitGroup
	follower.Go(func() { r.followPull(following, source, task.Image) })
	err := r.driver.Prepare(ctx, task)
	stop()
	follower.Wait()
	r.showProgress(nil)
	return err
}

func (r *replica) followPull(ctx context.Context, source driver.Progresser, image string) {
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if at, ok := source.Progress(ctx, image); ok && ctx.Err() == nil {
			r.showProgress(&v1.Progress{What: "pulling " + image, DoneBytes: at.Done, TotalBytes: at.Total})
		}
	}
}

// showProgress adds the progress to the visible status and reports it. It is not part of
// the record: after a crash it means nothing.
func (r *replica) showProgress(at *v1.Progress) {
	r.mu.Lock()
	if proto.Equal(r.status.GetProgress(), at) {
		r.mu.Unlock()
		return
	}
	status := proto.CloneOf(r.status)
	status.Progress = at
	r.status = status
	r.mu.Unlock()
	r.reports.add(r.report())
}
