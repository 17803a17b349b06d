package sessions

import (
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/must"
)

func TestEncodedRevisionIsReceivedAsStored(t *testing.T) {
	e := newEncodedRevisions()
	stored := &v1.Revision{
		Metadata: &v1.Metadata{Uid: "r1", Name: "web-1", Labels: map[string]string{"app": "web"}},
		Spec:     &v1.RevisionSpec{WorkloadUid: "w1", Number: 7, Workload: &v1.WorkloadSpec{Image: "web:1", Replicas: proto.Int32(3)}},
	}
	for range 2 { // encoded, then cached
		sent, err := proto.Marshal(&v1.Assignment{Replica: &v1.Replica{Kind: "Replica"}, Revision: e.of(stored)})
		must.Succeed(t, err)
		var got v1.Assignment
		must.Succeed(t, proto.Unmarshal(sent, &got))
		if !proto.Equal(got.GetRevision(), stored) {
			t.Errorf("got %v, want %v", got.GetRevision(), stored)
		}
	}
	first := e.of(stored)
	if again := e.of(stored); again != first {
		t.Error("the revision is encoded each time")
	}
	if e.of(nil) != nil {
		t.Error("a replica without a revision gets one")
	}
}

func TestCacheOfEncodedRevisionsIsBounded(t *testing.T) {
	e := newEncodedRevisions()
	for range 2 * maxEncoded {
		e.of(&v1.Revision{})
	}
	if n := len(e.byStored); n > maxEncoded {
		t.Errorf("%d revisions are kept", n)
	}
}
