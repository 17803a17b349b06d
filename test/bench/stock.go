package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
)

// stockNamespace hides the floor's containers from the agent.
const stockNamespace = "bench"

// stock runs containers on a cloud's own daemon as if there were no Cloudless: with the
// containerd client and the stock shim of the same version. The cloud's purge also removes
// everything it creates.
type stock struct {
	client *client.Client
	image  client.Image
	shim   string
	runDir string
	cgroup string
}

func (c *cloud) openStock(ctx context.Context) (_ *stock, err error) {
	id, err := c.id()
	if err != nil {
		return nil, err
	}
	s := &stock{runDir: filepath.Join("/run/cloudless", id), cgroup: "/cloudless-" + id}
	// The tag is the one that containerd's own Makefile uses.
	s.shim, err = c.lab.build(ctx, "containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", "-tags", "no_grpc")
	if err != nil {
		return nil, err
	}
	s.client, err = client.New(filepath.Join(s.runDir, "containerd", "grpc.sock"))
	if err != nil {
		return nil, fmt.Errorf("connect to the cloud's containerd: %w", err)
	}
	if s.image, err = s.adopt(ctx, "cloudless-"+id); err != nil {
		return nil, errors.Join(fmt.Errorf("hand the image to the containerd client: %w", err), s.client.Close())
	}
	return s, nil
}

// adopt copies the image that the cloud has pulled to the floor's namespace.
func (s *stock) adopt(ctx context.Context, from string) (client.Image, error) {
	theirs := namespaces.WithNamespace(ctx, from)
	images, err := s.client.ListImages(theirs)
	if err != nil {
		return nil, err
	}
	if len(images) != 1 {
		return nil, fmt.Errorf("the cloud has %d images, not one", len(images))
	}
	name := images[0].Name()
	var tar bytes.Buffer
	if err := s.client.Export(theirs, &tar, archive.WithImage(s.client.ImageService(), name)); err != nil {
		return nil, err
	}
	mine := s.scope(ctx)
	if _, err := s.client.Import(mine, &tar, client.WithIndexName(name)); err != nil {
		return nil, err
	}
	image, err := s.client.GetImage(mine, name)
	if err != nil {
		return nil, err
	}
	return image, image.Unpack(mine, "")
}

func (s *stock) close() { _ = s.client.Close() }

func (s *stock) scope(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, stockNamespace)
}

// start creates a container and starts its process. The returned function removes both.
func (s *stock) start(ctx context.Context, name string, more ...oci.SpecOpts) (client.Task, func() error, error) {
	mine := s.scope(ctx)
	after := context.WithoutCancel(mine)
	runc := &options.Options{Root: filepath.Join(s.runDir, "bench-runc")}
	container, err := s.client.NewContainer(mine, name,
		client.WithNewSnapshot(name, s.image),
		client.WithNewSpec(append([]oci.SpecOpts{oci.WithImageConfig(s.image), oci.WithCgroup(filepath.Join(s.cgroup, name))}, more...)...),
		client.WithRuntime(s.shim, runc),
	)
	if err != nil {
		return nil, nil, err
	}
	removeContainer := func() error { return container.Delete(after, client.WithSnapshotCleanup) }
	task, err := container.NewTask(mine, cio.NullIO)
	if err != nil {
		return nil, nil, errors.Join(err, removeContainer())
	}
	removeAll := func() error {
		_, err := task.Delete(after, client.WithProcessKill)
		return errors.Join(err, removeContainer())
	}
	if err := task.Start(mine); err != nil {
		return nil, nil, errors.Join(err, removeAll())
	}
	return task, removeAll, nil
}

func (s *stock) startAndRemove(ctx context.Context, name string) (float64, error) {
	began := time.Now()
	_, remove, err := s.start(ctx, name)
	if err != nil {
		return 0, fmt.Errorf("start a container directly: %w", err)
	}
	took := time.Since(began)
	return milliseconds(took), remove()
}
