package server

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/notfound"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/suggest"
)

// deploymentService is the DeploymentService. It stores what operators ask for; the loop of replicas carries it out.
type deploymentService struct {
	v1.UnsafeDeploymentServiceServer
	*collection[*v1.Deployment]
}

func newDeployments(s *Server) *collection[*v1.Deployment] {
	c := newCollection[*v1.Deployment](s, state.KindDeployment)
	c.missing = func(snap *state.Snapshot, namespace, name string) error {
		near := suggest.To(name, notfound.Names(c.all(snap, namespace, "")))
		return core.Refuse(codes.NotFound, "deployment %s does not exist in namespace %s, or is no longer kept%s", name, namespace,
			notfound.Hint(near, spec.Hint(namespace, "cloudless get deployments")))
	}
	c.present, c.followed.touched = s.presentDeployment, touchedDeployments
	return c
}

// presentDeployment adds how far an open deployment is, which follows from the replicas. What happens to the replicas
// after its end is not its doing.
func (s *Server) presentDeployment(snap *state.Snapshot, stored *v1.Deployment) *v1.Deployment {
	w := snap.Workload(stored.GetSpec().GetWorkloadUid())
	if w == nil || !spec.DeploymentOpen(stored) {
		return stored
	}
	d := proto.CloneOf(stored)
	d.Status.Desired = s.desired(snap, w)
	offline := s.offlineIn(snap)
	for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
		if r.GetSpec().GetRevisionUid() != d.GetSpec().GetRevisionUid() || r.GetSpec().GetDesired() == spec.DesiredStopped ||
			spec.Ended(r.GetStatus().GetPhase()) || offline.host(r) {
			continue
		}
		d.Status.Updated++
		if spec.Serves(r) {
			d.Status.Serving++
		}
	}
	return d
}

// touchedDeployments returns the uids of those that may look different after the changes: those that changed, and the
// newest ones of workloads that look different.
func touchedDeployments(snap *state.Snapshot, changes []state.Change) map[string]bool {
	touched := touchedObjects[*v1.Deployment](snap, changes)
	for uid := range touchedWorkloads(snap, changes) {
		if newest := snap.Workload(uid).GetStatus().GetDeploymentUid(); newest != "" {
			touched[newest] = true
		}
	}
	return touched
}

func (s *deploymentService) GetDeployment(ctx context.Context, request *v1.GetDeploymentRequest) (*v1.Deployment, error) {
	return s.read(ctx, orDefault(request.GetNamespace()), request.GetName())
}

func (s *deploymentService) ListDeployments(ctx context.Context, request *v1.ListDeploymentsRequest) (*v1.ListDeploymentsResponse, error) {
	list := s.list
	if request.GetWorkload() != "" {
		list = s.listNewestFirst(request.GetWorkload())
	}
	items, next, err := list(ctx, request.GetPage(), selection[*v1.Deployment]{
		namespace: request.GetSelection().GetNamespace(), labels: request.GetSelection().GetLabels(),
	})
	if err != nil {
		return nil, err
	}
	return &v1.ListDeploymentsResponse{Items: items, Next: next}, nil
}

// listNewestFirst lists the deployments of one workload, which must exist.
func (s *deploymentService) listNewestFirst(workload string) func(context.Context, *v1.Page, selection[*v1.Deployment]) ([]*v1.Deployment, string, error) {
	return func(ctx context.Context, wanted *v1.Page, selected selection[*v1.Deployment]) ([]*v1.Deployment, string, error) {
		snap, err := s.Consensus.Read(ctx)
		if err != nil {
			return nil, "", err
		}
		namespace := orDefault(selected.namespace)
		w := snap.WorkloadByName(namespace, workload)
		if w == nil {
			return nil, "", notfound.Workload(snap, namespace, workload)
		}
		matches, err := s.matcher(ctx, selected)
		if err != nil {
			return nil, "", err
		}
		items, next, err := page(wanted, func(after string) iter.Seq[*v1.Deployment] { return deploymentsBefore(snap, w, after) },
			func(d *v1.Deployment) string { return strconv.FormatUint(d.GetSpec().GetNumber(), 10) }, matches)
		return s.presentAll(snap, items), next, err
	}
}

// deploymentsBefore yields the deployments of a workload with a number below the given one, newest first. It yields all
// if the text is not a number.
func deploymentsBefore(snap *state.Snapshot, w *v1.Workload, number string) iter.Seq[*v1.Deployment] {
	before, err := strconv.ParseUint(number, 10, 64)
	return func(yield func(*v1.Deployment) bool) {
		for _, d := range slices.Backward(slices.Collect(snap.DeploymentsOf(w.GetMetadata().GetUid()))) {
			if (err != nil || d.GetSpec().GetNumber() < before) && !yield(d) {
				return
			}
		}
	}
}

