package object

import (
	"errors"
	"fmt"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// shown is how much of a key an error repeats.
const shown = 200

func aboutKey(b Bucket, key string, err error) error {
	if len(key) > shown {
		key = key[:shown] + "..."
	}
	return fmt.Errorf("object %q of bucket %s: %w", key, b.Name, err)
}

func aboutUpload(b Bucket, key, upload string, err error) error {
	return aboutKey(b, key, fmt.Errorf("upload %s: %w", upload, err))
}

func aboutBucket(b Bucket, err error) error { return fmt.Errorf("bucket %s: %w", b.Name, err) }

// ErrTooSlow is what is left of "epoch" after some attempts, and of "stale": the staged lists have expired.
var ErrTooSlow = errors.New("the content was stored too long ago to be kept: put it again")

// refused are the reasons of the names that callers handle. "quota" is not here because it has figures.
var refused = map[string]error{
	"no_bucket":    ErrNoBucket,
	"no_key":       ErrNoKey,
	"no_version":   ErrNoVersion,
	"no_upload":    ErrNoUpload,
	"not_empty":    ErrNotEmpty,
	"precondition": ErrPrecondition,
	"bad_part":     ErrBadPart,
	"small_part":   ErrSmallPart,
	"epoch":        ErrTooSlow,
	"stale":        ErrTooSlow,
}

// refusal is the error of an operation that was refused, or nil.
func refusal(result *objectv1.Result, wanted int64) error {
	switch why := result.GetRefused(); why {
	case "":
		return nil
	case "quota":
		return &QuotaError{Scope: result.GetAbout(), Used: result.GetUsed(), Wanted: wanted, Max: result.GetLimit()}
	case "bad_part", "small_part":
		return fmt.Errorf("part %s: %w", result.GetAbout(), refused[why])
	default:
		if err, known := refused[why]; known {
			return err
		}
		return fmt.Errorf("the store's servers refused it as %q", why)
	}
}
