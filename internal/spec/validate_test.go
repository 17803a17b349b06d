package spec_test

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

func hello() *v1.Workload {
	return &v1.Workload{Metadata: &v1.Metadata{Name: "web"}, Spec: &v1.WorkloadSpec{Image: "hello:1"}}
}

func TestValidWorkload(t *testing.T) {
	w := hello()
	w.Spec.Resources = &v1.Resources{
		Requests: &v1.ResourceAmounts{Cpu: "250m", Memory: "128Mi"},
		Limits:   &v1.ResourceAmounts{Cpu: "1", Memory: "256Mi"},
	}
	w.Spec.Ports = []*v1.Port{{Name: "http", Port: 8080, Publish: 8080}, {Port: 8080, Protocol: "udp"}}
	for _, image := range []string{"hello", "hello:1", "docker.io/library/nginx:1.27", "localhost:5000/a/b_c", "a@sha256:" + strings.Repeat("0", 64)} {
		w.Spec.Image = image
		if err := spec.Validate(w); err != nil {
			t.Errorf("image %s: %v", image, err)
		}
	}
}

// Every refusal in the words that a user reads.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		change func(w *v1.Workload)
		want   string
	}{
		{func(w *v1.Workload) { w.Metadata = nil }, `metadata: is missing`},
		{func(w *v1.Workload) { w.Spec = nil }, `spec: is missing`},
		{func(w *v1.Workload) { w.Metadata.Name = "" }, `metadata.name: is missing`},
		{func(w *v1.Workload) { w.Metadata.Name = "Web" }, `metadata.name: must be 1 to 63 lower-case letters, digits or dashes, and begin and end with a letter or digit`},
		{func(w *v1.Workload) { w.Metadata.Labels = map[string]string{"a": "ü"} }, `metadata.labels["a"]: must be at most 63 letters, digits, dashes, dots or underscores, and begin and end with a letter or digit`},
		{func(w *v1.Workload) { w.Kind = "Pod" }, `kind: must be Workload`},
		{func(w *v1.Workload) { w.Spec.Image = "" }, `spec.image: is missing: name an image such as hello:1`},
		{func(w *v1.Workload) { w.Spec.Image = "Hello World" }, `spec.image: must be the name of an image such as hello:1, example.com/team/hello:1 or hello@sha256:…`},
		{func(w *v1.Workload) { w.Spec.WorkingDir = "tmp" }, `spec.workingDir: must be an absolute path of at most 4096 characters`},
		{func(w *v1.Workload) { w.Spec.Env = map[string]string{"1A": ""} }, `spec.env["1A"]: must be the name of an environment variable: letters, digits and underscores, not beginning with a digit`},
		{func(w *v1.Workload) { w.Spec.Replicas = proto.Int32(-1) }, `spec.replicas: must be between 0 and 100000`},
		{func(w *v1.Workload) { w.Spec.Driver = "vm" }, `spec.driver: must be container`},
		{func(w *v1.Workload) { w.Spec.Network = "bridge" }, `spec.network: must be node, host or none`},
		{func(w *v1.Workload) { w.Spec.Restart = &v1.Restart{Policy: "maybe"} }, `spec.restart.policy: must be always, on-failure or never`},
		{func(w *v1.Workload) { w.Spec.Restart = &v1.Restart{MaxBackoff: "soon"} }, `spec.restart.maxBackoff: must be a length of time such as 500ms, 10s, 5m or 1h30m`},
		{func(w *v1.Workload) { w.Spec.Restart = &v1.Restart{Backoff: "0s"} }, `spec.restart.backoff: must be more than 0: it is doubled with each failure`},
		{func(w *v1.Workload) { w.Spec.Command = []string{"", "x"} }, `spec.command[0]: is empty: name the program, or leave command out for the image's own`},
		{func(w *v1.Workload) { w.Spec.Args = []string{"a", "b\x00"} }, `spec.args[1]: has a byte of value 0, which no program can be given`},
		{func(w *v1.Workload) { w.Spec.Env = map[string]string{"A": "\x00"} }, `spec.env["A"]: has a byte of value 0, which no program can be given`},
		{func(w *v1.Workload) { w.Spec.User = "app:99999999999" }, `spec.user: 99999999999 is too large for the number of a user or a group, which is at most 2147483647`},
		{func(w *v1.Workload) { w.Spec.WorkingDir = "/a\x00b" }, `spec.workingDir: has a byte of value 0, which no program can be given`},
		{func(w *v1.Workload) { w.Spec.Resources = &v1.Resources{Gpu: &v1.Gpu{Model: "a100"}} }, `spec.resources.gpu.count: is missing: say how many of model a100`},
		{
			func(w *v1.Workload) {
				w.Spec.Placement = &v1.Placement{Spread: []*v1.Spread{{Key: "node"}, {Key: spec.LabelName}}}
			},
			`spec.placement.spread[1].key: node.cloudless/name is the key of spec.placement.spread[0] too`,
		},
		{
			func(w *v1.Workload) {
				w.Spec.Placement = &v1.Placement{Affinity: []*v1.Affinity{{Workload: "self", Key: spec.LabelHostname, Anti: true}}}
			},
			`spec.placement.affinity[0].key: node.cloudless/hostname may be the same on several machines: use node`,
		},
		{func(w *v1.Workload) { w.Spec.Restart = &v1.Restart{Backoff: "90s"} }, `spec.restart.backoff: must be at most maxBackoff: 1m30s is longer than 1m`},
		{func(w *v1.Workload) { w.Spec.Stop = &v1.Stop{Grace: "999999999h"} }, `spec.stop.grace: "999999999h" must be a length of time such as 500ms, 10s, 5m or 1h30m`},
		{func(w *v1.Workload) { w.Spec.Ports = []*v1.Port{{}} }, `spec.ports[0].port: must be between 1 and 65535`},
		{func(w *v1.Workload) {
			w.Spec.Ports = []*v1.Port{{Port: 80, Publish: 8080}, {Port: 81, Publish: 8080}}
		}, `spec.ports[1].publish: 8080/tcp is published by spec.ports[0] too; choose another port of the node`},
		{
			func(w *v1.Workload) { w.Spec.Ports = []*v1.Port{{Port: 80, Publish: 22}} },
			`spec.ports[0].publish: 22 is the port of SSH, by which people reach the node; choose another`,
		},
		{
			func(w *v1.Workload) {
				w.Spec.Ports = []*v1.Port{{Port: 80, Publish: 7701}, {Port: 81, Publish: 7701, Protocol: "udp"}}
			},
			`spec.ports[1].publish: 7701/udp is the port of the mesh, by which the nodes reach each other; choose another`,
		},
		{
			func(w *v1.Workload) {
				w.Spec.Ports = []*v1.Port{{Port: 80, Publish: 7702, Protocol: "udp"}, {Port: 81, Publish: 7702}}
			},
			`spec.ports[1].publish: 7702/tcp is the port by which the nodes get chunks of the object store from each other; choose another`,
		},
		{
			func(w *v1.Workload) {
				w.Spec.Ports = []*v1.Port{{Port: 80, Publish: 80, PublishAddress: "169.254.1.1"}}
			},
			`spec.ports[0].publishAddress: "169.254.1.1" is a link-local address, which nothing is published at; give another address of the nodes, such as 192.0.2.7, or leave it out for all`,
		},
		{
			// The resolver listens at the address of the bridge, and a port that is published at all addresses needs that one.
			func(w *v1.Workload) {
				w.Spec.Ports = []*v1.Port{{Port: 53, Publish: 53, Protocol: "udp"}, {Port: 54, Publish: 53, PublishAddress: "192.0.2.7"}}
			},
			`spec.ports[0].publish: 53 is the port of the resolver that every node has; publish it at one address of the nodes with publishAddress, or choose another`,
		},
		{
			func(w *v1.Workload) {
				w.Spec.Ports = []*v1.Port{{Port: 80, PublishMode: "host"}, {Port: 81, Publish: 81, PublishAddress: "eth0"}}
			},
			"spec.ports[0].publishMode: is for published ports: give publish too, or leave it out\n" +
				`spec.ports[1].publishAddress: "eth0" is not an address of one network interface, such as 127.0.0.1 or 192.0.2.7`,
		},
		{
			func(w *v1.Workload) {
				w.Spec.Network, w.Spec.Ports = "host", []*v1.Port{{Port: 80, Publish: 80, PublishAddress: "127.0.0.1"}}
			},
			`spec.ports[0].publishAddress: must be left out: with network host the program itself decides where it listens`,
		},
		{func(w *v1.Workload) {
			w.Spec.Network, w.Spec.Ports = "host", []*v1.Port{{Port: 80, Publish: 8080}}
		}, `spec.ports[0].publish: must be 80 like port, or left out: with network host ports are not translated`},
		{
			func(w *v1.Workload) { w.Spec.Ports = []*v1.Port{{Name: "a", Port: 80}, {Name: "a", Port: 81}} },
			`spec.ports[1].name: is the name of spec.ports[0] too; names of ports must differ`,
		},
		{func(w *v1.Workload) { w.Spec.Ports = []*v1.Port{{Port: 80}, {Port: 80, Protocol: "tcp"}} }, `spec.ports[1].port: 80/tcp is the port of spec.ports[0] too`},
		{
			func(w *v1.Workload) { w.Spec.Network, w.Spec.Ports = "none", []*v1.Port{{Port: 80}} },
			`spec.ports: cannot be reached with network none; leave them out or use network node`,
		},
		{limits("", "1Ki"), `spec.resources.limits.memory: a memory limit of 1Ki is too small: nothing can run below 4Mi`},
		{limits("1m", ""), `spec.resources.limits.cpu: a CPU limit of 1m is too small: the kernel holds none below 10m`},
		{limits("0", ""), `spec.resources.limits.cpu: must be more than 0; leave it out for no limit`},
		{limits("lots", ""), `spec.resources.limits.cpu: must be an amount of CPU such as 2, 0.5 or 250m`},
		{limits("", "9999999P"), `spec.resources.limits.memory: "9999999P" is too large`},
		{func(w *v1.Workload) {
			limits("1", "1Gi")(w)
			w.Spec.Resources.Requests = &v1.ResourceAmounts{Cpu: "1500m", Memory: "2Gi"}
		}, "spec.resources.requests.cpu: must be at most the limit: 1500m is more than 1\n" +
			"spec.resources.requests.memory: must be at most the limit: 2Gi is more than 1Gi"},
		{func(w *v1.Workload) {
			w.Spec.Env = map[string]string{}
			for _, key := range strings.Split("ABCDEFGHI", "") {
				w.Spec.Env[key] = strings.Repeat("x", 128<<10)
			}
		}, `spec.env: is too large: command, args and env have 1179675 bytes together and may have 1048576; put large contents into the image`},
	} {
		w := hello()
		c.change(w)
		before := proto.CloneOf(w)
		// The same words for the object and for every request that contains it.
		for _, msg := range []proto.Message{w, &v1.CreateWorkloadRequest{Workload: w}, &v1.ApplyWorkloadRequest{Workload: w}, &v1.UpdateWorkloadRequest{Workload: w}} {
			err := spec.Validate(msg)
			if _, ok := errors.AsType[*spec.Error](err); !ok || err.Error() != c.want {
				t.Errorf("%T is refused with\n%v\nwant\n%s", msg, err, c.want)
			}
		}
		if !proto.Equal(w, before) {
			t.Error("validation has changed the workload")
		}
	}
}