func (s *deploymentService) WatchDeployments(request *v1.WatchDeploymentsRequest, stream grpc.ServerStreamingServer[v1.DeploymentChange]) error {
	return s.watch(stream.Context(), selection[*v1.Deployment]{
		namespace: request.GetSelection().GetNamespace(), labels: request.GetSelection().GetLabels(),
		also: func(d *v1.Deployment) bool {
			return request.GetWorkload() == "" || request.GetWorkload() == d.GetSpec().GetWorkload()
		},
	}, func(change string, d *v1.Deployment) error {
		return stream.Send(&v1.DeploymentChange{Change: change, Deployment: d})
	})
}

func (s *deploymentService) PauseDeployment(ctx context.Context, request *v1.PauseDeploymentRequest) (*v1.Deployment, error) {
	return s.steer(ctx, request, "Paused", func(_ *v1.Workload, d *v1.Deployment) (string, error) {
		if !rollout.Pause(d, s.Now()) {
			return "", nil
		}
		if spec.CanaryOpen(d) && d.GetStatus().GetWeight() > 0 {
			return fmt.Sprintf("it keeps its %d%% of the traffic until it is resumed", d.GetStatus().GetWeight()), nil
		}
		return "no further replica is replaced until it is resumed", nil
	})
}

func (s *deploymentService) ResumeDeployment(ctx context.Context, request *v1.ResumeDeploymentRequest) (*v1.Deployment, error) {
	return s.steer(ctx, request, "Resumed", func(_ *v1.Workload, d *v1.Deployment) (string, error) {
		if !rollout.Resume(d, s.Now()) {
			return "", nil
		}
		return "replicas are replaced again", nil
	})
}

func (s *deploymentService) PromoteDeployment(ctx context.Context, request *v1.PromoteDeploymentRequest) (*v1.Deployment, error) {
	return s.steer(ctx, request, "Promoted", func(w *v1.Workload, d *v1.Deployment) (string, error) {
		hint := func(what string) string {
			return spec.Hint(w.GetMetadata().GetNamespace(), "cloudless rollout "+what+" "+w.GetMetadata().GetName())
		}
		switch strategy := spec.DeploymentStrategy(d, w.GetSpec()); {
		case strategy != spec.StrategyBlueGreen && spec.CanaryOf(d) == nil:
			return "", core.Refuse(codes.FailedPrecondition, "%s has strategy %s, which has neither a switch nor steps: only blue-green and canary deployments are promoted; see its progress with: %s",
				deploymentTitle(d), strategy, hint("status"))
		case d.GetSpec().GetPaused():
			return "", core.Refuse(codes.FailedPrecondition, "%s is paused; resume it first with: %s", deploymentTitle(d), hint("resume"))
		case spec.CanaryOf(d) != nil:
			return promoteCanary(d, request.GetFull()), nil
		case request.GetFull():
			return "", core.Refuse(codes.InvalidArgument, "%s has strategy %s, which has no steps to skip: leave out full", deploymentTitle(d), strategy)
		case !rollout.Promote(d):
			return "", nil
		}
		return fmt.Sprintf("the service switches to revision %d as soon as all its replicas serve", d.GetSpec().GetRevision()), nil
	})
}

// promoteCanary says what follows from skipping the rest of the present step of a canary deployment, or of all steps.
func promoteCanary(d *v1.Deployment, full bool) string {
	if !rollout.PromoteCanary(d, full) {
		return ""
	}
	if steps := len(spec.StepsOf(spec.CanaryOf(d))); int(d.GetSpec().GetPromotedStep()) < steps {
		return fmt.Sprintf("step %d of %d ends as soon as all its replicas serve", d.GetSpec().GetPromotedStep(), steps)
	}
	return fmt.Sprintf("revision %d replaces the other replicas without further steps", d.GetSpec().GetRevision())
}

func (s *deploymentService) AbortDeployment(ctx context.Context, request *v1.AbortDeploymentRequest) (*v1.Deployment, error) {
	return s.steer(ctx, request, "Aborted", func(w *v1.Workload, d *v1.Deployment) (string, error) {
		switch {
		case d.GetSpec().GetAborted():
			return "", nil
		case d.GetSpec().GetPreviousUid() == "":
			return "", core.Refuse(codes.FailedPrecondition, "%s is %s, and no earlier revision has succeeded that it could go back to; apply a corrected version, or delete the workload with: %s",
				deploymentTitle(d), d.GetStatus().GetPhase(), spec.Hint(w.GetMetadata().GetNamespace(), "cloudless workload rm "+w.GetMetadata().GetName()))
		}
		rollout.Abort(d)
		return fmt.Sprintf("going back to revision %d", d.GetSpec().GetPrevious()), nil
	})
}

