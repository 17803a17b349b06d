package main

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
)

// Fixed windows, as in package client; its codec is used, too.
const (
	streamWindow = 1 << 20
	connWindow   = 4 << 20
)

// caller calls the API.
type caller interface {
	Cluster() v1.ClusterServiceClient
	Workloads() v1.WorkloadServiceClient
}

// plain uses only gRPC.
type plain struct{ *grpc.ClientConn }

func (p plain) Cluster() v1.ClusterServiceClient    { return v1.NewClusterServiceClient(p) }
func (p plain) Workloads() v1.WorkloadServiceClient { return v1.NewWorkloadServiceClient(p) }

// connectMany opens plain gRPC connections with TLS and API token and returns how to close
// them.
func (c *cloud) connectMany(ctx context.Context, n int) (callers []caller, hangUp func(), err error) {
	where, err := c.context()
	if err != nil {
		return nil, nil, err
	}
	trust, err := identity.ParseTrustPEM([]byte(where.CA))
	if err != nil {
		return nil, nil, err
	}
	config := identity.ClientTLS(trust, nil)
	config.NextProtos = []string{"h2"}
	var all []*grpc.ClientConn
	hangUp = func() {
		for _, one := range all {
			_ = one.Close()
		}
	}
	for range n {
		one, err := grpc.NewClient("passthrough:///"+where.Addresses[0],
			grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithPerRPCCredentials(bearer(where.Token)),
			grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connWindow),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(api.ClientCodec())))
		if err != nil {
			hangUp()
			return nil, nil, err
		}
		all, callers = append(all, one), append(callers, plain{one})
		if err := ready(ctx, one); err != nil {
			hangUp()
			return nil, nil, err
		}
	}
	return callers, hangUp, nil
}

func ready(ctx context.Context, conn *grpc.ClientConn) error {
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if state == connectivity.TransientFailure {
			return errors.New("the cloud does not answer")
		}
		if !conn.WaitForStateChange(ctx, state) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// bearer is the API token of every call.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }
