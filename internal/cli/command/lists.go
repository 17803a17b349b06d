package command

import (
	"cmp"
	"context"
	"slices"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
)

// ListNodes lists the nodes that a label selector matches, all if it is empty.
func ListNodes(ctx context.Context, cl *client.Client, labels string) ([]*cloudlessv1.Node, error) {
	return client.AllPages(func(page *cloudlessv1.Page) ([]*cloudlessv1.Node, string, error) {
		answer, err := cl.Nodes().ListNodes(ctx, &cloudlessv1.ListNodesRequest{Labels: labels, Page: page})
		return answer.GetItems(), answer.GetNext(), err
	})
}

// ListReplicas lists replicas, grouped by workload and the oldest first.
func ListReplicas(ctx context.Context, cl *client.Client, request *cloudlessv1.ListReplicasRequest) ([]*cloudlessv1.Replica, error) {
	replicas, err := client.AllPages(func(page *cloudlessv1.Page) ([]*cloudlessv1.Replica, string, error) {
		request.Page = page
		answer, err := cl.Workloads().ListReplicas(ctx, request)
		return answer.GetItems(), answer.GetNext(), err
	})
	slices.SortStableFunc(replicas, CompareReplicas)
	return replicas, err
}

// CompareReplicas orders replicas by workload and then by age, the oldest first.
func CompareReplicas(a, b *cloudlessv1.Replica) int {
	return cmp.Or(
		cmp.Compare(a.GetMetadata().GetNamespace(), b.GetMetadata().GetNamespace()),
		cmp.Compare(a.GetSpec().GetWorkload(), b.GetSpec().GetWorkload()),
		a.GetMetadata().GetCreateTime().AsTime().Compare(b.GetMetadata().GetCreateTime().AsTime()),
		cmp.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName()),
	)
}
