package servers

import (
	"testing"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// with is a state that holds these objects.
func with(t *testing.T, objects ...state.Object) *state.Store {
	t.Helper()
	store := state.New()
	var b state.Batch
	for _, o := range objects {
		b.Create(o)
	}
	if _, err := store.Apply(1, b.Transaction(time.Unix(1_700_000_000, 0))); err != nil {
		t.Fatal(err)
	}
	return store
}

func cluster() *v1.Cluster { return &v1.Cluster{Metadata: &v1.Metadata{Uid: "c", Name: "cloudless"}} }

func server(uid, name, address string) *v1.Server {
	return &v1.Server{Metadata: &v1.Metadata{Uid: uid, Name: name}, Spec: &v1.ServerSpec{Address: address, Version: "1"}}
}

func tick(t *testing.T, store *state.Store, self Self, seen ...Seen) *state.Snapshot {
	t.Helper()
	index := store.Snapshot().Index()
	for range 3 { // it settles at once, and then does nothing more
		batch := Tick(store.Snapshot(), self, seen)
		if batch.Len() == 0 {
			return store.Snapshot()
		}
		index++
		if _, err := store.Apply(index, batch.Transaction(time.Unix(1_700_000_001, 0))); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the loop never rests")
	return nil
}

func TestLeaderAddsItself(t *testing.T) {
	self := Self{Seen: Seen{UID: "s1", Address: "192.0.2.1:7700", Version: "1"}, Name: "box"}
	store := with(t, cluster(), server("s2", "box", "192.0.2.2:7700"))
	got := tick(t, store, self).Server("s1")
	if got.GetMetadata().GetName() != "box-2" || got.GetSpec().GetAddress() != "192.0.2.1:7700" {
		t.Errorf("the leader is entered as %v", got)
	}
	// A server that was removed under another leader, and is elected before it has ended,
	// stays removed.
	store = with(t, cluster(), &statev1.Revocation{Metadata: &v1.Metadata{Uid: "s1"}})
	if got := tick(t, store, self).Server("s1"); got != nil {
		t.Errorf("the removed server is entered as %v", got)
	}
	// Before there is a cluster, there is nothing to add the server to.
	if batch := Tick(state.New().Snapshot(), self, nil); batch.Len() != 0 {
		t.Error("a server is entered without a cluster")
	}
}

func TestMovedServersAreUpdated(t *testing.T) {
	self := Self{Seen: Seen{UID: "s1", Address: "192.0.2.1:7700", Version: "1"}, Name: "box"}
	store := with(t, cluster(), server("s1", "one", "192.0.2.1:7700"), server("s2", "two", "192.0.2.2:7700"))
	snap := tick(t, store, self,
		Seen{UID: "s2", Address: "192.0.2.9:7700", Zone: "east", Version: "2"},
		Seen{UID: "stranger", Address: "192.0.2.66:7700"})
	moved := snap.Server("s2")
	if moved.GetSpec().GetAddress() != "192.0.2.9:7700" || moved.GetSpec().GetZone() != "east" || moved.GetSpec().GetVersion() != "2" || moved.GetMetadata().GetName() != "two" {
		t.Errorf("the server that moved is %v", moved)
	}
	if snap.Server("stranger") != nil {
		t.Error("one who has not enrolled became a server")
	}
	if batch := Tick(snap, self, []Seen{{UID: "s2"}}); batch.Len() != 0 {
		t.Error("a server that says nothing of itself lost its address")
	}
}

// The leader announces itself once per term, if there are other servers.
func TestLeaderAnnouncesItself(t *testing.T) {
	now := time.Unix(1_700_000_002, 0)
	one, two := Self{Seen: Seen{UID: "s1"}, Name: "one"}, Self{Seen: Seen{UID: "s2"}, Name: "two"}
	store := with(t, cluster(), server("s1", "one", "192.0.2.1:7700"))
	tell := func(self Self, term uint64, want string) {
		t.Helper()
		event := LeaderEvent(now, state.NewUID(), store.Snapshot(), self, term)
		if got := event.GetSpec().GetMessage(); got != want {
			t.Errorf("%s in term %d: %q instead of %q", self.Name, term, got, want)
		}
		if event == nil {
			return
		}
		if e := event.GetSpec(); e.GetReason() != state.ReasonLeads || e.GetObjectName() != self.Name || e.GetActor() != "server/"+self.Name {
			t.Errorf("the event is %v", e)
		}
		var b state.Batch
		b.Create(event)
		if _, err := store.Apply(store.Snapshot().Index()+1, b.Transaction(now)); err != nil {
			t.Fatal(err)
		}
	}
	tell(one, 1, "")
	var b state.Batch
	b.Create(server("s2", "two", "192.0.2.2:7700"))
	if _, err := store.Apply(2, b.Transaction(now)); err != nil {
		t.Fatal(err)
	}
	tell(Self{Seen: Seen{UID: "s3"}, Name: "stranger"}, 1, "")
	tell(one, 1, "leads since term 1")
	tell(one, 1, "")
	tell(two, 2, "leads since term 2, after server one")
	tell(two, 2, "")
	tell(two, 20, "leads since term 20")
	tell(one, 21, "leads since term 21, after server two")
}
