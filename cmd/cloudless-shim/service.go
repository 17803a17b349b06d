package main

import (
	"context"
	"errors"
	"sync"

	eventsapi "github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	taskstate "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/cloudless/cloudless/internal/logfile"
)

// service is the stock task service, except that it writes logs and does not report the end
// of a container before its log has ended.
type service struct {
	taskapi.TTRPCTaskService
	outputs *outputs

	mu      sync.Mutex
	secrets map[string]secrets // by container
}

// RegisterTTRPC is called by package shim.
func (s *service) RegisterTTRPC(server *ttrpc.Server) error {
	taskapi.RegisterTTRPCTaskService(server, s)
	return nil
}

// Create gives the stock service pipes if the client named a log, ends the container with its lease if it has one, and
// adds its secret variables.
func (s *service) Create(ctx context.Context, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	annotations, err := annotationsOf(r.Bundle)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	resp, err := s.createWith(ctx, r, secrets{annotations[secretsAnnotation]})
	if lease := annotations[leaseAnnotation]; err == nil && lease != "" {
		go s.enforceLease(context.WithoutCancel(ctx), r.ID, lease)
	}
	return resp, err
}

// createWith creates a container with secret variables.
func (s *service) createWith(ctx context.Context, r *taskapi.CreateTaskRequest, secret secrets) (*taskapi.CreateTaskResponse, error) {
	if err := secret.useMemory(); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	back, err := secret.lend(r.Bundle)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	s.mu.Lock()
	s.secrets[r.ID] = secret
	s.mu.Unlock()
	resp, err := s.create(ctx, r)
	if unlent := back(); unlent != nil {
		logrus.WithError(unlent).Error("cannot restore the configuration of the container")
	}
	return resp, err
}

// Exec adds the secret variables of the container to a further process.
func (s *service) Exec(ctx context.Context, r *taskapi.ExecProcessRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	secret := s.secrets[r.ID]
	s.mu.Unlock()
	amended, err := secret.amend(r)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return s.TTRPCTaskService.Exec(ctx, amended)
}

func (s *service) create(ctx context.Context, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	out, err := openOutput(r.Stdout, r.Stderr)
	if errors.Is(err, logfile.ErrScheme) {
		return s.TTRPCTaskService.Create(ctx, r)
	}
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	if !s.outputs.add(r.ID, out) {
		out.close()
		return nil, errgrpc.ToGRPCf(errdefs.ErrAlreadyExists, "container %s", r.ID)
	}
	inner := proto.CloneOf(r)
	inner.Stdout, inner.Stderr = out.stdout.path(r.Stdout), out.stderr.path(r.Stderr)
	resp, err := s.TTRPCTaskService.Create(ctx, inner)
	if err != nil {
		s.outputs.remove(r.ID)
		out.close()
		return nil, err
	}
	out.handOver()
	return resp, nil
}

// Wait returns when the process has exited and its output is on disk.
func (s *service) Wait(ctx context.Context, r *taskapi.WaitRequest) (*taskapi.WaitResponse, error) {
	resp, err := s.TTRPCTaskService.Wait(ctx, r)
	if err == nil && r.ExecID == "" {
		s.outputs.settle(ctx, r.ID)
	}
	return resp, err
}

// Delete ends the log too. The shim has to exit right after it.
func (s *service) Delete(ctx context.Context, r *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	if r.ExecID != "" {
		return s.TTRPCTaskService.Delete(ctx, r)
	}
	if s.hasStopped(ctx, r.ID) {
		s.outputs.settle(ctx, r.ID)
	}
	resp, err := s.TTRPCTaskService.Delete(ctx, r)
	if err != nil {
		return nil, err
	}
	if out := s.outputs.remove(r.ID); out != nil {
		out.finish()
	}
	return resp, nil
}

func (s *service) hasStopped(ctx context.Context, id string) bool {
	state, err := s.TTRPCTaskService.State(ctx, &taskapi.StateRequest{ID: id})
	return err == nil && state.Status == taskstate.Status_STOPPED
}

// State returns the log instead of the pipe of the stock service.
func (s *service) State(ctx context.Context, r *taskapi.StateRequest) (*taskapi.StateResponse, error) {
	resp, err := s.TTRPCTaskService.State(ctx, r)
	if err != nil {
		return nil, err
	}
	if out := s.outputs.get(r.ID); out != nil && r.ExecID == "" {
		resp.Stdout, resp.Stderr = out.stdout.uri(resp.Stdout), out.stderr.uri(resp.Stderr)
	}
	return resp, nil
}

// Pids returns the first process of a container even after it has ended. When containerd
// starts, it takes a shim without processes for leaked, and would clean it up together with
// an exit status that has not been read yet.
func (s *service) Pids(ctx context.Context, r *taskapi.PidsRequest) (*taskapi.PidsResponse, error) {
	resp, err := s.TTRPCTaskService.Pids(ctx, r)
	if err != nil || len(resp.Processes) > 0 {
		return resp, err
	}
	state, err := s.TTRPCTaskService.State(ctx, &taskapi.StateRequest{ID: r.ID})
	if err != nil {
		return nil, err
	}
	resp.Processes = []*taskstate.ProcessInfo{{Pid: state.Pid}}
	return resp, nil
}

// publisher makes events agree with the answers of the service.
type publisher struct {
	shim.Publisher
	outputs *outputs
}

func (p *publisher) Publish(ctx context.Context, topic string, event events.Event) error {
	switch e := event.(type) {
	case *eventsapi.TaskCreate:
		if out := p.outputs.get(e.ContainerID); out != nil && e.IO != nil {
			e.IO.Stdout, e.IO.Stderr = out.stdout.uri(e.IO.Stdout), out.stderr.uri(e.IO.Stderr)
		}
	case *eventsapi.TaskExit:
		if e.ID == e.ContainerID {
			p.outputs.settle(ctx, e.ContainerID)
		}
	}
	return p.Publisher.Publish(ctx, topic, event)
}
