package server

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"

	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/images"
)

// While others push and delete images, every revision that a plan writes has the image that
// the tag stands for at that very entry of the log.
func TestPlansRacePushesAndDeletions(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.push("web:1")
	start, feed := c.Store.Subscribe()
	var others, appliers sync.WaitGroup
	var over atomic.Bool
	others.Go(func() {
		for !over.Load() {
			c.push("web:1")
			c.push("web:1")
			_, err := op.DeleteImage(c.ctx, &v1.DeleteImageRequest{Name: "web:1", Force: true})
			check(t, err)
		}
	})
	var applied atomic.Int64
	for i := range 4 {
		appliers.Go(func() {
			for round := range 50 {
				request := asking(workload(fmt.Sprintf("web-%d", i), replicasOf(0), imageOf("web:1"), func(w *v1.Workload) {
					w.Spec.Env = map[string]string{"ROUND": fmt.Sprint(round)}
				}))
				plan, err := op.MakePlan(c.ctx, request)
				if err == nil {
					_, err = op.ApplyPlan(c.ctx, &v1.ApplyPlanRequest{Request: request, Fingerprint: plan.GetFingerprint()})
				}
				switch status.Code(err) {
				case codes.OK:
					applied.Add(1)
				case codes.Aborted, codes.FailedPrecondition: // the tag has moved, or was deleted
				default:
					t.Errorf("apply: %v", err)
				}
			}
		})
	}
	appliers.Wait()
	over.Store(true)
	others.Wait()
	c.change(func(_ *state.Snapshot, b *state.Batch) {
		b.Create(&statev1.Tag{Metadata: &v1.Metadata{Uid: state.TagUID("the-end", "")}})
	})
	stands, written := start.Tag("web", "1").GetDigest(), 0
	for stands != "the end" {
		changes, err := feed.Next(c.ctx)
		must(t, err)
		for _, change := range changes {
			switch now := change.New.(type) {
			case *statev1.Tag:
				switch now.GetMetadata().GetUid() {
				case state.TagUID("web", "1"):
					stands = now.GetDigest()
				case state.TagUID("the-end", ""):
					stands = "the end"
				}
			case *v1.Revision:
				written++
				name, err := image.ParseName(now.GetSpec().GetImage())
				must(t, err)
				if name.Digest != stands {
					t.Errorf("revision %s was written with %s while the tag stood for %q", now.GetMetadata().GetName(), name.Digest, stands)
				}
			}
		}
	}
	if written == 0 || int64(written) != applied.Load() {
		t.Errorf("%d plans were carried out and %d revisions written", applied.Load(), written)
	}
	t.Logf("%d of 200 plans were carried out", written)
}

// A plan forecasts the state that it was made on, not a newer one. Otherwise the
// transaction would depend on two states at once.
func TestPlanDependsOnOneState(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	first := c.push("web:1")
	wanted, err := c.prepareAll(c.ctx, asking(workload("web", replicasOf(0), imageOf("web:1"))))
	must(t, err)
	before := c.Store.Snapshot()
	c.applyPlan(op, asking(workload("web", replicasOf(0), imageOf("web:1"))))
	second := c.push("web:1")
	for _, at := range []struct {
		snap           *state.Snapshot
		action, digest string
	}{{before, spec.ActionCreate, first}, {c.Store.Snapshot(), spec.ActionUpdate, second}} {
		p, err := c.Server.plan(c.ctx, wanted, at.snap)
		must(t, err)
		name, err := image.ParseName(p.plan.GetChanges()[0].GetImage())
		must(t, err)
		if action := p.plan.GetChanges()[0].GetAction(); action != at.action || name.Digest != at.digest {
			t.Errorf("at entry %d the plan is to %s with %s, want %s with %s", at.snap.Index(), action, name.Digest, at.action, at.digest)
		}
	}
}

// An image that is named by its digest also depends on a tag that keeps it.
func TestDeletedImageIsResolvedAgainByDigest(t *testing.T) {
	c := newCluster(t)
	digest := c.push("web:1")
	wanted, err := c.prepareAll(c.ctx, asking(workload("web", replicasOf(0), imageOf("web@"+digest))))
	must(t, err)
	_, err = c.Propose(c.ctx, func(snap *state.Snapshot, b *state.Batch) error {
		p, err := c.Server.plan(c.ctx, wanted, snap)
		if err != nil {
			return err
		}
		if snap.Tag("web", "1").GetDigest() == digest {
			_, err := c.imageService().DeleteImage(c.ctx, &v1.DeleteImageRequest{Name: "web:1", Now: true, Force: true})
			must(t, err)
		}
		return p.propose(b, core.Receipt{})
	})
	wantCode(t, core.StatusOf(err), codes.FailedPrecondition, "is not in the cluster's registry")
	if c.Store.Snapshot().WorkloadByName("default", "web") != nil {
		t.Error("a workload was written with an image that is gone")
	}
}

