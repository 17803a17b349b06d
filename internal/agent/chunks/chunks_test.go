package chunks_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/zeebo/blake3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent/chunks"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/object/transfer"
)

// cluster is an authority, and a server that uses nodes as the real ones do.
type cluster struct {
	t        *testing.T
	ca       *identity.CA
	listener net.Listener
}

func newCluster(t *testing.T, name string) *cluster {
	t.Helper()
	ca, err := identity.NewCA(name, time.Now())
	must(t, err)
	c := &cluster{t: t, ca: ca}
	config := identity.ServerTLS(ca.Trust(), c.member(identity.KindServer, "s-1").Certificate)
	config.NextProtos = []string{transfer.Protocol}
	c.listener, err = tls.Listen("tcp", "127.0.0.1:0", config)
	must(t, err)
	t.Cleanup(func() { _ = c.listener.Close() })
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// member issues a certificate, of nodes for clients only.
func (c *cluster) member(kind identity.Kind, name ...string) *identity.Credentials {
	c.t.Helper()
	id, err := identity.NewID(c.ca.Trust().Cluster(), kind, name...)
	must(c.t, err)
	key, csr, err := identity.NewKeyAndCSR()
	must(c.t, err)
	chain, err := c.ca.Issue(csr, id, identity.IssueOptions{TTL: time.Hour, Server: kind != identity.KindNode, Client: true}, time.Now())
	must(c.t, err)
	member, err := identity.NewCredentials(key, chain)
	must(c.t, err)
	return member
}

// options are those of a node that knows the cluster's server, and is in a mesh on loopback.
func (c *cluster) options(uid string) chunks.Options {
	inMesh := chunks.NewAddresses()
	inMesh.Set([]netip.Addr{netip.MustParseAddr("127.0.0.1")})
	return chunks.Options{
		Dir: filepath.Join(c.t.TempDir(), "chunks"), Logger: slog.New(slog.DiscardHandler),
		Trust: c.ca.Trust(), Certificate: c.member(identity.KindNode, uid).Certificate, Mesh: inMesh,
		Servers: func() ([]string, <-chan struct{}) { return []string{c.listener.Addr().String()}, nil },
		Others:  func() (float64, error) { return 0, nil },
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		},
	}
}

// start runs a node until the test ends.
func (c *cluster) start(o chunks.Options) {
	c.t.Helper()
	node, err := chunks.Open(o)
	must(c.t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = node.Run(ctx)
	}()
	c.t.Cleanup(func() {
		stop()
		<-ended
		if err := node.Close(); err != nil {
			c.t.Errorf("close the chunks: %v", err)
		}
	})
}

// node is the server's side of a connection that a node has opened.
type node struct {
	v1.ChunkServiceClient
	t    *testing.T
	conn net.Conn
}

// accept waits for the next connection of a node.
func (c *cluster) accept() *node {
	c.t.Helper()
	raw, err := c.listener.Accept()
	must(c.t, err)
	must(c.t, raw.(*tls.Conn).Handshake())
	conn, err := transfer.ClientOn(raw)
	must(c.t, err)
	c.t.Cleanup(func() { _ = conn.Close() })
	return &node{ChunkServiceClient: v1.NewChunkServiceClient(conn), t: c.t, conn: raw}
}

// status waits until the node's disk is as it should be.
func (n *node) status(until func(*v1.DiskStatus) bool) *v1.DiskStatus {
	n.t.Helper()
	ctx, stop := context.WithCancel(n.t.Context())
	defer stop()
	watch, err := n.WatchDisk(ctx, &v1.WatchDiskRequest{})
	must(n.t, err)
	for {
		report, err := watch.Recv()
		must(n.t, err)
		if report.GetStatus() != nil && until(report.GetStatus()) {
			return report.GetStatus()
		}
	}
}

func (n *node) list() map[transfer.Hash]uint64 {
	n.t.Helper()
	answer, err := n.ListChunks(n.t.Context(), &v1.ListChunksRequest{})
	must(n.t, err)
	all := map[transfer.Hash]uint64{}
	for i, epoch := range answer.GetEpochs() {
		all[transfer.Hash(answer.GetHashes()[32*i:32*(i+1)])] = epoch
	}
	return all
}

func (n *node) get(hash transfer.Hash) ([]byte, error) {
	return transfer.Get(n.t.Context(), n, hash, 0, 0, nil)
}

