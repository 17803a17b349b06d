package cli

import (
	"context"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/command"
)

func TestPushSaysWhatItSent(t *testing.T) {
	c := newCluster(t)
	c.registry = registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	c.run(t.Context(), "", "image", "push", "web:1", buildProgram(t, "arm64")).
		expect(t, 0, "image web:1 pushed: sha256:0123456789ab, 2.3 MB\n", "")
	c.run(t.Context(), "", "image", "push", "ghcr.io/web:1", "./x").
		expect(t, 1, "", "cloudless: ghcr.io/web:1 names another registry: this pushes to the cluster's own, so give a name without a registry\n")
	if got := c.run(t.Context(), "", "image", "push", "./x", "web:1"); got.code != 1 || !strings.HasSuffix(got.stderr, ": the name comes first: cloudless image push web:1 ./x\n") {
		t.Errorf("%+v", got)
	}
}

// Run and push refuse an image that no node can run with the same message, before they send anything.
func TestPushAndRunRefuseForeignPlatforms(t *testing.T) {
	c := newCluster(t)
	c.registry = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Errorf("asked for %s %s", r.Method, r.URL) })
	program, dir := buildProgram(t, "amd64"), t.TempDir()
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []struct{ path, want string }{
		{program, "is for linux/amd64, but the cluster's nodes are linux/arm64: build it for one of them (with Go: GOARCH=arm64 go build)"},
		{script, "is a script"},
		{dir, "is a folder but not an OCI image layout"},
		{filepath.Join(dir, "nothing"), "does not exist"},
	} {
		for _, verb := range [][]string{{"run", bad.path, "--name", "x"}, {"image", "push", "x:1", bad.path}} {
			if got := c.run(t.Context(), "", verb...); got.code != 1 || !strings.Contains(got.stderr, bad.want) {
				t.Errorf("%v: %+v, want %q", verb, got, bad.want)
			}
		}
	}
	c.registry = registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if got := c.run(t.Context(), "", "image", "push", "--any-platform", "x:1", program); got.code != 0 {
		t.Errorf("with --any-platform: %+v", got)
	}
}

// A password is never an argument.
func TestLoginReadsThePasswordFromStdin(t *testing.T) {
	c := newCluster(t)
	c.run(t.Context(), "s3cret\n", "image", "login", "ghcr.io", "--username", "ann", "--password-stdin").
		expect(t, 0, "images of ghcr.io are pulled as ann\n", "")
	if c.lastLogin.GetPassword() != "s3cret" {
		t.Errorf("the cluster was told %q", c.lastLogin.GetPassword())
	}
	for _, bad := range []struct{ stdin, args, want string }{
		{"", "ghcr.io --username ann --password-stdin", "the password is empty"},
		{"x", "ghcr.io --username ann", "there is no terminal to ask for the password on"},
		{"x", "ghcr.io --password-stdin", "--username is missing"},
		{strings.Repeat("x", 9000), "ghcr.io --username ann --password-stdin", "more than 8192"},
	} {
		got := c.run(t.Context(), bad.stdin, append([]string{"image", "login"}, strings.Fields(bad.args)...)...)
		if got.code == 0 || !strings.Contains(got.stderr, bad.want) {
			t.Errorf("%s: %+v, want %q", bad.args, got, bad.want)
		}
	}
	c.run(t.Context(), "", "image", "logins").expect(t, 0, "HOST     USER  AGE\nghcr.io  ann   -\n", "")
	c.run(t.Context(), "", "image", "logout", "ghcr.io").expect(t, 0, "the login to ghcr.io is forgotten\n", "")
}

func TestImageVerbs(t *testing.T) {
	c := newCluster(t)
	if got := c.run(t.Context(), "", "image", "get", "web:1"); got.code != 0 || !strings.Contains(got.stdout, "Used by:  default/web") {
		t.Errorf("%+v", got)
	}
	c.run(t.Context(), "", "image", "rm", "used:1").expect(t, 1, "", "cloudless: image used:1 is used by default/web\n")
	c.run(t.Context(), "", "image", "rm", "--force", "--now", "used:1", "web:1").expect(t, 0, "image used:1 deleted\nimage web:1 deleted\n", "")
	c.run(t.Context(), "", "image", "restore", "web:1").expect(t, 0, "image web:1 restored\n", "")
	c.run(t.Context(), "", "image", "prune", "--dry-run").expect(t, 0, "image web:1 would be deleted\n2.3 MB would be freed\n", "")
	c.run(t.Context(), "", "image", "prune").expect(t, 0, "image web:1 deleted\n2.3 MB freed\n", "")
	if got := c.run(t.Context(), "", "image", "rm"); got.code != command.ExitUsage || !strings.Contains(got.stderr, "NAME is missing") {
		t.Errorf("%+v", got)
	}
}

func (c *cluster) GetImage(_ context.Context, r *cloudlessv1.GetImageRequest) (*cloudlessv1.Image, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, "image "+r.GetName())
	return &cloudlessv1.Image{Metadata: &cloudlessv1.Metadata{Name: r.GetName()}, Status: &cloudlessv1.ImageStatus{
		Digest: "sha256:0123456789abcdef", Size: 2_345_678, Phase: "ready", UsedBy: []string{"default/web"},
	}}, nil
}

func (c *cluster) DeleteImage(ctx context.Context, r *cloudlessv1.DeleteImageRequest) (*cloudlessv1.Image, error) {
	if r.GetName() == "used:1" && !r.GetForce() {
		return nil, status.Error(codes.FailedPrecondition, "image used:1 is used by default/web")
	}
	return c.GetImage(ctx, &cloudlessv1.GetImageRequest{Name: r.GetName()})
}

func (c *cluster) RestoreImage(ctx context.Context, r *cloudlessv1.RestoreImageRequest) (*cloudlessv1.Image, error) {
	return c.GetImage(ctx, &cloudlessv1.GetImageRequest{Name: r.GetName()})
}

func (c *cluster) PruneImages(ctx context.Context, _ *cloudlessv1.PruneImagesRequest) (*cloudlessv1.PruneImagesResponse, error) {
	image, err := c.GetImage(ctx, &cloudlessv1.GetImageRequest{Name: "web:1"})
	return &cloudlessv1.PruneImagesResponse{Items: []*cloudlessv1.Image{image}, FreedBytes: 2_345_678}, err
}

func (c *cluster) SetLogin(_ context.Context, r *cloudlessv1.SetLoginRequest) (*cloudlessv1.Login, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastLogin = r
	return &cloudlessv1.Login{Spec: &cloudlessv1.LoginSpec{Host: r.GetHost(), Username: r.GetUsername()}}, nil
}

func (c *cluster) ListLogins(context.Context, *cloudlessv1.ListLoginsRequest) (*cloudlessv1.ListLoginsResponse, error) {
	return &cloudlessv1.ListLoginsResponse{Items: []*cloudlessv1.Login{{Spec: &cloudlessv1.LoginSpec{Host: "ghcr.io", Username: "ann"}}}}, nil
}

func (c *cluster) DeleteLogin(context.Context, *cloudlessv1.DeleteLoginRequest) (*cloudlessv1.DeleteLoginResponse, error) {
	return &cloudlessv1.DeleteLoginResponse{}, nil
}
