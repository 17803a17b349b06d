package server

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/internal/registry"
)

// writeRegistryError answers in the form that registry clients show to people.
func writeRegistryError(w http.ResponseWriter, err error) {
	st := status.Convert(statusOf(err))
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

// registryHandler is the registry, of which other clients cannot delete what is
// used either.
func (s *Server) registryHandler() http.Handler {
	next := s.registry.Handler()
	return s.mirrored(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			if err := s.checkUnused(r); err != nil {
				writeRegistryError(w, err)
				return
			}
		}
		next.ServeHTTP(w, r)
	}))
}

func (s *Server) checkUnused(r *http.Request) error {
	name, reference, isManifest := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/"), "/manifests/")
	if !isManifest {
		if strings.Contains(r.URL.Path, "/blobs/") && !strings.Contains(r.URL.Path, "/blobs/uploads/") {
			return refuse(codes.FailedPrecondition, "a layer is not deleted by itself, because images may name it: delete the images, and it goes with the last of them")
		}
		return nil
	}
	found, err := s.registry.Resolve(r.Context(), name, reference)
	if errors.Is(err, registry.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	tag := reference
	if reference == found.Digest {
		tag = ""
	}
	if users := imageUses(s.store.Snapshot()).of(name, tag, found.Digest); len(users) > 0 {
		return refuse(codes.FailedPrecondition, "image %s is used by %s; remove what uses it first, or delete it all the same with: cloudless image rm --force", name, listed(users))
	}
	return nil
}