// random returns a chunk of a size.
func random(seed uint64, size int) ([]byte, transfer.Hash) {
	data := make([]byte, size)
	source := rand.New(rand.NewPCG(seed, 25))
	for i := range data {
		data[i] = byte(source.Uint32())
	}
	return data, blake3.Sum256(data)
}

// puts is a stream of chunks to a node.
type puts struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[v1.PutChunk, v1.ChunkStored]
}

func (n *node) puts() puts {
	n.t.Helper()
	stream, err := n.PutChunks(n.t.Context())
	must(n.t, err)
	return puts{n.t, stream}
}

func (p puts) first(number uint64, hash transfer.Hash, size int, data []byte) {
	p.t.Helper()
	must(p.t, p.stream.Send(&v1.PutChunk{Number: number, Hash: hash[:], Size: uint32(size), Epoch: 7, Data: data}))
}

func (p puts) more(number uint64, data []byte) {
	p.t.Helper()
	must(p.t, p.stream.Send(&v1.PutChunk{Number: number, Data: data}))
}

func (p puts) answer() *v1.ChunkStored {
	p.t.Helper()
	answer, err := p.stream.Recv()
	must(p.t, err)
	return answer
}

func TestChunksWhoseFramesAreMixedAreStored(t *testing.T) {
	c := newCluster(t, "test")
	c.start(c.options("n-1"))
	n := c.accept()
	a, hashA := random(1, 500_000)
	b, hashB := random(2, 300_000)
	empty, hashEmpty := random(3, 0)
	p := n.puts()
	p.first(1, hashA, len(a), a[:200_000])
	p.first(2, hashB, len(b), nil)
	p.more(2, b[:100_000])
	p.more(1, a[200_000:300_000])
	p.more(2, b[100_000:])
	p.first(3, hashEmpty, 0, nil)
	p.more(1, a[300_000:])
	for range 3 {
		if answer := p.answer(); answer.GetProblem() != "" {
			t.Errorf("chunk %d: %s: %s", answer.GetNumber(), answer.GetProblem(), answer.GetReason())
		}
	}
	for hash, want := range map[transfer.Hash][]byte{hashA: a, hashB: b, hashEmpty: empty} {
		if got, err := n.get(hash); err != nil || !bytes.Equal(got, want) {
			t.Errorf("read %d bytes of a chunk of %d: %v", len(got), len(want), err)
		}
		if epoch := n.list()[hash]; epoch != 7 {
			t.Errorf("a chunk of %d bytes was written in epoch %d, want 7", len(want), epoch)
		}
	}
}

func TestPartsOfChunksAreNotStored(t *testing.T) {
	c := newCluster(t, "test")
	c.start(c.options("n-1"))
	n := c.accept()
	torn, hashTorn := random(1, 500_000)
	left, hashLeft := random(2, 500_000)
	whole, hashWhole := random(3, 1000)
	p := n.puts()
	p.first(1, hashLeft, len(left), left[:400_000])
	p.more(1, nil)            // it is given up
	p.more(1, left[400_000:]) // this comes too late
	p.more(99, left[:1000])   // this belongs to nothing
	p.first(2, hashTorn, len(torn), torn[:499_999])
	p.first(3, hashWhole, len(whole), whole)
	if answer := p.answer(); answer.GetNumber() != 3 || answer.GetProblem() != "" {
		t.Errorf("answered %v, want that chunk 3 is stored", answer)
	}
	_ = n.conn.Close()
	n = c.accept()
	if all := n.list(); len(all) != 1 || all[hashWhole] != 7 {
		t.Errorf("the node has %d chunks, want the complete one", len(all))
	}
	if _, err := n.get(hashTorn); !errors.Is(err, transfer.ErrMissing) {
		t.Errorf("the torn chunk is read with %v, want that it is missing", err)
	}
}

func TestChunkWithAnotherDigestIsRefused(t *testing.T) {
	c := newCluster(t, "test")
	c.start(c.options("n-1"))
	n := c.accept()
	data, hash := random(1, 4096)
	data[17]++
	p := n.puts()
	p.first(1, hash, len(data), data)
	if answer := p.answer(); answer.GetProblem() != "damaged" {
		t.Errorf("answered %v, want that the data has another digest", answer)
	}
	if all := n.list(); len(all) != 0 {
		t.Errorf("the node has stored it")
	}
}

