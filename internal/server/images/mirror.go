package images

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/deadpeer"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/peers"
	"github.com/cloudless/cloudless/internal/server/relay"
	"github.com/cloudless/cloudless/internal/spec"
)

// The cluster's registry serves from every server. The registries hold images; the
// replicated state maps tags to digests (tags.go). Every server passes pushes and tags to
// the leader. A push is answered when a majority of the servers has the image and the tag
// is committed. The others follow, and a server that was away receives what it has missed.
// Any server that has an image serves it by its digest.

// mirrored takes each request to a registry that can answer it.
func (s *Images) mirrored(local http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leader, known := s.Consensus.Leader()
		alone := len(s.Consensus.Servers()) < 2
		switch {
		case auth.Copying(core.Caller(r.Context()), r):
			local.ServeHTTP(w, r)
		case alone || known && leader.ID == s.UID:
			s.serveLeading(local, w, r)
		case known && asksForLayer(r):
			s.passToLeader(leader.ID, w, r)
		case byDigest(r):
			missing := &unlessMissing{ResponseWriter: w}
			local.ServeHTTP(missing, r)
			if missing.missing && known {
				s.passToLeader(leader.ID, w, r)
			} else if missing.missing {
				refuseLeaderless(w, http.StatusServiceUnavailable, "no server leads: try again")
			}
		case known:
			s.passToLeader(leader.ID, w, r)
		default:
			refuseLeaderless(w, http.StatusServiceUnavailable, "no server leads: try again")
		}
	})
}

// headerReason tells our own clients that this registry cannot answer but another server
// may.
const headerReason = "x-cloudless-reason"

func refuseLeaderless(w http.ResponseWriter, code int, why string) {
	w.Header().Set(headerReason, core.ReasonNoLeader)
	w.Header().Set("Connection", "close") // so that a retry can reach another server
	http.Error(w, why, code)
}

// byDigest reports whether a request reads something that is the same everywhere.
func byDigest(r *http.Request) bool {
	read := r.Method == http.MethodGet || r.Method == http.MethodHead
	return read && strings.Contains(r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:], ":")
}

// asksForLayer reports whether a request asks if a layer exists, as a push does. The answer
// must be the leader's, because the leader receives the push.
func asksForLayer(r *http.Request) bool {
	return r.Method == http.MethodHead && strings.Contains(r.URL.Path, "/blobs/")
}

// unlessMissing drops an answer that says that something is missing.
type unlessMissing struct {
	http.ResponseWriter
	missing, begun bool
	header         http.Header
}

func (w *unlessMissing) Header() http.Header {
	if w.header == nil {
		w.header = http.Header{}
	}
	return w.header
}

func (w *unlessMissing) WriteHeader(code int) {
	w.begun = true
	if w.missing = code == http.StatusNotFound; w.missing {
		return
	}
	for key, values := range w.header {
		w.ResponseWriter.Header()[key] = values
	}
	w.ResponseWriter.WriteHeader(code)
	w.header = w.ResponseWriter.Header()
}

func (w *unlessMissing) Write(data []byte) (int, error) {
	if !w.begun { // as the registry does with manifests, whose headers are not sent yet
		w.WriteHeader(http.StatusOK)
	}
	if w.missing {
		return len(data), nil
	}
	return w.ResponseWriter.Write(data)
}

// passToLeader lets the leader's registry answer, for the caller that this server has
// authenticated.
func (s *Images) passToLeader(leader string, w http.ResponseWriter, r *http.Request) {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(to *httputil.ProxyRequest) {
			to.SetURL(&url.URL{Scheme: "https", Host: leader})
			to.Out.Host = r.Host // uploads continue at the address that the client knows
			auth.SetCaller(to.Out.Header, core.Caller(r.Context()))
		},
		Transport:     untilAnswered{s.Transport(leader), s.router, leader},
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			s.Logger.WarnContext(r.Context(), "the leader's registry does not answer", "error", err)
			refuseLeaderless(w, http.StatusBadGateway, "the leader's registry does not answer: try again")
		},
	}
	proxy.ServeHTTP(w, r)
}

// untilAnswered stops waiting for the answer of a leader once another server leads: a
// leader that hangs never answers. An answer that has begun continues.
type untilAnswered struct {
	http.RoundTripper
	router *relay.Router
	leader string
}

func (t untilAnswered) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, giveUp := context.WithCancelCause(r.Context()) // ends with the request, when the answer has been read
	waiting, answered := t.router.UntilSucceeded(r.Context(), t.leader, false)
	defer answered()
	defer context.AfterFunc(waiting, func() { giveUp(context.Cause(waiting)) })()
	return t.RoundTripper.RoundTrip(r.WithContext(ctx))
}

