package cli

import (
	"context"
	"strings"
	"testing"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func (c *cluster) RollbackWorkload(_ context.Context, r *cloudlessv1.RollbackWorkloadRequest) (*cloudlessv1.Workload, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, err := c.find(r.GetName())
	if err != nil {
		return nil, err
	}
	c.asked = append(c.asked, "rollback "+r.GetName()+" "+r.GetRevision())
	return c.put(w), nil
}

func TestRollbackNamesTheRevision(t *testing.T) {
	c := described(t)
	c.run(t.Context(), "", "workload", "rollback", "web", "--wait=false").expect(t, 0, "workload web rolled back: it is at revision 1\n", "")
	c.run(t.Context(), "", "workload", "rollback", "web", "3", "--wait=false").expect(t, 0, "workload web rolled back: it is at revision 1\n", "")
	c.run(t.Context(), "", "workload", "rollback", "web", "sha256:bbbbbbbbbbbb", "--wait=false").expect(t, 0, "workload web rolled back: it is at revision 1\n", "")
	if got, want := strings.Join(c.asked, "; "), "rollback web ; rollback web 3; rollback web sha256:bbbbbbbbbbbb"; got != want {
		t.Errorf("asked for %s, want %s", got, want)
	}
	if got := c.run(t.Context(), "", "workload", "rollback"); got.code != 2 || !strings.Contains(got.stderr, "NAME is missing") {
		t.Errorf("%+v", got)
	}
}

// Commands accept digests as tables show them.
func TestShortDigestsAreAccepted(t *testing.T) {
	c := described(t)
	const whole = "web@sha256:0123456789abcdef"
	for _, args := range [][]string{
		{"image", "get", "web@sha256:0123456789ab"},
		{"image", "get", "web@0123456789ab"},
		{"image", "get", "sha256:0123456789ab"},
		{"image", "rm", "web@sha256:0123456789ab"},
		{"image", "restore", "web@sha256:0123456789ab"},
	} {
		c.asked = nil
		if got := c.run(t.Context(), "", args...); got.code != 0 {
			t.Errorf("%q: %+v", args, got)
		}
		if got, want := strings.Join(c.asked, "; "), "image "+whole; got != want {
			t.Errorf("%q asks for %s, want %s", args, got, want)
		}
	}
	digest := "sha256:" + strings.Repeat("fedcba9876543210", 4)
	c.images = append(c.images, &cloudlessv1.Image{Status: &cloudlessv1.ImageStatus{Repository: "app", Digest: digest}})
	if got := c.run(t.Context(), "", "run", "app@sha256:fedcba987654", "--wait=false"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if w, err := c.find("app"); err != nil || w.GetSpec().GetImage() != "app@"+digest {
		t.Errorf("a workload of %s was made (%v)", w.GetSpec().GetImage(), err)
	}
	for _, args := range [][]string{{"image", "get", "web@sha256:ffffffffffff"}, {"image", "get", "other@0123456789ab"}} {
		if got := c.run(t.Context(), "", args...); got.code != 1 || !strings.Contains(got.stderr, "see cloudless image ls") {
			t.Errorf("%q: %+v", args, got)
		}
	}
	c.images = append(c.images, &cloudlessv1.Image{Status: &cloudlessv1.ImageStatus{Repository: "web", Digest: "sha256:0123456789abffff"}})
	if got := c.run(t.Context(), "", "image", "get", "web@0123456789ab"); got.code != 1 || !strings.Contains(got.stderr, "give more of the digest") {
		t.Errorf("of two that begin the same: %+v", got)
	}

	c.asked = nil
	for _, name := range []string{digest, "app@" + strings.TrimPrefix(digest, "sha256:"), "app@" + digest} {
		if got := c.run(t.Context(), "", "image", "get", name); got.code != 0 || c.asked[len(c.asked)-1] != "image app@"+digest {
			t.Errorf("%s: %+v, asked for %q", name, got, c.asked)
		}
	}
	c.images = append(c.images, &cloudlessv1.Image{Status: &cloudlessv1.ImageStatus{Repository: "other", Digest: digest}})
	if got := c.run(t.Context(), "", "image", "get", digest); got.code != 1 || !strings.Contains(got.stderr, "name the repository, such as app@"+digest) {
		t.Errorf("of two repositories with the same image: %+v", got)
	}
}

// Images that only earlier revisions use are listed with those revisions.
func TestImageListNamesEarlierRevisions(t *testing.T) {
	c := described(t)
	c.images = append(c.images, &cloudlessv1.Image{Status: &cloudlessv1.ImageStatus{
		Repository: "web", Digest: "sha256:ffffffffffffffff", UsedBy: []string{"default/api"}, KeptBy: []string{"default/web:2", "default/web:3"},
	}})
	got := c.run(t.Context(), "", "image", "ls")
	if !strings.Contains(got.stdout, "sha256:ffffffffffff ") || !strings.Contains(got.stdout, "default/api, default/web revision 2, default/web revision 3\n") {
		t.Errorf("%s%s", got.stdout, got.stderr)
	}
}
