package ingress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/spec"
)

// program stands for the ingress process: it merges what it hears, and writes down what happens to it.
type program struct {
	t       *testing.T
	log     []string
	fails   int // so many attempts to start it
	running *conversation
	open    []*v1.IngressPort // as said last
}

type conversation struct {
	*program
	heard   set
	reports chan *v1.IngressUp
}

func (p *program) start(context.Context) (Process, error) {
	if p.fails > 0 {
		p.fails--
		p.log = append(p.log, "failed")
		return nil, errors.New("port 80 is taken")
	}
	p.log = append(p.log, "started")
	p.running = &conversation{program: p, heard: *newSet(), reports: make(chan *v1.IngressUp, 1)}
	return p.running, nil
}

func (p *program) clear(context.Context) error {
	p.log = append(p.log, "cleared")
	return nil
}

func (c *conversation) Send(d *v1.IngressDown) error {
	c.heard.merge(d)
	return nil
}
func (c *conversation) Reports() <-chan *v1.IngressUp { return c.reports }
func (c *conversation) Stop() error                   { c.log = append(c.log, "stopped"); return nil }
func (c *conversation) Close() error                  { c.log = append(c.log, "left"); return nil }

func (p *program) expect(want string) {
	p.t.Helper()
	synctest.Wait()
	if got := strings.Join(p.log, " "); got != want {
		p.t.Errorf("the process was %s, want %s", got, want)
	}
}

// shop is a full set with one route to a service with an endpoint on this node.
func shop() *v1.IngressDown {
	return &v1.IngressDown{
		Full: true, Settings: &v1.Ingress{HttpPort: 8080}, Routes: []*v1.IngressRoute{{Uid: "shop", ServiceUids: []string{"api"}}},
		Certificates: []*v1.IngressCertificate{{Uid: "c", Key: []byte("secret")}},
		Services: []*v1.IngressService{{Uid: "api", Endpoints: []*v1.IngressEndpoint{
			{Id: "r1", Addresses: []string{"10.64.0.2"}, State: spec.EndpointReady}, {Id: "r2", Addresses: []string{"10.64.1.2"}, State: spec.EndpointReady},
		}}},
	}
}

// run runs an Ingress in dir until the test ends, or until stop is called.
func (p *program) run(dir string, states map[string]string) (i *Ingress, stop func()) {
	i = New(Options{Dir: dir, Start: p.start, Clear: p.clear, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		i.Run(ctx, func() map[string]string { return states }, func(open []*v1.IngressPort) { p.open = open })
	}()
	synctest.Wait()
	return i, func() { cancel(); <-done }
}

// Whoever opens the way to the ports hears of those that are open, and that none are when the process has ended.
func TestOpenPortsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{t: t}
		i, stop := p.run(t.TempDir(), nil)
		defer stop()
		i.Apply(shop())
		synctest.Wait()
		ports := []*v1.IngressPort{{Protocol: "tcp", Port: 8080}, {Protocol: "tcp", Port: 443, Problem: "Another program uses it."}}
		for name, end := range map[string]func(){
			"ended itself":  func() { close(p.running.reports) },
			"is not needed": func() { i.Apply(&v1.IngressDown{RemovedRoutes: []string{"shop"}}) },
		} {
			i.Apply(shop())
			time.Sleep(time.Minute)
			synctest.Wait()
			p.running.reports <- &v1.IngressUp{PortsSet: true, Ports: ports}
			synctest.Wait()
			p.running.reports <- &v1.IngressUp{Wake: []string{"api"}}
			synctest.Wait()
			if len(p.open) != 1 || p.open[0].GetPort() != 8080 {
				t.Errorf("open is %v", p.open)
			}
			end()
			synctest.Wait()
			if len(p.open) != 0 {
				t.Errorf("open is %v, and the process %s", p.open, name)
			}
		}
	})
}

// The process runs only while the node answers for a route, and an agent that ends leaves it running.
func TestProcessRunsOnlyWhileThereAreRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{t: t}
		i, stop := p.run(t.TempDir(), nil)
		p.expect("")
		i.Apply(&v1.IngressDown{Full: true})
		p.expect("cleared") // one of an earlier agent may run
		i.Apply(shop())
		p.expect("cleared started")
		i.Apply(&v1.IngressDown{RemovedRoutes: []string{"shop"}})
		p.expect("cleared started stopped")
		i.Apply(shop())
		stop()
		p.expect("cleared started stopped started left")
	})
}

func TestFailedStartIsRetriedAndReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{t: t, fails: 3}
		i, stop := p.run(t.TempDir(), nil)
		defer stop()
		i.Apply(shop())
		p.expect("failed")
		up := i.Take()
		if len(up.GetPorts()) != 2 || up.GetPorts()[0].GetPort() != 8080 || !strings.Contains(up.GetPorts()[1].GetProblem(), "port 80 is taken") {
			t.Errorf("servers hear %v", up)
		}
		time.Sleep(10 * time.Second)
		p.expect("failed failed failed started")
		if p.running.heard.empty() {
			t.Error("the process knows no route")
		}
	})
}

// A process that is not kept running any more is started again, and hears everything.
func TestProcessThatEndsIsStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{t: t}
		i, stop := p.run(t.TempDir(), nil)
		defer stop()
		i.Apply(shop())
		synctest.Wait()
		close(p.running.reports)
		time.Sleep(time.Second)
		p.expect("started started")
		if p.running.heard.empty() {
			t.Error("the process knows no route")
		}
	})
}

