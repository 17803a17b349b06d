package sessions

import (
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func TestEncodedRevisionIsSentAsItIsStored(t *testing.T) {
	e := newEncodedRevisions()
	stored := &v1.Revision{
		Metadata: &v1.Metadata{Uid: "r1", Name: "web-1", Labels: map[string]string{"app": "web"}},
		Spec:     &v1.RevisionSpec{WorkloadUid: "w1", Number: 7, Workload: &v1.WorkloadSpec{Image: "web:1", Replicas: proto.Int32(3)}},
	}
	for range 2 { // made, and known
		sent, err := proto.Marshal(&v1.Assignment{Replica: &v1.Replica{Kind: "Replica"}, Revision: e.of(stored)})
		must(t, err)
		var got v1.Assignment
		must(t, proto.Unmarshal(sent, &got))
		if !proto.Equal(got.GetRevision(), stored) {
			t.Errorf("got %v, want %v", got.GetRevision(), stored)
		}
	}
	first := e.of(stored)
	if again := e.of(stored); again != first {
		t.Error("it is encoded each time")
	}
	if e.of(nil) != nil {
		t.Error("a replica without a revision gets one")
	}
	for range 2 * maxEncoded {
		e.of(&v1.Revision{})
	}
	if len(e.made) > maxEncoded {
		t.Errorf("%d revisions are kept", len(e.made))
	}
}
