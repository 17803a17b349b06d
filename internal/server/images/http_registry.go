package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// WriteError answers in the form that registry clients show to their users.
func WriteError(w http.ResponseWriter, err error) {
	st := status.Convert(core.StatusOf(err))
	code := "UNKNOWN"
	switch st.Code() {
	case codes.Unauthenticated:
		code = "UNAUTHORIZED"
	case codes.PermissionDenied, codes.FailedPrecondition:
		code = "DENIED"
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(runtime.HTTPStatusFromCode(st.Code()))
	_ = json.NewEncoder(w).Encode(map[string]any{
		"errors": []map[string]string{{"code": code, "message": st.Message()}},
		"code":   st.Code(), "message": st.Message(), // as everywhere else
	})
}

// Handler returns the registry. Its clients cannot delete images that are in use either.
func (s *Images) Handler() http.Handler {
	next := s.registry.Handler()
	return s.forNodes(s.mirrored(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			if err := s.checkUnused(r); err != nil {
				WriteError(w, err)
				return
			}
		}
		next.ServeHTTP(w, r)
	})))
}

func (s *Images) checkUnused(r *http.Request) error {
	name, reference, isManifest := manifestOf(r)
	if !isManifest {
		if strings.Contains(r.URL.Path, "/blobs/") && !strings.Contains(r.URL.Path, "/blobs/uploads/") {
			return core.Refuse(codes.FailedPrecondition, "a layer is not deleted by itself, because images may name it: delete the images, and it goes with the last of them")
		}
		return nil
	}
	snap := s.Store.Snapshot()
	tag, digest := reference, DigestIn(snap, name, reference)
	if IsDigest(reference) {
		tag = ""
	}
	if digest == "" {
		return nil
	}
	if users := UsesOf(snap).SeenBy(core.Caller(r.Context())).Of(name, tag, digest); len(users) > 0 {
		return core.Refuse(codes.FailedPrecondition, "image %s is used by %s; remove what uses it first, or delete it all the same with: cloudless image rm --force", name, core.Listed(users))
	}
	return nil
}

// manifestOf returns the tag or digest of a request about a manifest.
func manifestOf(r *http.Request) (repository, reference string, ok bool) {
	path := strings.TrimPrefix(r.URL.Path, "/v2/")
	if i := strings.LastIndex(path, "/manifests/"); i > 0 {
		return path[:i], path[i+len("/manifests/"):], true
	}
	return "", "", false
}

// serveLeading answers at the leader: tags from the state, everything else from the
// registry.
func (s *Images) serveLeading(local http.Handler, w http.ResponseWriter, r *http.Request) {
	repository, reference, isManifest := manifestOf(r)
	switch {
	case !isManifest:
		if strings.HasSuffix(r.URL.Path, "/tags/list") || strings.HasSuffix(r.URL.Path, "/_catalog") {
			if _, err := s.ReadTags(r.Context()); err != nil {
				WriteError(w, err)
				return
			}
			s.FollowTags(r.Context()) // the registry lists its own tags
		}
		local.ServeHTTP(w, r)
	case !IsDigest(reference) && registry.CheckTag(repository, reference) != nil:
		local.ServeHTTP(w, r) // the registry writes the error
	case r.Method == http.MethodPut:
		s.servePush(local, w, r, repository, reference)
	case r.Method == http.MethodDelete:
		s.serveDelete(local, w, r, repository, reference)
	default:
		s.serveManifest(local, w, r, repository, reference)
	}
}

// servePush stores the image by its digest, makes sure that a majority of the servers has
// it, and commits the tag, before it answers the push.
func (s *Images) servePush(local http.Handler, w http.ResponseWriter, r *http.Request, repository, reference string) {
	// The registry refuses a longer one.
	body, err := io.ReadAll(io.LimitReader(r.Body, maxManifest+1))
	if err != nil {
		WriteError(w, core.Refuse(codes.InvalidArgument, "the manifest could not be read: send it again"))
		return
	}
	tag, digest := "", reference
	if !IsDigest(reference) {
		tag, digest = reference, fmt.Sprintf("sha256:%x", sha256.Sum256(body))
	}
	held := &heldAnswer{header: http.Header{}, code: http.StatusOK}
	put := named(r, repository, digest)
	put.Body = io.NopCloser(bytes.NewReader(body))
	local.ServeHTTP(held, put)
	if held.code == http.StatusCreated {
		if err := s.keepPushed(r.Context(), repository, tag, digest); err != nil {
			WriteError(w, err)
			return
		}
	}
	held.give(w)
}

