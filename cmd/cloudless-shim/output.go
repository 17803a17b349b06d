package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/logfile"
)

// settleLimit is how long to wait for output after the container has exited. What the
// container itself wrote is on disk long before. Only a pipe that another process keeps
// open takes longer, perhaps for ever.
const settleLimit = 3 * time.Second

// output is the destination of one container's output.
type output struct {
	stdout, stderr *sink // nil for a stream without a log
	writers        map[string]*logfile.Writer
	pumps          sync.WaitGroup
	drained        chan struct{} // closed when all pipes have ended

	exited  sync.Once
	expired chan struct{} // closed when the wait for output has ended
}

// sink is a pipe into a log.
type sink struct {
	log  string // the URI that the client gave
	r, w *os.File
	name string // the name by which the stock service opens w
}

// path is what the stock service gets instead of a URI.
func (s *sink) path(uri string) string {
	if s == nil {
		return uri
	}
	return s.name
}

// uri is what clients see instead of a path.
func (s *sink) uri(path string) string {
	if s == nil {
		return path
	}
	return s.log
}

// openOutput makes the pipes for the URIs that are logs and begins to read them. If none is
// a log, it fails with logfile.ErrScheme.
func openOutput(stdout, stderr string) (_ *output, err error) {
	o := &output{
		writers: map[string]*logfile.Writer{},
		drained: make(chan struct{}),
		expired: make(chan struct{}),
	}
	defer func() {
		if err != nil {
			o.close()
		}
	}()
	if o.stdout, err = o.open(stdout); err != nil {
		return nil, err
	}
	if o.stderr, err = o.open(stderr); err != nil {
		return nil, err
	}
	if o.stdout == nil && o.stderr == nil {
		return nil, logfile.ErrScheme
	}
	o.pump(logfile.Stdout, o.stdout)
	o.pump(logfile.Stderr, o.stderr)
	go func() {
		o.pumps.Wait()
		close(o.drained)
	}()
	return o, nil
}

// open makes a pipe to the log that uri names; it returns nil if uri is not a log. Streams
// with the same URI share a writer.
func (o *output) open(uri string) (*sink, error) {
	dir, limits, err := logfile.ParseURI(uri)
	if errors.Is(err, logfile.ErrScheme) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if o.writers[uri] == nil {
		w, err := logfile.Open(dir, logfile.WriterOptions{Limits: limits})
		if err != nil {
			return nil, err
		}
		o.writers[uri] = w
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe for output: %w", err)
	}
	return &sink{log: uri, r: r, w: w, name: fmt.Sprintf("/proc/self/fd/%d", w.Fd())}, nil
}

func (o *output) pump(stream logfile.Stream, s *sink) {
	if s == nil {
		return
	}
	o.pumps.Go(func() {
		defer s.r.Close()
		// Reading a pipe fails only when close has been called.
		_ = o.writers[s.log].Pump(stream, s.r)
	})
}

// handOver closes our ends of the pipes, after the stock service has opened its own.
func (o *output) handOver() {
	for _, s := range []*sink{o.stdout, o.stderr} {
		if s != nil {
			s.w.Close()
		}
	}
}

// settle waits until all output is on disk, but not for ever: the time runs from the first
// call, which comes when the container has exited.
func (o *output) settle(ctx context.Context) {
	o.exited.Do(func() {
		time.AfterFunc(settleLimit, func() { close(o.expired) })
	})
	select {
	case <-o.drained:
	case <-o.expired:
	case <-ctx.Done():
	}
}

// finish ends the log after the stock service has closed the pipes, even if other processes
// keep them open: it reads only what the pipes hold then.
func (o *output) finish() {
	select {
	case <-o.drained:
	case <-time.After(settleLimit):
	}
	o.close()
}

// close ends the log, whether all output has arrived or not.
func (o *output) close() {
	o.handOver()
	for _, s := range []*sink{o.stdout, o.stderr} {
		if s != nil {
			s.r.Close()
		}
	}
	o.pumps.Wait()
	for _, w := range o.writers {
		_ = w.Close() // all errors of writes have been reported
	}
}

// outputs maps the ids of this shim's containers to their outputs.
type outputs struct {
	mu   sync.Mutex
	byID map[string]*output
}

func newOutputs() *outputs { return &outputs{byID: map[string]*output{}} }

// add reports false if the container already has an output.
func (o *outputs) add(id string, out *output) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byID[id] != nil {
		return false
	}
	o.byID[id] = out
	return true
}

func (o *outputs) get(id string) *output {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.byID[id]
}

func (o *outputs) remove(id string) *output {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := o.byID[id]
	delete(o.byID, id)
	return out
}

// settle waits for the output of a container, if there is any.
func (o *outputs) settle(ctx context.Context, id string) {
	if out := o.get(id); out != nil {
		out.settle(ctx)
	}
}
