package services

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/services"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// fatal is what tests and properties have in common.
type fatal interface {
	Helper()
	Fatalf(format string, args ...any)
}

// world is a state that a test changes as users would.
type world struct {
	t     fatal
	store *state.Store
	index uint64
	uids  int
}

func newWorld(t fatal, serviceRange string) *world {
	w := &world{t: t, store: state.New()}
	w.do(func(b *state.Batch) {
		b.Create(&v1.Cluster{Metadata: &v1.Metadata{Uid: "home", Name: "cloudless"}, Spec: &v1.ClusterSpec{
			RangeV4: "10.64.0.0/10", RangeV6: "fd00:1:2::/48", ServiceRangeV4: serviceRange,
		}})
	})
	return w
}

func (w *world) newUID() string {
	w.uids++
	return fmt.Sprintf("%08d-0000-7000-8000-0000%08d", w.uids, w.uids)
}

func (w *world) snap() *state.Snapshot { return w.store.Snapshot() }

func (w *world) do(build func(*state.Batch)) {
	w.t.Helper()
	var b state.Batch
	build(&b)
	w.apply(&b)
}

func (w *world) apply(b *state.Batch) {
	w.t.Helper()
	w.index++
	tx := proto.CloneOf(b.Transaction(time.Unix(1e9, 0)))
	if err := state.Validate(tx); err != nil {
		w.t.Fatalf("the changes are not valid: %v", err)
	}
	if _, err := w.store.Apply(w.index, tx); err != nil {
		w.t.Fatalf("the changes do not fit to the state they were made from: %v", err)
	}
}

// run creates a workload or replaces it, with some ports.
func (w *world) run(name, kind string, ports ...int32) {
	w.t.Helper()
	made := &v1.Workload{
		Metadata: &v1.Metadata{Uid: w.newUID(), Name: name, Namespace: "default", Labels: map[string]string{"app": name}},
		Spec:     &v1.WorkloadSpec{Kind: kind},
	}
	for _, p := range ports {
		made.Spec.Ports = append(made.Spec.Ports, &v1.Port{Name: fmt.Sprint("p", p), Port: p, Protocol: "tcp"})
	}
	if old := w.snap().WorkloadByName("default", name); old != nil {
		made.Metadata.Uid = old.GetMetadata().GetUid()
	}
	w.do(func(b *state.Batch) { b.Put(made) })
}

func (w *world) remove(name string) {
	w.t.Helper()
	w.do(func(b *state.Batch) {
		b.Delete(state.KindWorkload, w.snap().WorkloadByName("default", name).GetMetadata().GetUid())
	})
}

// settle ticks until nothing is left to do.
func (w *world) settle() {
	w.t.Helper()
	for range 100 {
		batch, _ := Tick(time.Unix(1e9, 0), w.snap(), All(w.snap()), w.newUID)
		if batch.Len() == 0 {
			return
		}
		w.apply(batch)
	}
	w.t.Fatalf("it never comes to rest")
}

