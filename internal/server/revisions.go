package server

import (
	"context"
	"iter"
	"slices"
	"strconv"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/notfound"
)

// ListRevisions lists the revisions of a workload that are kept, newest first.
func (s *workloads) ListRevisions(ctx context.Context, request *v1.ListRevisionsRequest) (*v1.ListRevisionsResponse, error) {
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	namespace := orDefault(request.GetNamespace())
	w := snap.WorkloadByName(namespace, request.GetWorkload())
	if w == nil {
		return nil, notfound.Workload(snap, namespace, request.GetWorkload())
	}
	newestFirst := slices.Collect(snap.RevisionsOf(w.GetMetadata().GetUid()))
	slices.Reverse(newestFirst)
	items, next, err := page(request.GetPage(), func(after string) iter.Seq[*v1.Revision] {
		return revisionsBefore(newestFirst, after)
	}, revisionNumber, func(*v1.Revision) bool { return true })
	if err != nil {
		return nil, err
	}
	return &v1.ListRevisionsResponse{Items: items, Next: next}, nil
}

func revisionNumber(r *v1.Revision) string { return strconv.FormatUint(r.GetSpec().GetNumber(), 10) }

// revisionsBefore yields those with a smaller number, whether or not a revision has that
// number. It yields all if the text is not a number.
func revisionsBefore(all []*v1.Revision, number string) iter.Seq[*v1.Revision] {
	return func(yield func(*v1.Revision) bool) {
		before, err := strconv.ParseUint(number, 10, 64)
		for _, r := range all {
			if (err != nil || r.GetSpec().GetNumber() < before) && !yield(r) {
				return
			}
		}
	}
}
