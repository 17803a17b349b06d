package client_test

import (
	"context"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/identity"
)

// forgetful executes each call, and breaks the connection before it answers.
type forgetful struct {
	cloudlessv1.UnimplementedClusterServiceServer
	cloudlessv1.UnimplementedNodeServiceServer
	cloudlessv1.UnimplementedImageServiceServer
	cloudlessv1.UnimplementedWorkloadServiceServer
	done atomic.Int32
}

func (f *forgetful) register(r grpc.ServiceRegistrar) {
	cloudlessv1.RegisterClusterServiceServer(r, f)
	cloudlessv1.RegisterNodeServiceServer(r, f)
	cloudlessv1.RegisterImageServiceServer(r, f)
	cloudlessv1.RegisterWorkloadServiceServer(r, f)
}

func (f *forgetful) lost() error {
	f.done.Add(1)
	return status.Error(codes.Unavailable, "the connection broke")
}

func (f *forgetful) SetConfiguration(context.Context, *cloudlessv1.SetConfigurationRequest) (*cloudlessv1.Configuration, error) {
	return nil, f.lost()
}

func (f *forgetful) RollbackConfiguration(context.Context, *cloudlessv1.RollbackConfigurationRequest) (*cloudlessv1.Configuration, error) {
	return nil, f.lost()
}

func (f *forgetful) DeleteNode(context.Context, *cloudlessv1.DeleteNodeRequest) (*cloudlessv1.Node, error) {
	return nil, f.lost()
}

func (f *forgetful) CordonNode(context.Context, *cloudlessv1.CordonNodeRequest) (*cloudlessv1.Node, error) {
	return nil, f.lost()
}

func (f *forgetful) UpdateNode(context.Context, *cloudlessv1.UpdateNodeRequest) (*cloudlessv1.Node, error) {
	return nil, f.lost()
}

func (f *forgetful) SetLogin(context.Context, *cloudlessv1.SetLoginRequest) (*cloudlessv1.Login, error) {
	return nil, f.lost()
}

func (f *forgetful) RunWorkload(context.Context, *cloudlessv1.RunWorkloadRequest) (*cloudlessv1.Workload, error) {
	if f.done.Load() > 0 {
		return &cloudlessv1.Workload{}, nil
	}
	return nil, f.lost()
}

// The client's idempotency key makes a retry harmless.
func TestCallWithAKeyIsRetried(t *testing.T) {
	a := newAuthority(t, "one")
	server := &forgetful{}
	c := dial(t, a.context(a.serve(identity.KindServer, server.register)))
	if _, err := c.Workloads().RunWorkload(t.Context(), &cloudlessv1.RunWorkloadRequest{Name: "nightly"}); err != nil {
		t.Error(err)
	}
}

// A change without an idempotency key is made once, even if its outcome is unknown: others may have changed the same
// object since, and a change of a given version would be refused because of itself.
func TestChangeWithoutAKeyIsNotRetried(t *testing.T) {
	for name, change := range map[string]func(context.Context, *client.Client) error{
		"set the configuration": func(ctx context.Context, c *client.Client) error {
			_, err := c.Cluster().SetConfiguration(ctx, &cloudlessv1.SetConfigurationRequest{})
			return err
		},
		"roll the configuration back": func(ctx context.Context, c *client.Client) error {
			_, err := c.Cluster().RollbackConfiguration(ctx, &cloudlessv1.RollbackConfigurationRequest{Number: 1})
			return err
		},
		"remove a node": func(ctx context.Context, c *client.Client) error {
			_, err := c.Nodes().DeleteNode(ctx, &cloudlessv1.DeleteNodeRequest{Name: "one"})
			return err
		},
		"cordon a node": func(ctx context.Context, c *client.Client) error {
			_, err := c.Nodes().CordonNode(ctx, &cloudlessv1.CordonNodeRequest{Name: "one", Version: 7})
			return err
		},
		"label a node": func(ctx context.Context, c *client.Client) error {
			_, err := c.Nodes().UpdateNode(ctx, &cloudlessv1.UpdateNodeRequest{Name: "one", Labels: map[string]string{"disk": "ssd"}})
			return err
		},
		"set a login": func(ctx context.Context, c *client.Client) error {
			_, err := c.Images().SetLogin(ctx, &cloudlessv1.SetLoginRequest{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAuthority(t, "one")
			server := &forgetful{}
			c := dial(t, a.context(a.serve(identity.KindServer, server.register)))
			if err := change(t.Context(), c); status.Code(err) != codes.Unavailable {
				t.Errorf("the error is %v, want that the connection broke", err)
			}
			if done := server.done.Load(); done != 1 {
				t.Errorf("it was done %d times", done)
			}
		})
	}
}
