package server

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	oci "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// imageFor returns an image for one platform.
func imageFor(t *testing.T, arch, variant string) oci.Image {
	t.Helper()
	img, err := random.Image(64, 1)
	must(t, err)
	config, err := img.ConfigFile()
	must(t, err)
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = "linux", arch, variant
	img, err = mutate.ConfigFile(img, config)
	must(t, err)
	return img
}

// indexFor returns an index of images for several platforms. An entry without a name has no
// platform.
func indexFor(t *testing.T, archs ...string) oci.ImageIndex {
	t.Helper()
	index := oci.ImageIndex(empty.Index)
	for _, arch := range archs {
		var d oci.Descriptor
		if arch != "" {
			d.Platform = &oci.Platform{OS: "linux", Architecture: arch}
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: imageFor(t, arch, ""), Descriptor: d})
	}
	return index
}

func (c *cluster) pushContent(to string, content image.Content) {
	c.t.Helper()
	at, err := image.ParseName(to)
	must(c.t, err)
	_, err = image.Push(c.ctx, content, at, image.PushOptions{
		Transport: pusher{c.web(nil), c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleOperator})},
	})
	must(c.t, err)
}

// submit creates a workload and does not wait.
func (c *cluster) submit(as *user, w *v1.Workload) *v1.Workload {
	c.t.Helper()
	created, err := as.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: w})
	must(c.t, err)
	return created
}

// introduce lets a machine say hello with its status, and waits until it is ready.
func (m *member) introduce(ctx context.Context, status *v1.NodeStatus) sessionClient {
	m.c.t.Helper()
	stream, err := m.Session(ctx)
	must(m.c.t, err)
	must(m.c.t, stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Hello{Hello: &v1.Hello{Status: status}}}))
	m.c.until(func(snap *state.Snapshot) bool { return snap.Node(m.uid()).GetStatus().GetState() == "ready" })
	return stream
}

func TestRevisionsRecordThePlatformsOfTheirImage(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.pushContent("one:1", imageFor(t, "arm64", "v8"))
	c.pushContent("many:1", indexFor(t, "arm64", "amd64"))
	c.pushContent("vague:1", indexFor(t, "arm64", ""))
	c.push("silent:1") // its configuration names no platform
	for name, want := range map[string][]string{
		"one": {"linux/arm64"}, "many": {"linux/amd64", "linux/arm64"}, "vague": nil, "silent": nil,
	} {
		w := c.submit(op, workload(name, imageOf(name+":1")))
		if got := c.Store.Snapshot().Revision(w.GetStatus().GetRevisionUid()).GetSpec().GetPlatforms(); !slices.Equal(got, want) {
			t.Errorf("%s is for %q, want %q", name, got, want)
		}
		restarted, err := op.RestartWorkload(c.ctx, &v1.RestartWorkloadRequest{Name: name})
		must(t, err)
		if got := c.Store.Snapshot().Revision(restarted.GetStatus().GetRevisionUid()).GetSpec().GetPlatforms(); !slices.Equal(got, want) {
			t.Errorf("restarted, %s is for %q, want %q", name, got, want)
		}
	}
}

// A machine of another architecture is refused with a reason, and one that fits is used as
// soon as it joins.
func TestReplicaWaitsForANodeOfItsArchitecture(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	machine := func(arch string) *v1.NodeStatus {
		status := machineStatus()
		status.Info = &v1.NodeInfo{Os: "linux", Arch: arch}
		return status
	}
	c.join("intel").introduce(c.ctx, machine("amd64"))
	c.pushContent("board:1", imageFor(t, "arm64", ""))
	w := c.submit(op, workload("board", imageOf("board:1"), replicasOf(1)))
	c.until(func(snap *state.Snapshot) bool {
		for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
			return r.GetSpec().GetNodeUid() == ""
		}
		return false
	})
	shown, err := op.GetWorkload(c.ctx, &v1.GetWorkloadRequest{Name: "board"})
	must(t, err)
	if text := shown.GetStatus().String(); !strings.Contains(text, "is linux/amd64; the image is for linux/arm64") {
		t.Errorf("the reasons are %s", text)
	}
	board := c.join("board")
	board.introduce(c.ctx, machine("arm64"))
	c.until(func(snap *state.Snapshot) bool {
		for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
			return r.GetSpec().GetNodeUid() == board.uid()
		}
		return false
	})
}

func TestForeignImagesReportTheirPlatforms(t *testing.T) {
	a := newAbroad(t)
	c := newCluster(t, func(o *Options) { o.Foreign = a })
	op := c.as(core.RoleOperator)
	_, err := c.as(core.RoleAdmin).SetLogin(c.ctx, &v1.SetLoginRequest{Host: a.host, Username: "ann", Password: "s3cret"})
	must(t, err)
	ann := remote.WithAuth(&authn.Basic{Username: "ann", Password: "s3cret"})
	at := func(ref string) name.Tag {
		tag, err := name.NewTag(a.host + "/" + ref)
		must(t, err)
		return tag
	}
	one := imageFor(t, "arm64", "")
	must(t, remote.Write(at("one:1"), one, ann))
	must(t, remote.WriteIndex(at("many:1"), indexFor(t, "arm64", "amd64"), ann))
	digest, err := one.Digest()
	must(t, err)
	platforms := func(workloadName, ref string) []string {
		w := c.submit(op, workload(workloadName, imageOf(a.host+"/"+ref)))
		return c.Store.Snapshot().Revision(w.GetStatus().GetRevisionUid()).GetSpec().GetPlatforms()
	}
	if got := platforms("many", "many:1"); !slices.Equal(got, []string{"linux/amd64", "linux/arm64"}) {
		t.Errorf("an index is for %q", got)
	}
	if got := platforms("digest", "one@"+digest.String()); !slices.Equal(got, []string{"linux/arm64"}) {
		t.Errorf("an image by digest is for %q", got)
	}
	asked := a.asked.Load()
	if got := platforms("again", "one@"+digest.String()); !slices.Equal(got, []string{"linux/arm64"}) || a.asked.Load() != asked {
		t.Errorf("it is for %q, after %d more questions", got, a.asked.Load()-asked)
	}
	// An unreachable registry reports no platform, and that refuses nothing.
	a.away.Store(true)
	if got := platforms("away", "other@"+digest.String()); got != nil {
		t.Errorf("the platforms of an unreachable image are %q", got)
	}
}
