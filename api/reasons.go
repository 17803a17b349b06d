package api

import (
	"strconv"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// errorDomain is the domain of the reasons in the details of errors.
const errorDomain = "cloudless"

// reasonNodeRemoved says that the cluster agreed to remove the node that calls.
// A server gives it only if its state holds the removal: a server that merely
// does not know the node, for example because it was restored from an older
// state, must not.
const reasonNodeRemoved = "NODE_REMOVED"

// keyEpoch names the epoch in which the removal holds.
const keyEpoch = "epoch"

// NodeRemoved is the detail of the error that tells a node that it was removed,
// in the cluster's given epoch.
func NodeRemoved(epoch uint64) *errdetails.ErrorInfo {
	return &errdetails.ErrorInfo{
		Reason: reasonNodeRemoved, Domain: errorDomain,
		Metadata: map[string]string{keyEpoch: strconv.FormatUint(epoch, 10)},
	}
}

// RemovedNode reports whether an error tells a node that it was removed, and the
// epoch in which that holds.
func RemovedNode(err error) (epoch uint64, removed bool) {
	s, ok := status.FromError(err)
	if !ok {
		return 0, false
	}
	for _, detail := range s.Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if !ok || info.GetReason() != reasonNodeRemoved || info.GetDomain() != errorDomain {
			continue
		}
		epoch, err := strconv.ParseUint(info.GetMetadata()[keyEpoch], 10, 64)
		return epoch, err == nil
	}
	return 0, false
}
