package api_test

import (
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// A message by gRPC comes from anyone who can open a connection. It is decoded or refused, and what was decoded is encoded
// to the same message again. The generated code, which is stricter about fields that it does not know, agrees or refuses.
func FuzzCodec(f *testing.F) {
	for _, seed := range []proto.Message{
		&v1.EnrollRequest{Name: "one", Labels: map[string]string{"a": "b"}},
		&v1.SessionUp{Message: &v1.SessionUp_Heartbeat{Heartbeat: &v1.Heartbeat{}}},
		&v1.CreateWorkloadRequest{Workload: &v1.Workload{Metadata: &v1.Metadata{Name: "web"}, Spec: &v1.WorkloadSpec{Image: "x", Args: []string{"a"}}}},
	} {
		data, err := proto.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, make := range []func() proto.Message{
			func() proto.Message { return &v1.EnrollRequest{} }, func() proto.Message { return &v1.SessionUp{} },
			func() proto.Message { return &v1.CreateWorkloadRequest{} }, func() proto.Message { return &v1.AttachUp{} },
		} {
			message, again := make(), make()
			if err := api.ServerCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, message); err != nil {
				continue
			}
			encoded, err := api.ServerCodec().Marshal(message)
			if err != nil {
				t.Fatalf("what was decoded cannot be encoded: %v", err)
			}
			if err := api.ServerCodec().Unmarshal(encoded, again); err != nil || !proto.Equal(message, again) {
				t.Fatalf("%v became %v: %v", message, again, err)
			}
			quick := make()
			if err := api.ClientCodec().Unmarshal(encoded, quick); err == nil && !proto.Equal(message, quick) {
				t.Fatalf("%v became %v by the generated code", message, quick)
			}
		}
	})
}
