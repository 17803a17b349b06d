package s3

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// anonymous is the namespace whose buckets callers without a key see, if a policy makes them public.
const anonymous = "default"

// call is what the gateway remembers of a request.
type call struct {
	// ctx is that of the request; the one of fasthttp does not end with it.
	ctx context.Context
	// claimed is the access key that the request names. Nothing has checked its signature.
	claimed   string
	operation string
	began     time.Time
	received  int64
	// chunked is whether the body has chunks with signatures or a checksum behind it.
	chunked bool
	// escaped is whether an answer escapes keys.
	escaped bool
	// form is whether the request is an upload by an HTML form.
	form bool
	// encrypted is whether what the answer is about is encrypted on the disks.
	encrypted bool
	// found are the keys that the request has used.
	found map[string]*v1.AccessKey
}

// callKey is where fasthttp's context has the call.
type callKey struct{}

// callOf returns the call of a context of fasthttp.
func callOf(ctx context.Context) *call {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	return &call{ctx: ctx}
}

// claimedKey returns the access key id in a signature, or "".
func claimedKey(r *http.Request) string {
	if header := r.Header.Get("Authorization"); strings.HasPrefix(header, "AWS") {
		_, credential, _ := strings.Cut(header, "Credential=")
		id, _, _ := strings.Cut(strings.TrimSpace(credential), "/")
		if id == "" {
			id = "unreadable" // and versitygw says why
		}
		return id
	}
	if !strings.Contains(r.URL.RawQuery, "X-Amz-") && !strings.Contains(r.URL.RawQuery, "AWSAccessKeyId") {
		return ""
	}
	query := r.URL.Query()
	id, _, _ := strings.Cut(query.Get("X-Amz-Credential"), "/")
	if id == "" && (query.Has("X-Amz-Algorithm") || query.Has("X-Amz-Signature") || query.Has("AWSAccessKeyId")) {
		id = "unreadable"
	}
	return id
}

// key returns an access key, or nil.
func (c *call) key(d Directory, id string) (*v1.AccessKey, error) {
	if key, known := c.found[id]; known {
		return key, nil
	}
	key, _, err := d.AccessKey(c.ctx, id)
	if err != nil {
		return nil, err
	}
	if c.found == nil {
		c.found = map[string]*v1.AccessKey{}
	}
	c.found[id] = key
	return key, nil
}

// caller returns the access key whose signature was checked; nil for an anonymous caller.
func caller(ctx context.Context, d Directory) (*v1.AccessKey, error) {
	account, _ := ctx.Value(string(utils.ContextKeyAccount)).(auth.Account)
	if account.Access == "" {
		return nil, nil
	}
	key, err := callOf(ctx).key(d, account.Access)
	if err == nil && key == nil {
		err = s3err.GetInvalidAccessKeyIdErr(account.Access) // it was deleted meanwhile
	}
	if v, wants := d.(Verifier); wants && key != nil && err == nil {
		v.Verified(callOf(ctx).ctx)
	}
	return key, err
}

// namespace is where the buckets of a request are.
func namespace(ctx context.Context, d Directory) (string, error) {
	key, err := caller(ctx, d)
	if err != nil {
		return "", err
	}
	if key == nil {
		return anonymous, nil
	}
	return key.GetMetadata().GetNamespace(), nil
}

// claimedNamespace is namespace before the signature is checked. It serves nothing but the rules of CORS, which are the
// same for every caller.
func claimedNamespace(ctx context.Context, d Directory) (string, error) {
	c := callOf(ctx)
	if account, _ := ctx.Value(string(utils.ContextKeyAccount)).(auth.Account); account.Access != "" || c.claimed == "" {
		return namespace(ctx, d)
	}
	key, err := c.key(d, c.claimed)
	if err != nil || key == nil {
		return anonymous, err
	}
	return key.GetMetadata().GetNamespace(), nil
}
