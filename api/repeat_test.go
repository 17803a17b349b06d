package api

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// What is said to read is there, and has no need of a key.
func TestReaders(t *testing.T) {
	for _, method := range readers {
		found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.ReplaceAll(method[1:], "/", ".")))
		if err != nil {
			t.Errorf("%s: %v", method, err)
			continue
		}
		if Keyed(found.(protoreflect.MethodDescriptor)) {
			t.Errorf("%s reads and has an idempotency key", method)
		}
	}
}
