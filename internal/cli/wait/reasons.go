package wait

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/phrase"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// late is the error about the first workload that was not done in time.
func (t *tracker) late(timeout time.Duration) error {
	for _, w := range t.workloads {
		meta := w.asked.GetMetadata()
		if done, _ := w.done(); !done {
			if w.action == spec.ActionDelete {
				return fmt.Errorf("workload %s is still being deleted after %s; deletion continues in the background: see: %s", meta.GetName(), timeout, phrase.GetHint(meta))
			}
			return fmt.Errorf("workload %s is not ready after %s: %s; the cluster keeps trying: see: %s", meta.GetName(), timeout, phrase.Status(w.now), phrase.GetHint(meta))
		}
	}
	return fmt.Errorf("some workloads are not ready after %s; the cluster keeps trying: see: %s", timeout, phrase.PsHint(t.asked()))
}

// brokenError says why a replica does not run: how it ended, and the last line of its output.
func brokenError(ctx context.Context, cl *client.Client, w *tracked, r *cloudlessv1.Replica) error {
	name, status := w.asked.GetMetadata().GetName(), r.GetStatus()
	reason := phrase.ReplicaReason(r)
	if reason == "" {
		reason = "the cluster gives no reason"
	}
	if exit := status.GetLastExit(); exit == nil {
		return fmt.Errorf("workload %s cannot be started: replica %s on %s: %s: see: %s",
			name, r.GetMetadata().GetName(), r.GetSpec().GetNode(), terminal.Plain(reason), phrase.GetHint(w.asked.GetMetadata()))
	}
	last := ""
	if line := lastLine(ctx, cl, r); line != "" {
		last = fmt.Sprintf(", its last line is %q", line)
	}
	again := ""
	if n := w.failures[r.GetMetadata().GetUid()]; n > 1 {
		again = fmt.Sprintf(" (%d times)", n)
	}
	return fmt.Errorf("workload %s does not stay up: replica %s on %s: %s%s%s: see its output with: %s",
		name, r.GetMetadata().GetName(), r.GetSpec().GetNode(), clause(terminal.Plain(reason)), again, last, phrase.LogsHint(w.asked.GetMetadata()))
}

// clause turns a sentence about a replica into a part of another sentence.
func clause(sentence string) string {
	if rest, ok := strings.CutPrefix(sentence, "It "); ok {
		sentence = "it " + rest
	}
	return strings.TrimSuffix(sentence, ".")
}

// logPatience limits the wait for the last line of a replica: an error without it is good enough.
const logPatience = 3 * time.Second

// lastLine is the last line that a replica has printed, if the log can be read.
func lastLine(ctx context.Context, cl *client.Client, r *cloudlessv1.Replica) string {
	ctx, cancel := context.WithTimeout(ctx, logPatience)
	defer cancel()
	last := ""
	for line, err := range cl.Logs(ctx, &cloudlessv1.LogsRequest{
		Namespace: r.GetMetadata().GetNamespace(), Workload: r.GetSpec().GetWorkload(), Replica: r.GetMetadata().GetName(), Tail: proto.Int32(1),
	}) {
		if err != nil {
			break
		}
		if text := terminal.Plain(string(line.Line)); text != "" {
			last = phrase.Value(text)
		}
	}
	return last
}

// stuckError says which workloads have no place, node by node. It is nil if one of them may still get one: that may make
// room for the others. Offline names nodes that may have room when they are back.
func stuckError(ctx context.Context, cl *client.Client, stuck []*tracked) (offline []string, err error) {
	then := "they start when there is room"
	var why []string
	var waiting []*cloudlessv1.Workload
	for _, s := range stuck {
		waiting = append(waiting, s.asked)
		meta := s.asked.GetMetadata()
		if s.action == spec.ActionDelete {
			return nil, nil
		}
		w, err := cl.Workloads().GetWorkload(ctx, &cloudlessv1.GetWorkloadRequest{Namespace: meta.GetNamespace(), Name: meta.GetName()})
		if err != nil {
			return nil, err
		}
		reasons, quota := w.GetStatus().GetUnplaced(), w.GetStatus().GetQuota()
		if why := w.GetStatus().GetReason(); strings.HasPrefix(why, "waits for secret ") {
			quota, then = "it "+why, "they start as soon as they have it"
		}
		if len(reasons) == 0 && quota == "" {
			if none, err := noNodes(ctx, cl); err != nil || !none {
				return nil, err
			}
		}
		for _, r := range reasons {
			if strings.HasPrefix(r.GetReason(), "is offline") {
				offline = append(offline, r.GetNode())
			}
		}
		what := "has pending replicas"
		if w.GetStatus().GetOutdated() > 0 {
			what = "has pending replicas of its new revision"
		}
		why = append(why, fmt.Sprintf("workload %s %s, %s%s", meta.GetName(), what, phrase.Counts(w.GetStatus()), phrase.NoPlace(quota, reasons)))
	}
	return offline, fmt.Errorf("%s; %s (details: %s)", strings.Join(why, "; "), then, phrase.ExplainHint(waiting))
}

// backSoon reports whether one of the nodes went offline only a moment ago. Most are back soon.
func backSoon(ctx context.Context, cl *client.Client, offline []string, now time.Time) (bool, error) {
	if len(offline) == 0 {
		return false, nil
	}
	nodes, err := command.ListNodes(ctx, cl, "")
	if status.Code(err) == codes.PermissionDenied {
		return false, nil
	}
	return slices.ContainsFunc(nodes, func(n *cloudlessv1.Node) bool {
		return slices.Contains(offline, n.GetMetadata().GetName()) && now.Sub(n.GetStatus().GetLastSeen().AsTime()) < awayFor
	}), err
}

func noNodes(ctx context.Context, cl *client.Client) (bool, error) {
	answer, err := cl.Nodes().ListNodes(ctx, &cloudlessv1.ListNodesRequest{Page: &cloudlessv1.Page{Size: 1}})
	if status.Code(err) == codes.PermissionDenied { // the caller does not see nodes
		return false, nil
	}
	return err == nil && len(answer.GetItems()) == 0, err
}

// JobFailedError says why a job failed, and how to see its output unless it is removed.
type JobFailedError struct {
	// Removed says that the job is gone, and its output with it.
	Removed bool
	job     *cloudlessv1.Metadata
	reason  string
}

func (e *JobFailedError) Error() string {
	failed := fmt.Sprintf("workload %s failed: %s", e.job.GetName(), e.reason)
	if e.Removed {
		return failed
	}
	return failed + ": see its output with: " + phrase.LogsHint(e.job)
}