// services lists the services with their ports.
func (w *world) services() string {
	var all []string
	for s := range w.snap().Services("", "") {
		text := s.GetMetadata().GetName()
		for _, p := range s.GetSpec().GetPorts() {
			text += fmt.Sprintf(" %d", p.GetPort())
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func (w *world) service(name string) *v1.Service { return w.snap().ServiceByName("default", name) }

func (w *world) expect(want string) {
	w.t.Helper()
	if got := w.services(); got != want {
		w.t.Fatalf("the services are %q, want %q", got, want)
	}
}

func TestWorkloadsWithPortsHaveAService(t *testing.T) {
	w := newWorld(t, "10.128.0.0/16")
	w.run("api", "", 80)
	w.run("agent", spec.KindDaemon, 9100)
	w.run("worker", "")
	w.run("import", spec.KindJob, 80)
	w.settle()
	w.expect("agent 9100, api 80")
	api := w.service("api")
	if !spec.IsImplicit(api) || api.GetStatus().GetWorkload() != "api" || api.GetMetadata().GetLabels()["app"] != "api" || api.GetStatus().GetAddressV6() == "" {
		t.Errorf("the service of a workload is %v", api)
	}
	if found := w.snap().ServiceAt(api.GetStatus().GetAddressV4()); found != api {
		t.Errorf("at the address of the service is %v", found)
	}

	w.run("api", "", 80, 443)
	w.run("worker", "", 1)
	w.remove("agent")
	w.settle()
	w.expect("api 80 443, worker 1")
	if now := w.service("api"); now.GetStatus().GetAddressV4() != api.GetStatus().GetAddressV4() {
		t.Errorf("other ports give it another address: %v", now)
	}
	w.run("api", "")
	w.settle()
	w.expect("worker 1")
}

// A workload that is deleted and created again has a new uid, and the same address.
func TestARecreatedWorkloadGetsItsAddressBack(t *testing.T) {
	w := newWorld(t, "10.128.0.0/16")
	w.run("api", "", 80)
	w.settle()
	before := w.service("api")
	w.remove("api")
	w.settle()
	w.run("other", "", 80)
	w.run("api", "", 80)
	w.settle()
	if after := w.service("api"); after.GetMetadata().GetUid() == before.GetMetadata().GetUid() || after.GetStatus().GetAddressV4() != before.GetStatus().GetAddressV4() {
		t.Errorf("it was %v, and is %v", before, after)
	}
}

// With the workload go the endpoints that were registered with its service.
func TestRegisteredEndpointsLeaveWithTheService(t *testing.T) {
	w := newWorld(t, "10.128.0.0/16")
	w.run("api", "", 80)
	w.settle()
	w.do(func(b *state.Batch) {
		b.Create(&v1.Endpoint{Metadata: &v1.Metadata{Uid: "e1", Name: "e1"}, Spec: &v1.EndpointSpec{ServiceUid: w.service("api").GetMetadata().GetUid()}})
	})
	w.remove("api")
	w.settle()
	if n := w.snap().Count(state.KindEndpoint) + w.snap().Count(state.KindService); n != 0 {
		t.Errorf("%d objects are left", n)
	}
}

// A service without an address says why once, and gets one as soon as there is one.
func TestAnExhaustedRangeIsExplainedAndRecovers(t *testing.T) {
	w := newWorld(t, "10.128.0.0/30") // two usable addresses
	for _, name := range []string{"a", "b", "c"} {
		w.run(name, "", 80)
	}
	w.settle()
	var starved *v1.Service
	for s := range w.snap().Services("", "") {
		if s.GetStatus().GetAddressV4() == "" {
			starved = s
		}
	}
	if starved == nil || starved.GetStatus().GetAddressV6() != "" {
		t.Fatalf("the service without an address is %v", starved)
	}
	for _, words := range []string{"serviceRangeV4 (10.128.0.0/30)", "cloudless cluster config set serviceRangeV4=", "remove services"} {
		if !strings.Contains(starved.GetStatus().GetReason(), words) {
			t.Errorf("%q does not say %q", starved.GetStatus().GetReason(), words)
		}
	}
	warnings := 0
	for e := range w.snap().Events("") {
		if e.GetSpec().GetReason() == "NoAddress" {
			warnings++
		}
	}
	if warnings != 1 {
		t.Errorf("%d warnings about one service", warnings)
	}
	other := slices.DeleteFunc([]string{"a", "b", "c"}, func(name string) bool { return name == starved.GetMetadata().GetName() })[0]
	w.remove(other)
	w.settle()
	if now := w.service(starved.GetMetadata().GetName()).GetStatus(); now.GetAddressV4() == "" || now.GetReason() != "" {
		t.Errorf("with a free address its status is %v", now)
	}
}

// Whatever happens to workloads and services: no two services share an address, a service keeps its addresses while it
// exists, and an applied service and the workload's own have the same ones.
func TestAddressesAreUniqueAndStable(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt, "10.128.0.0/28")
		name := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			before := map[string]*v1.ServiceStatus{}
			for s := range w.snap().Services("", "") {
				before[s.GetMetadata().GetName()] = s.GetStatus()
			}
			chosen := name.Draw(rt, "name")
			w.step(rt, chosen)
			w.settle()
			taken := map[string]string{}
			for s := range w.snap().Services("", "") {
				was, name := before[s.GetMetadata().GetName()], s.GetMetadata().GetName()
				for _, pair := range [][2]string{{was.GetAddressV4(), s.GetStatus().GetAddressV4()}, {was.GetAddressV6(), s.GetStatus().GetAddressV6()}} {
					if pair[1] == "" || taken[pair[1]] != "" {
						rt.Fatalf("service %s has the address %q, which %q has", name, pair[1], taken[pair[1]])
					}
					if pair[0] != "" && pair[0] != pair[1] {
						rt.Fatalf("service %s moved from %s to %s", name, pair[0], pair[1])
					}
					taken[pair[1]] = name
				}
			}
		}
	})
}

// step does what a user may do with a name.
func (w *world) step(rt *rapid.T, name string) {
	workload, stored := w.snap().WorkloadByName("default", name), w.service(name)
	switch rapid.IntRange(0, 3).Draw(rt, "step") {
	case 0:
		w.run(name, "", rapid.Int32Range(1, 9).Draw(rt, "port"))
	case 1:
		if workload != nil {
			w.remove(name)
		}
	case 2: // apply a service
		applied := &v1.Service{Metadata: &v1.Metadata{Name: name, Namespace: "default"}, Spec: &v1.ServiceSpec{Ports: []*v1.ServicePort{{Port: 7}}}}
		if stored != nil {
			applied = services.Become(stored, applied)
		} else {
			applied.Metadata.Uid = w.newUID()
		}
		if err := services.NewAllocator(w.snap()).Allocate(applied); err != nil {
			rt.Fatalf("%v", err)
		}
		w.do(func(b *state.Batch) { b.Put(proto.CloneOf(applied)) })
	case 3: // remove the applied service
		if stored != nil && !spec.IsImplicit(stored) && workload == nil {
			w.do(func(b *state.Batch) { b.Delete(state.KindService, stored.GetMetadata().GetUid()) })
		}
	}
}

func TestOnlyChangesOfServicesAndTheirWorkloadsConcernTheLoop(t *testing.T) {
	plain, offered := &v1.Workload{Metadata: &v1.Metadata{Name: "job"}}, &v1.Workload{
		Metadata: &v1.Metadata{Name: "api"}, Spec: &v1.WorkloadSpec{Ports: []*v1.Port{{Port: 80}}},
	}
	service := &v1.Service{Metadata: &v1.Metadata{Name: "db"}}
	names, all := Concerned([]state.Change{
		{Kind: state.KindWorkload, New: plain},
		{Kind: state.KindReplica, New: &v1.Replica{Metadata: &v1.Metadata{Name: "api-1"}}},
		{Kind: state.KindWorkload, Old: offered, New: &v1.Workload{Metadata: offered.GetMetadata()}},
		{Kind: state.KindService, New: service},
	})
	if all || len(names) != 2 || !names[Name{Name: "api"}] || !names[Name{Name: "db"}] {
		t.Errorf("concerned are %v, all: %t", names, all)
	}
	if _, all := Concerned([]state.Change{{Kind: state.KindService, Old: service}}); !all {
		t.Error("a deleted service frees an address, and concerns no other service")
	}
}