// An image without a tag can be deleted while a transaction that uses it is being built.
// Every write of a workload notices that, whether it is the first such image that is
// deleted in its repository or a later one, and whether it could be restored before.
func TestUntaggedImageDeletedMeanwhileIsRefused(t *testing.T) {
	c := newCluster(t)
	plan := func(snap *state.Snapshot, b *state.Batch, named images.Named) error {
		wanted, err := c.prepareAll(c.ctx, asking(workload("web", replicasOf(0), imageOf(named.From))))
		must(t, err)
		p, err := c.Server.plan(c.ctx, wanted, snap)
		if err != nil {
			return err
		}
		return p.propose(b, core.Receipt{})
	}
	create := func(snap *state.Snapshot, batch *state.Batch, named images.Named) error {
		b, err := c.prepareWorkload(c.ctx, workload("web", replicasOf(0), imageOf(named.From)), &preparation{})
		must(t, err)
		tx := &transaction{base: snap, batch: batch}
		if _, err := b.create(c.ctx, tx); err != nil {
			return err
		}
		tx.relyOnImages()
		return nil
	}
	first, second, third := c.push("web:1"), c.push("web:1"), c.push("web:1")
	c.push("web:1")
	deleted := c.push("api:1")
	_, err := c.imageService().DeleteImage(c.ctx, &v1.DeleteImageRequest{Name: "api:1"})
	must(t, err)
	for _, of := range []struct {
		repository, digest, deletedAs string
		build                         func(*state.Snapshot, *state.Batch, images.Named) error
	}{
		{"web", first, "web@" + first, plan},
		{"web", second, "web@" + second, create},
		{"web", third, "web@" + third, plan},
		{"api", deleted, "api:1", plan},
	} {
		name := of.repository + "@" + of.digest
		named, err := c.images.Name(c.ctx, name, core.Receipt{})
		must(t, err)
		var once sync.Once
		_, err = c.Propose(c.ctx, func(snap *state.Snapshot, b *state.Batch) error {
			err := of.build(snap, b, named)
			once.Do(func() {
				must(t, err)
				_, err := c.imageService().DeleteImage(c.ctx, &v1.DeleteImageRequest{Name: of.deletedAs, Now: true, Force: true})
				must(t, err)
			})
			return err
		})
		wantCode(t, core.StatusOf(err), codes.FailedPrecondition, "image "+name)
		if _, err := c.registry.Digest(c.ctx, of.repository, of.digest); !errors.Is(err, registry.ErrNotFound) {
			t.Errorf("%s is still in the registry (%v)", name, err)
		}
	}
	if c.Store.Snapshot().WorkloadByName("default", "web") != nil {
		t.Error("a workload was written with an image that is gone")
	}
}

// A workload can be written between the check for users of an image and its deletion. The
// deletion then removes the tag, but leaves the image to the workload unless it is forced.
func TestImageUsedDuringItsDeletionSurvives(t *testing.T) {
	c := newCluster(t)
	tagged, untagged := c.push("tagged:1"), c.push("untagged:1")
	c.push("untagged:1")
	for _, of := range []struct{ repository, reference, digest string }{
		{"tagged", "1", tagged}, {"untagged", untagged, untagged},
	} {
		c.applyPlan(c.as(core.RoleOperator), asking(workload(of.repository, replicasOf(0), imageOf(of.repository+"@"+of.digest))))
		_, err := c.images.DeleteTags(c.ctx, of.repository, of.reference, true, false)
		must(t, err)
		_, err = c.registry.Collect(c.ctx, registry.CollectOptions{Keep: c.images.Keep(c.Store.Snapshot())})
		must(t, err)
		if _, err := c.registry.Digest(c.ctx, of.repository, of.digest); err != nil {
			t.Errorf("the image that a workload uses: %v", err)
		}
	}
}

func (c *cluster) imageService() *imageService { return &imageService{Server: c.Server} }
