package spec

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cloudless/cloudless/internal/suggest"
)

// suggestion names the field that was probably meant, or all existing ones.
func suggestion(name string, fields protoreflect.FieldDescriptors) string {
	names := make([]string, fields.Len())
	for i := range names {
		names[i] = fields.Get(i).JSONName()
	}
	if near := suggest.To(name, slices.Values(names)); near != "" {
		return "did you mean " + near + "?"
	}
	slices.Sort(names)
	return "there are " + strings.Join(names, ", ")
}
