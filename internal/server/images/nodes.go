package images

import (
	"errors"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/cloudless/cloudless/internal/assignment"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// forNodes lets a node pull only what the revisions of its replicas consist of. Any other caller passes. A server that lags
// may not know of a replica yet, or may lack its image: then the leader decides.
func (s *Images) forNodes(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller := core.Caller(r.Context())
		if caller.ID.Kind() != identity.KindNode || strings.Trim(r.URL.Path, "/") == "v2" {
			next.ServeHTTP(w, r)
			return
		}
		repository, reference, ok := contentOf(r)
		if ok && s.assigned(r, caller.ID.Name(), repository, reference) {
			next.ServeHTTP(w, r)
			return
		}
		leader, known := s.Consensus.Leader()
		switch alone := len(s.Consensus.Servers()) < 2; {
		case ok && !alone && known && leader.ID != s.UID:
			s.passToLeader(leader.ID, w, r)
		case ok && !alone && !known:
			refuseLeaderless(w, http.StatusServiceUnavailable, "no server leads: try again")
		default:
			WriteError(w, core.Refuse(codes.PermissionDenied, "node %s may pull only images of replicas that are assigned to it, and %s is not part of one", s.nodeName(caller.ID.Name()), strings.TrimPrefix(r.URL.Path, "/v2/")))
		}
	})
}

func (s *Images) nodeName(uid string) string {
	if name := s.Store.Snapshot().Node(uid).GetMetadata().GetName(); name != "" {
		return name
	}
	return uid
}

// contentOf returns the tag or digest that a request is about, of a manifest or a blob. Lists have none.
func contentOf(r *http.Request) (repository, reference string, ok bool) {
	if repository, reference, ok = manifestOf(r); ok {
		return repository, reference, true
	}
	path := strings.TrimPrefix(r.URL.Path, "/v2/")
	i := strings.LastIndex(path, "/blobs/")
	if i <= 0 || strings.Contains(path[i:], "/uploads/") {
		return "", "", false
	}
	return path[:i], path[i+len("/blobs/"):], true
}

// assigned reports whether a manifest or blob is part of the image of a replica that a node holds. Looking at the replicas of
// one node costs little beside the answer, and what an image consists of is remembered.
func (s *Images) assigned(r *http.Request, node, repository, reference string) bool {
	snap := s.Store.Snapshot()
	digest := reference
	if !IsDigest(reference) {
		digest = DigestIn(snap, repository, reference)
	}
	images := imagesOn(snap, node, repository)
	if digest == "" || images[digest] {
		return digest != ""
	}
	for root := range images {
		parts, err := s.registry.Reach(root)
		if errors.Is(err, registry.ErrNotFound) && s.promised(snap, repository, root) && s.Consensus.IsLeader() {
			if s.Have(r.Context(), repository, root) == nil {
				parts, err = s.registry.Reach(root)
			}
		}
		if err == nil && parts[digest] {
			return true
		}
	}
	return false
}

// imagesOn are the digests of the images of a repository that the replicas on a node run.
func imagesOn(snap *state.Snapshot, node, repository string) map[string]bool {
	images, seen := map[string]bool{}, map[string]bool{}
	for r := range snap.ReplicasOn(node) {
		revision := r.GetSpec().GetRevisionUid()
		if seen[revision] || !assignment.Holds(r, node) {
			continue
		}
		seen[revision] = true
		name, err := image.ParseName(snap.Revision(revision).GetSpec().GetImage())
		if err == nil && name.Local() && name.Repository == repository && name.Digest != "" {
			images[name.Digest] = true
		}
	}
	return images
}
