package simulated

import (
	"slices"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func drawUID(t *rapid.T, label string) uuid.UUID {
	return uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, label))
}

// The scan finds the same as a decoder of the whole message.
func TestScanAgreesWithTheDecoder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &v1.Assignments{
			Epoch: rapid.Uint64().Draw(t, "epoch"), Full: rapid.Bool().Draw(t, "full"), Heartbeat: "2s",
			Servers: rapid.SliceOf(rapid.StringMatching(`[a-z.:0-9]{1,20}`)).Draw(t, "servers"),
			Node:    &v1.NodeSpec{SubnetV4: "10.64.0.0/24"},
		}
		want := orders{epoch: m.GetEpoch(), full: m.GetFull(), servers: m.GetServers(), heartbeat: 2e9}
		for range rapid.IntRange(0, 20).Draw(t, "assigned") {
			w := desired{uid: drawUID(t, "uid"), stop: rapid.Bool().Draw(t, "stop")}
			desired := "running"
			if w.stop {
				desired = "stopped"
			}
			m.Assign = append(m.Assign, &v1.Assignment{
				Replica: &v1.Replica{
					Kind: "Replica", Metadata: &v1.Metadata{Uid: w.uid.String(), Name: "web-1", Version: 7},
					Spec: &v1.ReplicaSpec{Workload: "web", Desired: desired}, Status: &v1.ReplicaStatus{Phase: "placed"},
				},
				Revision: &v1.Revision{Metadata: &v1.Metadata{Uid: "another"}},
			})
			want.assigned = append(want.assigned, w)
		}
		for range rapid.IntRange(0, 5).Draw(t, "removed") {
			uid := drawUID(t, "remove")
			m.Remove = append(m.Remove, uid.String())
			want.remove = append(want.remove, uid)
		}
		data, err := proto.Marshal(&v1.SessionDown{Message: &v1.SessionDown_Assignments{Assignments: m}})
		if err != nil {
			t.Fatal(err)
		}
		h, err := scan(data)
		if err != nil || h.orders == nil || h.pong != nil {
			t.Fatalf("scanned %+v, %v", h, err)
		}
		got := *h.orders
		if got.epoch != want.epoch || got.full != want.full || got.heartbeat != want.heartbeat ||
			!slices.Equal(got.servers, want.servers) || !slices.Equal(got.assigned, want.assigned) || !slices.Equal(got.remove, want.remove) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

func TestOtherMessagesAreIgnored(t *testing.T) {
	data, err := proto.Marshal(&v1.SessionDown{Message: &v1.SessionDown_Open{Open: &v1.Open{Id: "x"}}})
	if err != nil {
		t.Fatal(err)
	}
	if h, err := scan(data); h.orders != nil || h.pong != nil || err != nil {
		t.Errorf("got %+v, %v", h, err)
	}
}

// A ping is answered with its own sequence.
func TestPingsAreAnswered(t *testing.T) {
	data, err := proto.Marshal(&v1.SessionDown{Message: &v1.SessionDown_Ping{Ping: &v1.Ping{Sequence: 300}}})
	if err != nil {
		t.Fatal(err)
	}
	h, err := scan(data)
	if err != nil || h.orders != nil {
		t.Fatalf("got %+v, %v", h, err)
	}
	var up v1.SessionUp
	if err := proto.Unmarshal(h.pong, &up); err != nil || up.GetPong().GetSequence() != 300 {
		t.Errorf("the answer is %v, %v", &up, err)
	}
}

func FuzzScan(f *testing.F) {
	data, err := proto.Marshal(&v1.SessionDown{Message: &v1.SessionDown_Assignments{Assignments: &v1.Assignments{
		Epoch: 1, Full: true, Heartbeat: "1s", Remove: []string{uuid.NewString()},
		Assign: []*v1.Assignment{{Replica: &v1.Replica{Metadata: &v1.Metadata{Uid: uuid.NewString()}}}},
	}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		if h, err := scan(data); err == nil && h.orders != nil {
			for _, w := range h.orders.assigned {
				_ = w.uid.String()
			}
		}
	})
}
