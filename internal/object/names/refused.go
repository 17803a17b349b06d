package names

import (
	"fmt"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// Why an operation is refused, as Result.refused says it.
const (
	// RefusedNoBucket: the bucket was closed.
	RefusedNoBucket = "no_bucket"
	// RefusedNoKey: the key has no current version that is an object.
	RefusedNoKey = "no_key"
	// RefusedNoVersion: the key has no such version.
	RefusedNoVersion = "no_version"
	// RefusedNoUpload: there is no such upload.
	RefusedNoUpload = "no_upload"
	// RefusedNotEmpty: the bucket has versions or uploads, or the node still has chunks.
	RefusedNotEmpty = "not_empty"
	// RefusedPrecondition: the current version is not as the condition says.
	RefusedPrecondition = "precondition"
	// RefusedQuota: the bucket or namespace would have more bytes than it may.
	RefusedQuota = "quota"
	// RefusedEpoch: the chunks may have been deleted since they were written. Write them again.
	RefusedEpoch = "epoch"
	// RefusedBadPart: a part is not as it was stored, or the parts are not in order.
	RefusedBadPart = "bad_part"
	// RefusedSmallPart: a part that is not the last one is too small.
	RefusedSmallPart = "small_part"
	// RefusedStale: the proposer has seen an older state.
	RefusedStale = "stale"
	// RefusedMalformed: the operation lacks a field, or one has a wrong form.
	RefusedMalformed = "malformed"
)

// refusal ends an operation that has changed nothing yet.
type refusal struct {
	reason, about string
	used, limit   int64
}

func refuse(reason, format string, args ...any) error {
	return &refusal{reason: reason, about: fmt.Sprintf(format, args...)}
}

func (r *refusal) Error() string { return "refused: " + r.reason + " (" + r.about + ")" }

func (r *refusal) result() *objectv1.Result {
	return &objectv1.Result{Refused: r.reason, About: r.about, Used: r.used, Limit: r.limit}
}
