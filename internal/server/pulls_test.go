package server

import (
	"net/http"
	"strings"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// pull asks for a manifest or blob as a node, and returns the status code.
func (m *member) pull(path string) (int, string) {
	m.c.t.Helper()
	response, body := m.c.request(m.creds, http.MethodGet, "/v2/"+path, "")
	return response.StatusCode, body
}

func TestNodePullsOnlyImagesOfItsReplicas(t *testing.T) {
	c := newCluster(t)
	index := indexFor(t, "amd64", "arm64")
	c.pushContent("app:1", index)
	secret := indexFor(t, "amd64")
	c.pushContent("secret:1", secret)
	other := c.push("app:other")

	mine, idle := c.join("mine"), c.join("idle")
	stream := mine.connect(c.ctx)
	assignments(t, stream)
	_, err := c.as(core.RoleOperator).CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web", imageOf("app:1"))})
	must(t, err)
	c.until(func(snap *state.Snapshot) bool {
		for range snap.ReplicasOn(mine.uid()) {
			return true
		}
		return false
	})

	of := func(repository string, digest interface{ String() string }) []string {
		return []string{repository + "/manifests/" + digest.String()}
	}
	manifest, err := index.IndexManifest()
	must(t, err)
	root, err := index.Digest()
	must(t, err)
	allowed := append(of("app", root), "app/manifests/1", "")
	for _, child := range manifest.Manifests {
		img, err := index.Image(child.Digest)
		must(t, err)
		is, err := img.Manifest()
		must(t, err)
		allowed = append(allowed, of("app", child.Digest)...)
		allowed = append(allowed, "app/blobs/"+is.Config.Digest.String(), "app/blobs/"+is.Layers[0].Digest.String())
	}
	for _, path := range allowed {
		if code, body := mine.pull(path); code != http.StatusOK {
			t.Errorf("the node gets %d for %q, a part of its image: %s", code, path, body)
		}
		if code, _ := idle.pull(path); path != "" && code != http.StatusForbidden {
			t.Errorf("a node without replicas gets %d for %q", code, path)
		}
	}

	foreign, err := secret.Digest()
	must(t, err)
	theirs, err := secret.IndexManifest()
	must(t, err)
	img, err := secret.Image(theirs.Manifests[0].Digest)
	must(t, err)
	is, err := img.Manifest()
	must(t, err)
	for _, path := range []string{
		"secret/manifests/1", "secret/manifests/" + foreign.String(), "secret/blobs/" + is.Config.Digest.String(), "secret/blobs/" + is.Layers[0].Digest.String(),
		"app/blobs/" + is.Layers[0].Digest.String(), "app/manifests/other", "app/manifests/" + other, "app/manifests/none",
		"_catalog", "app/tags/list", "secret/tags/list",
	} {
		if code, body := mine.pull(path); code == http.StatusOK || code == http.StatusForbidden && !strings.Contains(body, "node mine may pull only images of replicas that are assigned to it") {
			t.Errorf("the node gets %d for %q, which it does not run: %s", code, path, body)
		}
	}
}