func limits(cpu, memory string) func(*v1.Workload) {
	return func(w *v1.Workload) {
		w.Spec.Resources = &v1.Resources{Limits: &v1.ResourceAmounts{Cpu: cpu, Memory: memory}}
	}
}

func TestOtherRequests(t *testing.T) {
	for want, msg := range map[string]proto.Message{
		"workload: is missing":                                  &v1.CreateWorkloadRequest{},
		"name: is missing":                                      &v1.GetWorkloadRequest{},
		"page.size: must be between 0 and 1000":                 &v1.ListWorkloadsRequest{Page: &v1.Page{Size: 1001}},
		"role: is missing":                                      &v1.CreateTokenRequest{},
		"tail: must be at least 0":                              &v1.LogsRequest{Workload: "web", Tail: proto.Int32(-1)},
		"command: is missing":                                   &v1.ExecStart{Workload: "web"},
		"selection.labels: must be at most 1024 characters":     &v1.ListWorkloadsRequest{Selection: &v1.Selection{Labels: strings.Repeat("a", 1025)}},
		"csr: is missing":                                       &v1.RenewRequest{},
		"idempotencyKey: must be at most 128 characters":        &v1.CreateWorkloadRequest{Workload: hello(), IdempotencyKey: strings.Repeat("a", 129)},
		"start.workload: is missing\nstart.command: is missing": &v1.ExecRequest{Message: &v1.ExecRequest_Start{Start: &v1.ExecStart{}}},
	} {
		if err := spec.Validate(msg); err == nil || err.Error() != want {
			t.Errorf("%T is refused with\n%v\nwant\n%s", msg, err, want)
		}
	}
	if err := spec.Validate(&v1.ListWorkloadsRequest{}); err != nil {
		t.Error(err)
	}
}

func BenchmarkValidate(b *testing.B) {
	w := hello()
	for b.Loop() {
		if err := spec.Validate(w); err != nil {
			b.Fatal(err)
		}
	}
}

func TestCommandsThatCanOnlyFailAreRefused(t *testing.T) {
	for want, start := range map[string]*v1.ExecStart{
		"start.command[0]: is empty: name the program to run":                                                  {Command: []string{"", "x"}},
		"start.command[1]: has a byte of value 0, which no program can be given":                               {Command: []string{"ls", "a\x00"}},
		`start.env["A"]: has a byte of value 0, which no program can be given`:                                 {Command: []string{"ls"}, Env: map[string]string{"A": "\x00"}},
		"start.workingDir: has a byte of value 0, which no program can be given":                               {Command: []string{"ls"}, WorkingDir: "/\x00"},
		"start.user: 2147483648 is too large for the number of a user or a group, which is at most 2147483647": {Command: []string{"ls"}, User: "2147483648:1"},
	} {
		start.Workload = "web"
		err := spec.Validate(&v1.ExecRequest{Message: &v1.ExecRequest_Start{Start: start}})
		if err == nil || err.Error() != want {
			t.Errorf("%v instead of %s", err, want)
		}
	}
}
