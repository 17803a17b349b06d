package api

import (
	"iter"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Methods are all methods of the contract, in a program that has what is generated
// from it.
func Methods() iter.Seq[protoreflect.MethodDescriptor] {
	return func(yield func(protoreflect.MethodDescriptor) bool) {
		protoregistry.GlobalFiles.RangeFilesByPackage("cloudless.v1", func(file protoreflect.FileDescriptor) bool {
			for i := range file.Services().Len() {
				methods := file.Services().Get(i).Methods()
				for k := range methods.Len() {
					if !yield(methods.Get(k)) {
						return false
					}
				}
			}
			return true
		})
	}
}
