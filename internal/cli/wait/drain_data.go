package wait

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/spec"
)

// askEvery is how often the command asks how much data is left.
const askEvery = 500 * time.Millisecond

// waitForData waits until other nodes have copies of all that the object store has on the node. It says what became of that,
// or, with an error, what is left; "" if the node had nothing.
func (d *draining) waitForData(ctx context.Context, cl *client.Client) (data string, err error) {
	line := terminal.NewProgressLine(d.env.Stderr)
	defer line.Clear()
	data = "the object store does not say what is left on it"
	var most int64
	for {
		s, err := client.Service(cl, cloudlessv1.NewStorageServiceClient).GetStorageStatus(ctx, &cloudlessv1.GetStorageStatusRequest{})
		switch n := d.in(s); {
		case status.Code(err) == codes.Unimplemented: // by a server of an older release
			return "", nil
		case status.Code(err) == codes.PermissionDenied:
			return "its data may still be there (you may not see it)", nil
		case err != nil && status.Code(err) != codes.Unavailable:
			return data, err
		case err != nil: // nobody leads the names now
		case n == nil || n.GetChunks() == 0 || n.GetEmptied() && most == 0:
			return "", nil
		case n.GetEmptied():
			return spec.Count(int(most), "chunk") + " moved", nil
		case !d.others(s):
			return fmt.Sprintf("%s stay: no other node stores data", spec.Count(int(n.GetChunks()), "chunk")), nil
		case n.GetLeaving() > 0:
			most = max(most, n.GetLeaving())
			data = spec.Count(int(n.GetLeaving()), "chunk") + " of the object store left; see: cloudless storage status"
			line.Show(fmt.Sprintf("node %s: %d of %s left", d.node.GetMetadata().GetName(), n.GetLeaving(), spec.Count(int(most), "chunk")))
		}
		if err := sleep.For(ctx, askEvery); err != nil {
			return data, err
		}
	}
}

// in finds the node.
func (d *draining) in(s *cloudlessv1.StorageStatus) *cloudlessv1.NodeStorage {
	uid := d.node.GetMetadata().GetUid()
	i := slices.IndexFunc(s.GetNodes(), func(n *cloudlessv1.NodeStorage) bool { return n.GetNodeUid() == uid })
	if i < 0 {
		return nil
	}
	return s.GetNodes()[i]
}

// others is whether other nodes store data.
func (d *draining) others(s *cloudlessv1.StorageStatus) bool {
	uid := d.node.GetMetadata().GetUid()
	return slices.ContainsFunc(s.GetNodes(), func(n *cloudlessv1.NodeStorage) bool {
		return n.GetNodeUid() != uid && (n.GetState() == "online" || n.GetState() == "full" || n.GetState() == "offline")
	})
}