// Senders that break the rules end their own stream, and no other.
func TestStreamThatBreaksTheRulesEnds(t *testing.T) {
	c := newCluster(t, "test")
	c.start(c.options("n-1"))
	n := c.accept()
	data, hash := random(1, 1000)
	for what, send := range map[string]func(puts){
		"more data than announced":  func(p puts) { p.first(1, hash, 999, data) },
		"a chunk that is too large": func(p puts) { p.first(1, hash, transfer.ChunkSize+1, data) },
		"a number twice": func(p puts) {
			p.first(1, hash, 2000, data)
			p.first(1, hash, 2000, data)
		},
		"a digest of another size": func(p puts) {
			_ = p.stream.Send(&v1.PutChunk{Number: 1, Hash: []byte("short"), Size: 1, Data: []byte("x")})
		},
		"too many at a time": func(p puts) {
			for number := range uint64(1000) {
				if p.stream.Send(&v1.PutChunk{Number: number, Hash: hash[:], Size: 2000, Data: data}) != nil {
					return
				}
			}
		},
	} {
		other := n.puts()
		p := n.puts()
		send(p)
		if answer, err := p.stream.Recv(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: answered %v", what, answer)
		}
		other.first(1, hash, len(data), data)
		if answer := other.answer(); answer.GetProblem() != "" {
			t.Errorf("%s: another stream is disturbed: %v", what, answer)
		}
	}
}

func TestFullDiskIsSaid(t *testing.T) {
	c := newCluster(t, "test")
	o := c.options("n-1")
	o.Reserve = 1 << 60
	c.start(o)
	n := c.accept()
	n.status(func(s *v1.DiskStatus) bool { return s.GetFree() <= 0 && s.GetProblem() != "" })
	data, hash := random(1, 4096)
	p := n.puts()
	p.first(1, hash, len(data), data)
	if answer := p.answer(); answer.GetProblem() != "full" || answer.GetReason() == "" {
		t.Errorf("answered %v, want that the disk is full", answer)
	}
}

// A node whose store cannot be opened goes on, and tells why.
func TestStoreThatCannotBeOpenedIsSaid(t *testing.T) {
	c := newCluster(t, "test")
	o := c.options("n-1")
	must(t, os.WriteFile(o.Dir, []byte("a file where a folder should be"), 0o600))
	c.start(o)
	n := c.accept()
	n.status(func(s *v1.DiskStatus) bool { return s.GetProblem() != "" })
	data, hash := random(1, 4096)
	p := n.puts()
	p.first(1, hash, len(data), data)
	if answer := p.answer(); answer.GetProblem() != "failed" {
		t.Errorf("answered %v, want that it failed", answer)
	}
}

// A server may be known by several addresses, and gets one connection.
func TestServerWithTwoAddressesHasOneConnection(t *testing.T) {
	c := newCluster(t, "test")
	o := c.options("n-1")
	_, port, _ := net.SplitHostPort(c.listener.Addr().String())
	o.Servers = func() ([]string, <-chan struct{}) { return []string{"127.0.0.1:" + port, "localhost:" + port}, nil }
	c.start(o)
	first, second := c.accept(), c.accept()
	// The node gives up one of them; which one is a matter of luck.
	used := make(chan *node, 2)
	for _, n := range []*node{first, second} {
		go func() {
			if _, err := n.ListChunks(t.Context(), &v1.ListChunksRequest{}); err == nil {
				used <- n
			} else {
				used <- nil
			}
		}()
	}
	a, b := <-used, <-used
	if (a == nil) == (b == nil) {
		t.Fatalf("the node answers on both connections or on none: %v, %v", a != nil, b != nil)
	}
	if a == nil {
		a = b
	}
	_ = a.conn.Close()
	for back := false; !back; { // it comes back by one of them, and may give up the other one again
		_, err := c.accept().ListChunks(t.Context(), &v1.ListChunksRequest{})
		back = err == nil
	}
}

// dialMesh calls a node as another node would, with a certificate.
func (c *cluster) dialMesh(address, uid string, source identity.CertificateSource) v1.ChunkServiceClient {
	c.t.Helper()
	if source == nil {
		source = func() (*tls.Certificate, error) { return &tls.Certificate{}, nil }
	}
	creds := credentials.NewTLS(identity.NodeClientTLS(c.ca.Trust(), source, uid))
	conn, err := grpc.NewClient("passthrough:///"+address, transfer.DialOptions(creds)...)
	must(c.t, err)
	c.t.Cleanup(func() { _ = conn.Close() })
	return v1.NewChunkServiceClient(conn)
}

