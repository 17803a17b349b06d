package api

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// What may be done twice is decided here for both sides: by clients that have lost
// a connection, and by servers that have lost the leader.

// readers only read although their names begin like those of others.
var readers = []string{
	"/cloudless.v1.ClusterService/WhoAmI",
	"/cloudless.v1.ExplainService/ExplainWorkload",
	"/cloudless.v1.PlanService/MakePlan",
	"/cloudless.v1.WorkloadService/Logs",
}

// Reads reports whether a method changes nothing. It is named as gRPC does, as
// /cloudless.v1.NodeService/GetNode.
func Reads(method string) bool {
	name := method[strings.LastIndexByte(method, '/')+1:]
	return strings.HasPrefix(name, "Get") || strings.HasPrefix(name, "List") || strings.HasPrefix(name, "Watch") ||
		slices.Contains(readers, method)
}

// Keyed reports whether the state remembers calls of a method by an idempotency
// key, if they have one.
func Keyed(method protoreflect.MethodDescriptor) bool {
	return method.Input().Fields().ByName("idempotency_key") != nil
}
