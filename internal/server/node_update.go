package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
)

// maxNodeLabels and maxTaints limit what one node adds to the state and to every placement
// decision.
const (
	maxNodeLabels = 64
	maxTaints     = 64
)

// UpdateNode changes the settings that operators make for a node. The agent sends such
// settings only when the node joins, so that a restart never overwrites them.
func (s *nodeService) UpdateNode(ctx context.Context, request *v1.UpdateNodeRequest) (*v1.Node, error) {
	return s.changeSpec(ctx, request, func(n *v1.Node) (reason, message string, err error) {
		var done edits
		done.labels(n, request)
		done.taints(n.GetSpec(), request, s.Now())
		done.figures(n.GetSpec(), request)
		if len(done) == 0 {
			return "", "", nil
		}
		if err := checkNodeSize(n); err != nil {
			return "", "", err
		}
		return "Updated", strings.Join(done, "; "), nil
	})
}

// edits describe the changes, for the event.
type edits []string

func (c *edits) add(format string, args ...any) { *c = append(*c, fmt.Sprintf(format, args...)) }

func (c *edits) labels(n *v1.Node, request *v1.UpdateNodeRequest) {
	labels := n.GetMetadata().GetLabels()
	for _, key := range request.GetRemoveLabels() {
		if _, has := labels[key]; has {
			delete(labels, key)
			c.add("label %s removed", key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(request.GetLabels())) {
		value := request.GetLabels()[key]
		before, has := labels[key]
		switch {
		case has && before == value:
			continue
		case has:
			c.add("label %s=%s instead of %s", key, value, before)
		default:
			c.add("label %s=%s", key, value)
		}
		if n.Metadata.Labels == nil {
			n.Metadata.Labels = map[string]string{}
		}
		labels = n.Metadata.Labels
		labels[key] = value
	}
}

// taints keeps the time of a taint that stays the same: replicas that tolerate it for a
// while must not get that time again.
func (c *edits) taints(of *v1.NodeSpec, request *v1.UpdateNodeRequest, now time.Time) {
	before := of.GetTaints()
	kept := slices.DeleteFunc(slices.Clone(before), func(t *v1.Taint) bool {
		return slices.ContainsFunc(request.GetRemoveTaints(), func(name *v1.TaintName) bool {
			return name.GetKey() == t.GetKey() && (name.GetEffect() == "" || name.GetEffect() == t.GetEffect())
		})
	})
	for _, wanted := range request.GetTaints() {
		made := &v1.Taint{Key: wanted.GetKey(), Value: wanted.GetValue(), Effect: wanted.GetEffect(), Time: timestamppb.New(now)}
		same := func(t *v1.Taint) bool { return spec.SameTaint(t, made) }
		if at := slices.IndexFunc(before, same); at >= 0 && before[at].GetValue() == made.GetValue() {
			made = before[at]
		}
		kept = append(slices.DeleteFunc(kept, same), made)
	}
	slices.SortFunc(kept, func(a, b *v1.Taint) int { return strings.Compare(spec.FormatTaint(a), spec.FormatTaint(b)) })
	for _, t := range before {
		if !slices.ContainsFunc(kept, func(k *v1.Taint) bool { return spec.SameTaint(k, t) }) {
			c.add("taint %s removed", spec.FormatTaint(t))
		}
	}
	for _, t := range kept {
		if !slices.Contains(before, t) {
			c.add("taint %s", spec.FormatTaint(t))
		}
	}
	of.Taints = kept
}

func (c *edits) figures(of *v1.NodeSpec, request *v1.UpdateNodeRequest) {
	if request.Price != nil && of.GetPrice() != request.GetPrice() {
		c.add("price %d instead of %d", request.GetPrice(), of.GetPrice())
		of.Price = request.GetPrice()
	}
	if request.Bandwidth == nil {
		return
	}
	wanted := request.GetBandwidth()
	if n, err := spec.ParseBandwidth(wanted); err == nil {
		wanted = spec.FormatBandwidth(n)
	}
	switch {
	case wanted == of.GetBandwidth():
		return
	case wanted == "":
		c.add("bandwidth as the machine says")
	default:
		c.add("bandwidth %s", wanted)
	}
	of.Bandwidth = wanted
}

// checkNodeSize refuses a node with too many labels or taints.
func checkNodeSize(n *v1.Node) error {
	name := n.GetMetadata().GetName()
	if count := len(n.GetMetadata().GetLabels()); count > maxNodeLabels {
		return core.Refuse(codes.FailedPrecondition, "node %s would have %d labels, and a node has at most %d; remove some first: cloudless node label %s KEY-", name, count, maxNodeLabels, name)
	}
	if count := len(n.GetSpec().GetTaints()); count > maxTaints {
		return core.Refuse(codes.FailedPrecondition, "node %s would have %d taints, and a node has at most %d; remove some first: cloudless node taint %s KEY-", name, count, maxTaints, name)
	}
	return nil
}
