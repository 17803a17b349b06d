package objects

import (
	"errors"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
)

// refusals are the errors of package object that callers can do something about: the code that they get, what helps, and
// the command that does it, which BUCKET and OBJECT complete.
var refusals = []struct {
	err           error
	code          codes.Code
	help, command string
}{
	{object.ErrNoBucket, codes.NotFound, "it was deleted a moment ago; see the others with", "cloudless bucket ls"},
	{object.ErrDeleteMarker, codes.NotFound, "see its versions with", "cloudless object ls OBJECT --versions"},
	{object.ErrNoKey, codes.NotFound, "see those that exist with", "cloudless object ls BUCKET"},
	{object.ErrNoVersion, codes.NotFound, "see those that exist with", "cloudless object ls OBJECT --versions"},
	{object.ErrNoUpload, codes.NotFound, "it was completed or aborted, or has expired; begin again", ""},
	{object.ErrPrecondition, codes.FailedPrecondition, "it exists already, or has changed since; see it with", "cloudless object head OBJECT"},
	{object.ErrBadPart, codes.InvalidArgument, "", ""},
	{object.ErrSmallPart, codes.InvalidArgument, "upload larger parts", ""},
	{object.ErrBadDigest, codes.InvalidArgument, "send it again", ""},
	{object.ErrIncomplete, codes.InvalidArgument, "send it again with its real size", ""},
	{object.ErrBadKey, codes.InvalidArgument, "", ""},
	{object.ErrBadRange, codes.OutOfRange, "see its size with", "cloudless object head OBJECT"},
	{object.ErrTooSlow, codes.Aborted, "", ""},
	{object.ErrNoStorage, codes.FailedPrecondition, "see the nodes with", "cloudless storage status"},
	{object.ErrKeyLost, codes.FailedPrecondition, "nobody can read it; see its bucket with", "cloudless bucket get BUCKET"},
	{object.ErrNoQuorum, codes.Unavailable, "see which can, and why others cannot, with", "cloudless storage status"},
	{object.ErrUnreachable, codes.Unavailable, "see which nodes have it with", "cloudless object where OBJECT"},
}

// refuse maps an error of the store to a code, with the way out. Others stay as they are.
func refuse(b object.Bucket, key string, err error) error {
	if _, quota := errors.AsType[*object.QuotaError](err); quota {
		return core.Refuse(codes.ResourceExhausted, "%s", err)
	}
	for _, r := range refusals {
		if !errors.Is(err, r.err) {
			continue
		}
		message := err.Error()
		if r.help != "" {
			message += "; " + r.help
		}
		if r.command != "" {
			message += ": " + completed(b, key, r.command)
		}
		return core.Refuse(r.code, "%s", message)
	}
	return err
}

// completed is a command that can be run as it is.
func completed(b object.Bucket, key, command string) string {
	whole := strings.NewReplacer("BUCKET", b.Name, "OBJECT", quoted(b.Name+"/"+key)).Replace(command)
	if whole == command {
		return command
	}
	return spec.Hint(b.Namespace, whole)
}

// quoted is a word for a shell.
func quoted(word string) string {
	special := strings.ContainsFunc(word, func(r rune) bool {
		return r <= ' ' || strings.ContainsRune("\"'`$&|;<>()*?[]{}\\~#!", r)
	})
	if !special {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
