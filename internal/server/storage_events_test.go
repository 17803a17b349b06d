package server

import (
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// What the object store tells of a node that the cluster does not know is about the cluster.
func TestObjectStoreTellsByEvents(t *testing.T) {
	c := newCluster(t)
	_, err := c.storageNews.RecordStorageEvent(c.ctx, &v1.RecordStorageEventRequest{
		NodeUid: "gone", Warning: true, Reason: "data-lost", Message: "no node has 3 pieces of objects any more",
	})
	must(t, err)
	events, err := c.as(core.RoleViewer).ListEvents(c.ctx, &v1.ListEventsRequest{Object: "cloudless"})
	must(t, err)
	for _, e := range events.GetItems() {
		if s := e.GetSpec(); s.GetReason() == "data-lost" {
			if s.GetSeverity() != state.SeverityWarning || s.GetObjectKind() != "cluster" || s.GetMessage() == "" {
				t.Errorf("the event is %v", s)
			}
			return
		}
	}
	t.Errorf("the events are %v", events.GetItems())
}