func TestOnlyNodesReadChunksInsideOfTheMesh(t *testing.T) {
	c := newCluster(t, "test")
	c.start(c.options("n-1"))
	n := c.accept()
	data, hash := random(1, 100_000)
	p := n.puts()
	p.first(1, hash, len(data), data)
	p.answer()
	address := n.status(func(s *v1.DiskStatus) bool { return s.GetAddress() != "" }).GetAddress()

	another := c.dialMesh(address, "n-1", c.member(identity.KindNode, "n-2").Certificate)
	if got, err := transfer.Get(t.Context(), another, hash, 0, 0, nil); err != nil || !bytes.Equal(got, data) {
		t.Errorf("another node reads %d bytes: %v", len(got), err)
	}
	if _, err := another.DeleteChunks(t.Context(), &v1.DeleteChunksRequest{Hashes: [][]byte{hash[:]}, Epoch: 100}); status.Code(err) != codes.Unimplemented {
		t.Errorf("another node deletes chunks: %v", err)
	}
	if _, err := another.ListChunks(t.Context(), &v1.ListChunksRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("another node lists chunks: %v", err)
	}
	impostor := newCluster(t, "test")
	for who, source := range map[string]identity.CertificateSource{
		"a server":                  c.member(identity.KindServer, "s-1").Certificate,
		"a user":                    c.member(identity.KindUser, "ann").Certificate,
		"a program of a replica":    c.member(identity.KindWorkload, "default", "web").Certificate,
		"a node of another cluster": impostor.member(identity.KindNode, "n-2").Certificate,
		"nobody":                    nil,
	} {
		if _, err := transfer.Get(t.Context(), c.dialMesh(address, "n-1", source), hash, 0, 0, nil); err == nil {
			t.Errorf("%s reads a chunk", who)
		}
	}
	mistaken := c.dialMesh(address, "n-3", c.member(identity.KindNode, "n-2").Certificate)
	if _, err := transfer.Get(t.Context(), mistaken, hash, 0, 0, nil); err == nil {
		t.Error("a node takes another for the one that it wanted")
	}
}

// fetch has a node get a chunk from sources, and returns the problem and its reason.
func (n *node) fetch(hash transfer.Hash, size int, sources ...*v1.ChunkSource) string {
	n.t.Helper()
	stream, err := n.FetchChunks(n.t.Context(), &v1.FetchChunksRequest{Epoch: 9, Chunks: []*v1.FetchChunk{{Hash: hash[:], Size: uint32(size), Sources: sources}}})
	must(n.t, err)
	answer, err := stream.Recv()
	must(n.t, err)
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		n.t.Errorf("after the only answer: %v", err)
	}
	return answer.GetProblem()
}

func TestNodesFetchChunksFromEachOther(t *testing.T) {
	c := newCluster(t, "test")
	var nodes []*node
	var sources []*v1.ChunkSource
	for i := range 2 {
		uid := fmt.Sprintf("n-%d", i)
		c.start(c.options(uid))
		n := c.accept()
		address := n.status(func(s *v1.DiskStatus) bool { return s.GetAddress() != "" }).GetAddress()
		nodes, sources = append(nodes, n), append(sources, &v1.ChunkSource{NodeUid: uid, Address: address})
	}
	data, hash := random(1, 4<<20)
	p := nodes[0].puts()
	p.first(1, hash, len(data), data[:1<<20])
	p.more(1, data[1<<20:2<<20])
	p.more(1, data[2<<20:])
	p.answer()
	nowhere := &v1.ChunkSource{NodeUid: "n-7", Address: "127.0.0.1:1"}
	_, unknown := random(2, 100)
	if problem := nodes[1].fetch(unknown, 100, sources[0]); problem != "missing" {
		t.Errorf("a chunk that the source does not have is %q, want missing", problem)
	}
	if problem := nodes[1].fetch(unknown, 100, sources[0], nowhere); problem != "failed" {
		t.Errorf("a chunk that a silent node may have is %q, want failed", problem)
	}
	if problem := nodes[1].fetch(hash, len(data), nowhere, sources[0]); problem != "" {
		t.Errorf("a chunk that the second source has is %q", problem)
	}
	if got, err := nodes[1].get(hash); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read %d bytes of the fetched chunk: %v", len(got), err)
	}
	// A chunk that is there needs no source, and counts as written in the epoch of the call.
	if problem := nodes[0].fetch(hash, len(data)); problem != "" || nodes[0].list()[hash] != 9 {
		t.Errorf("a chunk that is there is %q, of epoch %d", problem, nodes[0].list()[hash])
	}
}
