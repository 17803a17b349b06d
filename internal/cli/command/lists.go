package command

import (
	"context"

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