// deploy adds a deployment of the current revision of w to the transaction. old is the workload before the change, nil if
// it is new. The caller stores w.
func (s *Server) deploy(ctx context.Context, tx *transaction, old, w *v1.Workload, cause string) {
	if !spec.HasDeployments(w.GetSpec()) {
		return
	}
	made, replaced := rollout.Deploying{
		UID: state.NewUID(), Now: s.Now(), Cause: cause, Author: s.Actor(ctx),
		Before: old.GetStatus(), Earlier: tx.base.DeploymentsOf(w.GetMetadata().GetUid()),
	}.Deploy(w)
	tx.batch.Create(made)
	if replaced != nil {
		tx.batch.Update(replaced, replaced.GetMetadata().GetVersion())
	}
	tx.deployments = append(tx.deployments, made)
}

// groupDeployments lets the deployments of a transaction name each other, if there are several.
func (tx *transaction) groupDeployments() {
	if len(tx.deployments) < 2 {
		return
	}
	group := state.NewUID()
	for _, d := range tx.deployments {
		d.Spec.Group = group
	}
}

// steer changes the newest deployment of a workload, unless it has ended. The event says what was done, by whom and what
// follows, which the change returns. It returns an empty text if nothing changes.
func (s *deploymentService) steer(ctx context.Context, request interface {
	GetNamespace() string
	GetWorkload() string
}, done string, change func(*v1.Workload, *v1.Deployment) (string, error),
) (*v1.Deployment, error) {
	return s.change(ctx, func(tx *transaction) (*v1.Deployment, error) {
		namespace := orDefault(request.GetNamespace())
		w := tx.base.WorkloadByName(namespace, request.GetWorkload())
		if w == nil {
			return nil, notfound.Workload(tx.base, namespace, request.GetWorkload())
		}
		old := tx.base.Deployment(w.GetStatus().GetDeploymentUid())
		if err := checkSteerable(tx.base, w, old); err != nil {
			return nil, err
		}
		d := proto.CloneOf(old)
		follows, err := change(w, d)
		if err != nil || follows == "" {
			return old, err
		}
		tx.batch.Update(d, old.GetMetadata().GetVersion())
		tx.batch.Create(s.Event(ctx, w, "Rollout"+done, fmt.Sprintf("%s %s deployment %d: %s", s.Actor(ctx), strings.ToLower(done), d.GetSpec().GetNumber(), follows)))
		return d, nil
	})
}

// checkSteerable refuses to change a deployment that does not exist or has ended.
func checkSteerable(snap *state.Snapshot, w *v1.Workload, newest *v1.Deployment) error {
	namespace, name := w.GetMetadata().GetNamespace(), w.GetMetadata().GetName()
	switch phase := newest.GetStatus().GetPhase(); {
	case w.GetMetadata().GetDeleteTime() != nil:
		return core.Refuse(codes.FailedPrecondition, "workload %s is being deleted", name)
	case !spec.HasDeployments(w.GetSpec()):
		return core.Refuse(codes.FailedPrecondition, "workload %s is a %s, and only services and daemons have deployments", name, spec.KindOf(w.GetSpec()))
	case newest == nil:
		return core.Refuse(codes.FailedPrecondition, "workload %s has no deployment: it has not changed since deployments are kept; roll it out again with: %s",
			name, spec.Hint(namespace, "cloudless workload restart "+name))
	case spec.DeploymentEnded(phase):
		advice := "see how with: " + spec.Hint(namespace, "cloudless rollout history "+name)
		if earlier, err := earlierRevision(snap, w, snap.Revision(w.GetStatus().GetRevisionUid()), ""); err == nil {
			advice = fmt.Sprintf("go back to revision %d with: %s", earlier.GetSpec().GetNumber(), spec.Hint(namespace, "cloudless rollout undo "+name))
		}
		return core.Refuse(codes.FailedPrecondition, "%s has ended: it %s; %s", deploymentTitle(newest), endedText(phase), advice)
	}
	return nil
}

// endedText says in a sentence how a deployment has ended.
func endedText(phase string) string {
	if phase == spec.DeploymentRolledBack {
		return "was rolled back"
	}
	return phase
}

func deploymentTitle(d *v1.Deployment) string {
	return fmt.Sprintf("deployment %d of workload %s", d.GetSpec().GetNumber(), d.GetSpec().GetWorkload())
}