// An endpoint of this node is as the node itself knows, before any server does.
func TestOwnReplicasAreAsTheNodeKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{t: t}
		states := map[string]string{}
		i, stop := p.run(t.TempDir(), states)
		defer stop()
		i.Apply(shop())
		expect := func(want string) {
			t.Helper()
			synctest.Wait()
			if got := p.running.heard.services["api"].GetEndpoints()[0].GetState(); got != want {
				t.Errorf("the endpoint is %s, want %s", got, want)
			}
		}
		expect(spec.EndpointReady)
		for _, state := range []string{spec.EndpointDraining, spec.EndpointUnready, spec.EndpointReady} {
			states["10.64.0.2"] = state
			i.ServingChanged([]string{"10.64.0.2"})
			expect(state)
		}
		states["10.64.0.2"] = spec.EndpointUnready
		i.Apply(shop()) // a server that does not know yet
		expect(spec.EndpointUnready)
	})
}

// An agent that starts without servers answers for what it knew before. The keys are never on a disk.
func TestAgentWithoutServersKnowsItsRoutes(t *testing.T) {
	defer func(before func(string) bool) { onTmpfs = before }(onTmpfs)
	for _, memory := range []bool{true, false} {
		onTmpfs = func(string) bool { return memory }
		synctest.Test(t, func(t *testing.T) {
			p, dir := &program{t: t}, t.TempDir()
			i, stop := p.run(dir, nil)
			i.Apply(shop())
			synctest.Wait()
			stop()
			if info, err := os.Stat(filepath.Join(dir, fileName)); memory && (err != nil || info.Mode().Perm() != 0o600) {
				t.Errorf("the file with keys is %v (%v)", info, err)
			}
			if !memory {
				if left := must.List(t, dir); left != "" {
					t.Errorf("on the disk is %s", left)
				}
				return
			}
			_, stop = p.run(dir, nil)
			p.expect("started left started")
			if string(p.running.heard.certs["c"].GetKey()) != "secret" {
				t.Errorf("the process knows %v", p.running.heard.full())
			}
			stop()
		})
	}
}

// Nothing is left of a node that was removed.
func TestRemovedNodeServesNothing(t *testing.T) {
	defer func(before func(string) bool) { onTmpfs = before }(onTmpfs)
	onTmpfs = func(string) bool { return true }
	synctest.Test(t, func(t *testing.T) {
		p, dir := &program{t: t}, t.TempDir()
		i, stop := p.run(dir, nil)
		defer stop()
		i.Apply(shop())
		synctest.Wait()
		must.Succeed(t, i.Remove(t.Context()))
		p.expect("started stopped")
		if left := must.List(t, dir); left != "" {
			t.Errorf("left are %s", left)
		}
	})
}

// What a node counts while it has no session is added up, and a new session hears of ports and open connections again.
func TestReportsWaitForASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{t: t}
		i, stop := p.run(t.TempDir(), nil)
		defer stop()
		i.Apply(shop())
		synctest.Wait()
		p.running.reports <- &v1.IngressUp{PortsSet: true, Ports: []*v1.IngressPort{{Protocol: "tcp", Port: 80}}}
		for range 3 {
			p.running.reports <- &v1.IngressUp{
				Traffic: []*v1.TrafficSample{{RouteUid: "shop", ServiceUid: "api", Requests: 5, Errors: 1, Open: 2, Latencies: []int64{0, 5}, Sent: 10}},
				Wake:    []string{"api"},
			}
			synctest.Wait()
		}
		want := &v1.IngressUp{
			PortsSet: true, Ports: []*v1.IngressPort{{Protocol: "tcp", Port: 80}}, Wake: []string{"api"},
			Traffic: []*v1.TrafficSample{{RouteUid: "shop", ServiceUid: "api", Requests: 15, Errors: 3, Open: 2, Latencies: []int64{0, 15}, Sent: 30}},
		}
		if up := i.Take(); !proto.Equal(up, want) {
			t.Errorf("the server hears %v", up)
		}
		if up := i.Take(); up != nil {
			t.Errorf("it hears again %v", up)
		}
		i.Connected()
		if up := i.Take(); !up.GetPortsSet() || len(up.GetTraffic()) != 1 || up.GetTraffic()[0].GetOpen() != 2 || up.GetTraffic()[0].GetRequests() != 0 {
			t.Errorf("another server hears %v", up)
		}
		<-i.News()
		time.Sleep(beatEvery + time.Second)
		<-i.News()
		if up := i.Take(); up == nil || len(up.GetTraffic())+len(up.GetPorts()) != 0 {
			t.Errorf("a server that would otherwise hear nothing hears %v", up)
		}
	})
}

// However many samples there are, each is sent once, in messages that servers accept.
func TestOutboxSendsEverySampleOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o, sent := newOutbox(), int64(0)
		want := rapid.Int64Range(1, 3*maxSamples).Draw(rt, "routes")
		for n := range want {
			o.add(&v1.IngressUp{Traffic: []*v1.TrafficSample{{RouteUid: fmt.Sprint(n), Requests: 1}}})
		}
		for more := true; more; {
			var up *v1.IngressUp
			if up, more = o.take(); len(up.GetTraffic()) > maxSamples {
				rt.Fatalf("a message has %d samples", len(up.GetTraffic()))
			}
			for _, s := range up.GetTraffic() {
				sent += s.GetRequests()
			}
		}
		if sent != want {
			rt.Fatalf("%d of %d requests were sent", sent, want)
		}
	})
}

func TestNilIngressDoesNothing(t *testing.T) {
	var i *Ingress
	i.Apply(shop())
	i.Connected()
	i.ServingChanged(nil)
	i.Run(t.Context(), nil, nil)
	if err := i.Remove(t.Context()); err != nil || i.News() != nil {
		t.Errorf("it does something: %v", err)
	}
}
