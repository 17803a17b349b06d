package s3

import (
	"context"
	"strings"

	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/s3err"

	"github.com/cloudless/cloudless/api"
)

// accounts gives versitygw the access keys as its accounts, and the roles of the keys as their policies. A request is
// allowed if the key's role or the bucket's policy or ACL allows it, and the policy does not deny it.
type accounts struct {
	reporter
	directory Directory
}

// GetUserAccount implements auth.IAMService.
func (a *accounts) GetUserAccount(id string) (auth.Account, error) {
	key, secret, err := a.directory.AccessKey(context.Background(), id)
	if err != nil {
		return auth.Account{}, a.fail(err, about{})
	}
	if key == nil || secret == "" {
		return auth.Account{}, auth.ErrNoSuchUser
	}
	return auth.Account{Access: id, Secret: secret, Role: auth.RoleUser}, nil
}

// ResolveAccounts implements auth.IAMService: it returns the ids that no key has.
func (a *accounts) ResolveAccounts(ids []string) ([]string, error) {
	missing := []string{}
	for _, id := range ids {
		key, _, err := a.directory.AccessKey(context.Background(), id)
		if err != nil {
			return nil, a.fail(err, about{})
		}
		if key == nil {
			missing = append(missing, id)
		}
	}
	return missing, nil
}

// CreateAccount implements auth.IAMService. Keys are made by the API of the cluster.
func (*accounts) CreateAccount(auth.Account) error { return errNotHere }

// UpdateUserAccount implements auth.IAMService.
func (*accounts) UpdateUserAccount(string, auth.MutableProps) error { return errNotHere }

// DeleteUserAccount implements auth.IAMService.
func (*accounts) DeleteUserAccount(string) error { return errNotHere }

// ListUserAccounts implements auth.IAMService.
func (*accounts) ListUserAccounts() ([]auth.Account, error) { return nil, errNotHere }

// Shutdown implements auth.IAMService.
func (*accounts) Shutdown() error { return nil }

var errNotHere = s3err.GetAPIError(s3err.ErrAdminMethodNotSupported)

// The decisions of a policy, which versitygw has names for and does not export.
const (
	decidesNothing = iota
	decidesAllow
)

// EvaluatePolicy implements auth.PolicyEvaluator. It is called after the signature was checked.
func (a *accounts) EvaluatePolicy(id, _ string, actions []auth.Action, resources []string, _ map[string][]string) (auth.PolicyEvaluation, error) {
	var result auth.PolicyEvaluation
	key, _, err := a.directory.AccessKey(context.Background(), id)
	if err != nil {
		return result, a.fail(err, about{})
	}
	known := map[grant]bool{}
	for _, resource := range resources {
		result.Decisions = append(result.Decisions, nil)
		row := &result.Decisions[len(result.Decisions)-1]
		for _, action := range actions {
			g := grantOf(action, resource)
			allowed, decided := known[g]
			if !decided {
				allowed = key != nil && g.verb != "" && a.directory.Allowed(context.Background(), key, g.verb, g.kind, g.bucket)
				known[g] = allowed
			}
			if allowed {
				*row = append(*row, decidesAllow)
			} else {
				*row = append(*row, decidesNothing)
			}
		}
	}
	return result, nil
}

// grant is what a role must allow.
type grant struct {
	verb, kind, bucket string
}

// grantOf returns what a role must allow for an action on a resource. Its verb is empty for what no role allows.
func grantOf(action auth.Action, resource string) grant {
	bucket, _, _ := strings.Cut(strings.TrimPrefix(resource, auth.ResourceArnPrefix), "/")
	if action == auth.ListAllMyBucketsAction {
		return grant{verb: api.VerbGet, kind: kindBucket}
	}
	g := grants[action]
	g.bucket = bucket
	return g
}

const (
	kindBucket = "bucket"
	kindObject = "object"
)

var (
	readObject   = grant{verb: api.VerbGet, kind: kindObject}
	writeObject  = grant{verb: api.VerbUpdate, kind: kindObject}
	deleteObject = grant{verb: api.VerbDelete, kind: kindObject}
	readBucket   = grant{verb: api.VerbGet, kind: kindBucket}
	writeBucket  = grant{verb: api.VerbUpdate, kind: kindBucket}
	createBucket = grant{verb: api.VerbCreate, kind: kindBucket}
	deleteBucket = grant{verb: api.VerbDelete, kind: kindBucket}
)

var grants = map[auth.Action]grant{
	auth.CreateBucketAction: createBucket,
	auth.DeleteBucketAction: deleteBucket,

	auth.ListBucketAction:                 readObject,
	auth.ListBucketVersionsAction:         readObject,
	auth.GetObjectAction:                  readObject,
	auth.GetObjectVersionAction:           readObject,
	auth.GetObjectAclAction:               readObject,
	auth.GetObjectAttributesAction:        readObject,
	auth.GetObjectVersionAttributesAction: readObject,
	auth.GetObjectTaggingAction:           readObject,
	auth.GetObjectVersionTaggingAction:    readObject,
	auth.GetObjectLegalHoldAction:         readObject,
	auth.GetObjectRetentionAction:         readObject,

	auth.ListBucketMultipartUploadsAction:       readObject,
	auth.ListMultipartUploadPartsAction:         readObject,
	auth.AbortMultipartUploadAction:             writeObject,
	auth.PutObjectAction:                        writeObject,
	auth.PutObjectAclAction:                     writeObject,
	auth.PutObjectTaggingAction:                 writeObject,
	auth.PutObjectVersionTaggingAction:          writeObject,
	auth.DeleteObjectTaggingAction:              writeObject,
	auth.DeleteObjectVersionTaggingAction:       writeObject,
	auth.PutObjectLegalHoldAction:               writeObject,
	auth.PutObjectRetentionAction:               writeObject,
	auth.RestoreObjectAction:                    writeObject,
	auth.DeleteObjectAction:                     deleteObject,
	auth.DeleteObjectVersionAction:              deleteObject,
	auth.GetBucketLocationAction:                readBucket,
	auth.GetBucketAclAction:                     readBucket,
	auth.GetBucketPolicyAction:                  readBucket,
	auth.GetBucketPolicyStatusAction:            readBucket,
	auth.GetBucketVersioningAction:              readBucket,
	auth.GetBucketTaggingAction:                 readBucket,
	auth.GetBucketCorsAction:                    readBucket,
	auth.GetBucketOwnershipControlsAction:       readBucket,
	auth.GetBucketWebsiteAction:                 readBucket,
	auth.GetBucketObjectLockConfigurationAction: readBucket,
	auth.PutBucketAclAction:                     writeBucket,
	auth.PutBucketPolicyAction:                  writeBucket,
	auth.DeleteBucketPolicyAction:               writeBucket,
	auth.PutBucketVersioningAction:              writeBucket,
	auth.PutBucketTaggingAction:                 writeBucket,
	auth.PutBucketCorsAction:                    writeBucket,
	auth.PutBucketOwnershipControlsAction:       writeBucket,
	auth.PutBucketWebsiteAction:                 writeBucket,
	auth.DeleteBucketWebsiteAction:              writeBucket,
	auth.PutBucketObjectLockConfigurationAction: writeBucket,
}