// maxManifest is the maximum size of a manifest in bytes.
const maxManifest = 4 << 20

func (s *Images) keepPushed(ctx context.Context, repository, tag, digest string) error {
	if err := s.registry.Reclaim(ctx, repository, digest); err != nil {
		return err
	}
	if err := s.spread(ctx, []*v1.ImageCopy{{Repository: repository, Digest: digest}}, ""); err != nil || tag == "" {
		return err
	}
	if _, err := s.ReadTags(ctx); err != nil { // no tag is set before tags of older releases are imported
		return err
	}
	return s.SetTag(ctx, repository, tag, digest)
}

// serveDelete removes tags. An image is deleted by its digest for good only after that is
// committed.
func (s *Images) serveDelete(local http.Handler, w http.ResponseWriter, r *http.Request, repository, reference string) {
	snap, err := s.ReadTags(r.Context())
	if err == nil {
		err = s.checkUnused(r)
	}
	if err != nil {
		WriteError(w, err)
		return
	}
	if !IsDigest(reference) && DigestIn(snap, repository, reference) == "" {
		writeUnknownManifest(w, reference)
		return
	}
	if _, err := s.DeleteTags(r.Context(), repository, reference, IsDigest(reference), false); err != nil {
		WriteError(w, err)
		return
	}
	if IsDigest(reference) {
		if err := s.checkUnused(r); err != nil { // a workload was written before the deletion was committed
			WriteError(w, err)
			return
		}
		local.ServeHTTP(w, r)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// serveManifest serves the digest that the state has for a tag, and copies an image that is
// missing here from the other servers.
func (s *Images) serveManifest(local http.Handler, w http.ResponseWriter, r *http.Request, repository, reference string) {
	snap := s.Store.Snapshot()
	if !IsDigest(reference) {
		var err error
		if snap, err = s.ReadTags(r.Context()); err != nil {
			WriteError(w, err)
			return
		}
	}
	digest := DigestIn(snap, repository, reference)
	if digest == "" {
		writeUnknownManifest(w, reference)
		return
	}
	if s.promised(snap, repository, digest) {
		if err := s.Have(r.Context(), repository, digest); err != nil && !errors.Is(err, registry.ErrNotFound) {
			WriteError(w, err)
			return
		}
	}
	local.ServeHTTP(w, named(r, repository, digest))
}

// promised reports whether an image is missing here that the cluster keeps.
func (s *Images) promised(snap *state.Snapshot, repository, digest string) bool {
	_, err := s.registry.Digest(s.stopping, repository, digest)
	return errors.Is(err, registry.ErrNotFound) && s.Keep(snap)(repository, digest)
}

// named returns the request for a manifest by its digest.
func named(r *http.Request, repository, digest string) *http.Request {
	by := r.Clone(r.Context())
	by.URL.Path, by.URL.RawPath = "/v2/"+repository+"/manifests/"+digest, ""
	by.RequestURI = by.URL.RequestURI()
	return by
}

func writeUnknownManifest(w http.ResponseWriter, reference string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusNotFound)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"errors": []map[string]any{{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown", "detail": map[string]string{"Tag": reference}}},
	})
}

// heldAnswer buffers an answer; those about manifests are small.
type heldAnswer struct {
	header http.Header
	code   int
	body   []byte
}

func (h *heldAnswer) Header() http.Header  { return h.header }
func (h *heldAnswer) WriteHeader(code int) { h.code = code }

func (h *heldAnswer) Write(data []byte) (int, error) {
	h.body = append(h.body, data...)
	return len(data), nil
}

func (h *heldAnswer) give(w http.ResponseWriter) {
	for key, values := range h.header {
		w.Header()[key] = values
	}
	w.WriteHeader(h.code)
	_, _ = w.Write(h.body)
}