// Transport reaches the HTTP side of another server, or of this one.
func (s *Images) Transport(server string) *http.Transport {
	s.mirrors.mu.Lock()
	defer s.mirrors.mu.Unlock()
	if have := s.mirrors.transports[server]; have != nil {
		return have
	}
	config := peers.TLS(s.peerConfig, server)
	config.NextProtos = []string{"http/1.1"}
	made := &http.Transport{
		TLSClientConfig: config, MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			address := s.peers.Address(server)
			if server == s.UID {
				address = spec.LoopbackAddress(s.address)
			}
			return deadpeer.Dialer().DialContext(ctx, network, address)
		},
	}
	s.mirrors.transports[server] = made
	return made
}

// spread makes the other servers copy images from this one, and returns when a majority of
// the voters has them all. The rest continues in the background, one image after the other
// at each server. The server that is leaving does not count; leaving may be empty.
func (s *Images) spread(ctx context.Context, images []*v1.ImageCopy, leaving string) error {
	others := slices.DeleteFunc(s.Consensus.Servers(), func(o consensus.Server) bool { return o.ID == s.UID || o.ID == leaving })
	voters := 1
	results := make(chan error, len(others))
	for _, other := range others {
		if other.Voter {
			voters++
		}
		s.mirrors.work.Go(func() {
			err := s.copyAll(other.ID, images)
			if other.Voter {
				results <- err
			}
		})
	}
	have, failed := 1, []error{}
	for range voters - 1 {
		if have > voters/2 {
			return nil
		}
		select {
		case err := <-results:
			if err == nil {
				have++
			} else {
				failed = append(failed, err)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if have > voters/2 {
		return nil
	}
	return core.Refuse(codes.Unavailable, "only %d of %d servers would have it, too few to keep it safe: try again when more of them run: %s",
		have, voters, errors.Join(failed...))
}

// SpreadBefore returns when a majority of the servers that remain has every image that the
// cluster keeps: a server that replaced another may not have them yet. Images that no
// server has any more are ignored.
func (s *Images) SpreadBefore(ctx context.Context, leaving string) error {
	snap := s.Store.Snapshot()
	var here []*v1.ImageCopy
	for _, image := range append(s.Tagged(snap), s.Untagged(snap)...) {
		err := s.Have(ctx, image.GetRepository(), image.GetDigest())
		if errors.Is(err, registry.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		here = append(here, &v1.ImageCopy{Repository: image.GetRepository(), Digest: image.GetDigest()})
	}
	return s.spread(ctx, here, leaving)
}

// copyAll makes another server copy images from this one.
func (s *Images) copyAll(server string, images []*v1.ImageCopy) error {
	for _, image := range images {
		if err := s.CopyTo(server, image); err != nil {
			return err
		}
	}
	return nil
}

// copyPatience limits the time to copy one image from one server to another.
const copyPatience = 10 * time.Minute

// CopyTo makes another server copy an image from this one.
func (s *Images) CopyTo(server string, image *v1.ImageCopy) error {
	ctx, cancel := context.WithTimeout(s.stopping, s.Patience)
	defer cancel()
	conn, err := s.peers.Ready(ctx, server)
	if err == nil {
		_, err = v1.NewPeerServiceClient(conn).CopyImage(ctx, &v1.CopyImageRequest{Image: image})
	}
	if err != nil {
		return fmt.Errorf("copy image %s to server %s: %w", image.GetRepository(), server, err)
	}
	return nil
}

// Copies implements the calls of the PeerService about registries.
type Copies struct{ *Images }

// CopyImage copies an image from the calling server.
func (s Copies) CopyImage(ctx context.Context, request *v1.CopyImageRequest) (*v1.CopyImageResponse, error) {
	return &v1.CopyImageResponse{}, s.CopyFrom(ctx, core.Caller(ctx).ID.Name(), request.GetImage())
}

func (s *Images) CopyFrom(ctx context.Context, server string, image *v1.ImageCopy) error {
	err := s.registry.Reclaim(ctx, image.GetRepository(), image.GetDigest())
	if errors.Is(err, registry.ErrNotFound) {
		err = s.fetchFrom(ctx, server, image)
	}
	if err == nil && image.GetTag() != "" {
		err = s.registry.SetTag(ctx, image.GetRepository(), image.GetTag(), image.GetDigest())
	}
	return err
}

// fetchFrom copies the content of an image from another server's registry, which may hang
// and never answer.
func (s *Images) fetchFrom(ctx context.Context, server string, image *v1.ImageCopy) error {
	ctx, cancel := context.WithTimeout(ctx, s.Patience)
	defer cancel()
	const host = "registry.cloudless.internal/"
	from, err := name.NewDigest(host+image.GetRepository()+"@"+image.GetDigest(), name.StrictValidation)
	if err != nil {
		return core.Refuse(codes.InvalidArgument, "%s", err)
	}
	puller, err := remote.NewPuller(remote.WithTransport(copyTransport{s.Transport(server)}))
	if err != nil {
		return err
	}
	pusher, err := remote.NewPusher(remote.WithTransport(copyTransport{s.Transport(s.UID)}))
	if err != nil {
		return err
	}
	found, err := puller.Get(ctx, from)
	if err != nil {
		return fmt.Errorf("read image %s of server %s: %w", image.GetRepository(), server, err)
	}
	if err := pusher.Push(ctx, from, found); err != nil {
		return fmt.Errorf("write image %s: %w", image.GetRepository(), err)
	}
	return nil
}

// copyTransport marks requests between the registries of servers.
type copyTransport struct{ http.RoundTripper }

func (t copyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(auth.HeaderCopy, "true")
	return t.RoundTripper.RoundTrip(r)
}

// ListCopies lists the tagged images that are here.
func (s Copies) ListCopies(ctx context.Context, _ *v1.ListCopiesRequest) (*v1.ListCopiesResponse, error) {
	all, err := s.copies(ctx)
	return &v1.ListCopiesResponse{Items: all}, err
}

func (s *Images) copies(ctx context.Context) ([]*v1.ImageCopy, error) {
	repositories, err := s.registry.List(ctx)
	if err != nil {
		return nil, err
	}
	var all []*v1.ImageCopy
	for _, repository := range repositories {
		for _, tag := range repository.Tags {
			digest, err := s.registry.Digest(ctx, repository.Name, tag)
			if errors.Is(err, registry.ErrNotFound) {
				continue // removed since it was listed
			}
			if err != nil {
				return nil, err
			}
			all = append(all, &v1.ImageCopy{Repository: repository.Name, Tag: tag, Digest: digest})
		}
	}
	return all, nil
}

// DropImage deletes an image here because it was deleted at the leader.
func (s Copies) DropImage(ctx context.Context, request *v1.DropImageRequest) (*v1.DropImageResponse, error) {
	_, err := s.registry.Delete(ctx, request.GetRepository(), request.GetReference(), request.GetNow())
	if errors.Is(err, registry.ErrNotFound) {
		err = nil
	}
	return &v1.DropImageResponse{}, err
}

// dropEverywhere tells the other servers that an image was deleted. The next round of
// mirroring tells those that it does not reach.
func (s *Images) dropEverywhere(ctx context.Context, repository, reference string, now bool) {
	for _, other := range s.Consensus.Servers() {
		if other.ID == s.UID {
			continue
		}
		if err := s.DropAt(ctx, other.ID, repository, reference, now); err != nil {
			s.Logger.InfoContext(ctx, "a server will hear later that an image was deleted", "server", other.ID, "image", repository, "error", err)
		}
	}
}

// DropAt makes another server delete an image.
func (s *Images) DropAt(ctx context.Context, server, repository, reference string, now bool) error {
	conn, err := s.peers.Ready(ctx, server)
	if err == nil {
		_, err = v1.NewPeerServiceClient(conn).DropImage(ctx, &v1.DropImageRequest{Repository: repository, Reference: reference, Now: now})
	}
	return err
}

// reclaimEverywhere prevents all servers from collecting an image that was deleted under
// only one of its tags: some servers may not know the other tags yet. It waits for none.
func (s *Images) reclaimEverywhere(ctx context.Context, image *v1.ImageCopy) {
	_ = s.registry.Reclaim(ctx, image.GetRepository(), image.GetDigest()) // it fails if the image is not here
	for _, other := range s.Consensus.Servers() {
		if other.ID == s.UID {
			continue
		}
		s.mirrors.work.Go(func() {
			if err := s.CopyTo(other.ID, image); err != nil {
				s.Logger.InfoContext(ctx, "a server will hear later that an image has another tag", "server", other.ID, "error", err)
			}
		})
	}
}

// mirrors tracks the copies in progress.
type mirrors struct {
	mu         sync.Mutex
	transports map[string]*http.Transport
	work       sync.WaitGroup

	taking   sync.Mutex // held while tags of older releases are imported
	settling sync.Mutex // held while a tag is set to that of the state
}

// forget drops the copies for a removed server.
func (m *mirrors) forget(server string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.transports[server]; t != nil {
		t.CloseIdleConnections()
	}
	delete(m.transports, server)
}

// close waits for copies in progress; they end with the server.
func (m *mirrors) close() {
	m.work.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.transports {
		t.CloseIdleConnections()
	}
}

// ForgetServer drops the copies for a removed server.
func (s *Images) ForgetServer(server string) { s.mirrors.forget(server) }

// Close waits for copies in progress; they end with the server.
func (s *Images) Close() { s.mirrors.close() }
