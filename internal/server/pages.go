package server

import (
	"encoding/base64"
	"iter"
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

const defaultPageSize = 100

// page returns one page of all objects. The token names the last object of the previous
// page. If objects are created or deleted between two pages, no other object appears twice
// or is skipped.
func page[T state.Object](wanted *v1.Page, all func(after string) iter.Seq[T], cursor func(T) string, match func(T) bool) (items []T, next string, err error) {
	var object T
	mark := string(object.ProtoReflect().Descriptor().Name()) + ":" // the list that the token belongs to
	given, err := base64.RawURLEncoding.DecodeString(wanted.GetToken())
	after, ok := strings.CutPrefix(string(given), mark)
	if err != nil || !ok && len(given) > 0 {
		return nil, "", &spec.Error{Violations: []spec.Violation{{
			Field: "page.token", Message: "is not a token that this list has given; begin again without one",
		}}}
	}
	size := int(wanted.GetSize())
	if size == 0 {
		size = defaultPageSize
	}
	for item := range all(after) {
		if !match(item) {
			continue
		}
		if len(items) == size {
			last := cursor(items[size-1])
			return items, base64.RawURLEncoding.EncodeToString([]byte(mark + last)), nil
		}
		items = append(items, item)
	}
	return items, "", nil
}

func byPath[T state.Object](o T) string { return state.Path(o) }
