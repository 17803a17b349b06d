// Package secrets measures how soon replicas have a new version of a secret: from the call that sets it until the nodes of
// all replicas have acknowledged that it is in their files.
//
// It must not know how a cloud is started, nor how figures are recorded.
package secrets

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/sleep"
)

// Where is the label by which the workloads find their nodes: Real or Simulated.
const (
	Where     = "where"
	Real      = "real"
	Simulated = "simulated"
)

const (
	name      = "bench"
	pollEvery = 100 * time.Millisecond
	// settle is how long the nodes have between two versions.
	settle = time.Second
)

// Stand is a cloud with nodes of both kinds.
type Stand struct {
	API *client.Client
	// Image is a program that runs until it is stopped.
	Image string
	// Real and Simulated are how many replicas there are of each kind.
	Real, Simulated int32
}

// Deliver sets so many versions, and returns how long each took.
func (s *Stand) Deliver(ctx context.Context, versions int) (took []time.Duration, err error) {
	calls := client.Service(s.API, v1.NewSecretServiceClient)
	if _, err := calls.SetSecret(ctx, version(0)); err != nil {
		return nil, err
	}
	for where, replicas := range map[string]int32{Real: s.Real, Simulated: s.Simulated} {
		if replicas == 0 {
			continue
		}
		w := &v1.Workload{Metadata: &v1.Metadata{Name: where}, Spec: &v1.WorkloadSpec{
			Image: s.Image, Replicas: proto.Int32(replicas), Placement: &v1.Placement{Labels: map[string]string{Where: where}},
			Secrets: []*v1.SecretRef{{Name: name, Path: "/run/secrets/bench/value"}},
		}}
		if _, err := s.API.Workloads().ApplyWorkload(ctx, &v1.ApplyWorkloadRequest{Workload: w}); err != nil {
			return nil, err
		}
	}
	if err := s.untilAll(ctx, calls, 1); err != nil {
		return nil, err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	changes, err := calls.WatchSecrets(watching, &v1.WatchSecretsRequest{})
	if err != nil {
		return nil, err
	}
	for i := range versions {
		if err := sleep.For(ctx, settle); err != nil {
			return nil, err
		}
		began := time.Now()
		set, err := calls.SetSecret(ctx, version(i+1))
		if err != nil {
			return nil, err
		}
		if err := s.await(changes, set.GetStatus().GetVersion()); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}

func version(i int) *v1.SetSecretRequest {
	return &v1.SetSecretRequest{Name: name, Value: []byte("the value of version " + strconv.Itoa(i))}
}

func (s *Stand) all(secret *v1.Secret, version uint64) bool {
	st := secret.GetStatus()
	return st.GetVersion() == version && st.GetDelivered() == s.Real+s.Simulated
}

// untilAll waits until all replicas run with a version.
func (s *Stand) untilAll(ctx context.Context, calls v1.SecretServiceClient, version uint64) error {
	for {
		secret, err := calls.GetSecret(ctx, &v1.GetSecretRequest{Name: name})
		if err != nil || s.all(secret, version) {
			return err
		}
		if err := sleep.For(ctx, pollEvery); err != nil {
			return fmt.Errorf("%d of %d replicas have the secret: %w", secret.GetStatus().GetDelivered(), s.Real+s.Simulated, err)
		}
	}
}

// await reads changes until all replicas have a version.
func (s *Stand) await(changes grpc.ServerStreamingClient[v1.SecretChange], version uint64) error {
	for {
		change, err := changes.Recv()
		if err != nil || s.all(change.GetSecret(), version) {
			return err
		}
	}
}
