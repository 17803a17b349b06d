// Package chunks gives the disk of this node to the object store: it opens the store of chunks in the data folder, and
// answers the ChunkService to servers, on connections that it opens to each of them, and to other nodes inside of the
// mesh.
//
// It guarantees that
// - nothing outside of the mesh can connect to the node;
// - other nodes only read chunks, and everybody but nodes of this cluster is refused in the handshake;
// - a chunk reaches the store as a whole or not at all;
// - chunks never fill the disk so far that the node has to evict images or replicas because of them.
//
// The package must not know sessions, objects or replicas.
package chunks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/object/transfer"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Options is what Chunks are made of.
type Options struct {
	// Dir is where the chunks are.
	Dir string
	// Reserve is how many bytes of the disk chunks leave free.
	Reserve int64
	Logger  *slog.Logger
	// Metrics may be nil.
	Metrics *telemetry.Agent

	// Trust and Certificate are those of the node.
	Trust       *identity.Trust
	Certificate identity.CertificateSource
	// Servers returns the addresses of all servers, and a channel that is closed when they have changed.
	Servers func() (addresses []string, changed <-chan struct{})
	// Dial connects to an address of a server.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Mesh are the addresses of this node inside of the mesh. Without any, no other node can get chunks from this one.
	Mesh *Addresses
	// Others is which share of this machine's CPUs other processes have used since its last call.
	Others func() (float64, error)
	// Port is where the node answers others at these addresses. 0 is any port.
	Port uint16
}

func (o *Options) validate() error {
	var missing []error
	for name, absent := range map[string]bool{
		"Dir": o.Dir == "", "Logger": o.Logger == nil, "Trust": o.Trust == nil, "Certificate": o.Certificate == nil,
		"Servers": o.Servers == nil, "Dial": o.Dial == nil, "Mesh": o.Mesh == nil,
		"Others": o.Others == nil,
	} {
		if absent {
			missing = append(missing, fmt.Errorf("option %s is missing", name))
		}
	}
	return errors.Join(missing...)
}

// How many bytes of chunks are in memory at a time: those that are being stored, and those that are being read.
const (
	storing = 64 << 20
	reading = 64 << 20
)

// Chunks are the chunks of this node. It implements the ChunkService for servers.
type Chunks struct {
	v1.UnsafeChunkServiceServer
	opts  Options
	store Store
	disk  *disk
	idle  *idleness
	log   *slog.Logger

	storing, reading *semaphore.Weighted
	peers            *peers
	links            *links
	// toServers serves everything, toNodes only GetChunk.
	toServers, toNodes *grpc.Server
}

// Open opens the store. Nothing is served before Run. A store that cannot be opened is served nevertheless: servers hear
// why nothing can be stored here.
func Open(o Options) (*Chunks, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("chunks of the node: %w", err)
	}
	c := &Chunks{
		opts: o, log: o.Logger, disk: newDisk(), idle: &idleness{others: o.Others},
		storing: semaphore.NewWeighted(storing), reading: semaphore.NewWeighted(reading),
		peers: newPeers(o.Trust, o.Certificate),
	}
	c.store = openStore(o, c.disk.damage)
	c.toServers = grpc.NewServer(transfer.ServerOptions(nil)...)
	v1.RegisterChunkServiceServer(c.toServers, c)
	tls := identity.NodeServerTLS(o.Trust, o.Certificate)
	tls.NextProtos = []string{"h2"}
	c.toNodes = grpc.NewServer(append(transfer.ServerOptions(credentials.NewTLS(tls)), grpc.MaxConcurrentStreams(nodeStreams))...)
	v1.RegisterChunkServiceServer(c.toNodes, &toNodes{chunks: c})
	c.links = newLinks(o)
	return c, nil
}

// nodeStreams is how many chunks another node may read at a time.
const nodeStreams = 64

// Close closes the store. Run must have ended.
func (c *Chunks) Close() error { return c.store.Close() }

// Run serves until ctx ends.
func (c *Chunks) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	parts.Go(func() { _ = c.toServers.Serve(c.links) })
	parts.Go(func() { c.links.run(ctx) })
	parts.Go(func() { c.disk.follow(ctx, c.status) })
	parts.Go(func() { c.serveMesh(ctx) })
	<-ctx.Done()
	c.toServers.Stop()
	c.toNodes.Stop()
	parts.Wait()
	c.peers.close()
	return nil
}

// status is how the disk is now.
func (c *Chunks) status() *v1.DiskStatus {
	now := c.store.Stats()
	now.Idle = c.idle.look()
	return now
}

// toNodes is what other nodes may call.
type toNodes struct {
	v1.UnimplementedChunkServiceServer
	chunks *Chunks
}

// GetChunk implements the ChunkService.
func (n *toNodes) GetChunk(request *v1.GetChunkRequest, stream grpc.ServerStreamingServer[v1.ChunkPiece]) error {
	return n.chunks.send(request, stream)
}
