package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/test/sandbox"
)

const (
	appName     = "app"
	appReplicas = 6

	// Sizes of disks in MiB. A server keeps 64 in reserve.
	serverDisk, nodeDisk = 320, 512

	// patience bounds waiting for eventual states. It is no measure of speed: the error
	// then says what is missing.
	patience = 3 * time.Minute
)

// lab is the whole cluster.
type lab struct {
	dir            string
	told           *timeline
	network        *network
	servers, nodes []*machine
	// admin is the client of the test itself.
	admin   *client.Client
	clients []*client.Client
	// census knows where the singleton runs.
	census *census
}

func apiAddress(m *machine) string { return m.address + ":7700" }

// newLab starts three servers and nodes with disks of so many MiB, and waits until they are one cluster. close must be
// called whatever it returns.
func newLab(ctx context.Context, dir string, nodes, disk int) (*lab, error) {
	l := &lab{dir: dir, told: newTimeline()}
	var err error
	if l.network, err = newNetwork(); err != nil {
		return l, err
	}
	for i := range 3 {
		if err := l.addServer(ctx, i); err != nil {
			return l, err
		}
	}
	for i := range nodes {
		if err := l.addNode(ctx, i, disk); err != nil {
			return l, err
		}
	}
	return l, l.until(ctx, l.whole)
}

func (l *lab) close() {
	for _, c := range append(l.clients, l.admin) {
		if c != nil {
			_ = c.Close()
		}
	}
	for _, m := range l.machines() {
		m.close()
	}
	if l.network != nil {
		l.network.close()
	}
}

func (l *lab) machines() []*machine { return slices.Concat(l.servers, l.nodes) }

func (l *lab) addServer(ctx context.Context, i int) error {
	name := fmt.Sprintf("s%d", i+1)
	m, err := newMachine(l.network, l.told, l.dir, name, fmt.Sprintf("10.77.0.%d", 1+i), serverDisk)
	if err != nil {
		return err
	}
	l.servers = append(l.servers, m)
	m.again = []string{"server", "--data-dir", m.data, "--api-addr", apiAddress(m), "--name", name}
	if i == 0 {
		if err := m.start(m.again...); err != nil {
			return err
		}
		return l.until(ctx, func(ctx context.Context) error {
			l.admin, err = l.dial(ctx, nil)
			return err
		})
	}
	token, err := l.token(ctx, "server")
	if err != nil {
		return err
	}
	if err := m.start("join", apiAddress(l.servers[0]), "--role", "server", "--no-node", "--token-file", token,
		"--data-dir", m.data, "--api-addr", apiAddress(m), "--name", name); err != nil {
		return err
	}
	return l.until(ctx, func(ctx context.Context) error { return l.healthyServers(ctx, i+1) })
}

func (l *lab) addNode(ctx context.Context, i, disk int) error {
	name := fmt.Sprintf("n%d", i+1)
	m, err := newMachine(l.network, l.told, l.dir, name, fmt.Sprintf("10.77.0.%d", 11+i), disk)
	if err != nil {
		return err
	}
	l.nodes = append(l.nodes, m)
	token, err := l.token(ctx, "node")
	if err != nil {
		return err
	}
	m.again = []string{"agent", "--data-dir", m.data}
	if err := m.start("join", apiAddress(l.servers[i%len(l.servers)]), "--token-file", token, "--data-dir", m.data, "--name", name); err != nil {
		return err
	}
	var id string
	if err := l.until(ctx, func(context.Context) error {
		id, err = m.id()
		return err
	}); err != nil {
		return err
	}
	return sandbox.NoteGroup(id)
}

func (l *lab) token(ctx context.Context, role string) (path string, err error) {
	token, err := l.admin.Tokens().CreateToken(ctx, &v1.CreateTokenRequest{Role: role})
	if err != nil {
		return "", err
	}
	path = filepath.Join(l.dir, "token")
	return path, os.WriteFile(path, []byte(token.GetSecret()), 0o600)
}

// dial connects with the first server's configuration, to other addresses if given.
func (l *lab) dial(ctx context.Context, addresses []string) (*client.Client, error) {
	config, err := client.LoadConfig(filepath.Join(l.dir, "config.yaml"))
	if err != nil {
		return nil, err
	}
	where, err := config.Context("")
	if err != nil {
		return nil, err
	}
	if addresses != nil {
		where.Addresses = addresses
	}
	return client.Dial(ctx, where)
}

// addressesFrom are those of all servers, beginning with the i-th.
func (l *lab) addressesFrom(i int) (all []string) {
	for j := range l.servers {
		all = append(all, apiAddress(l.servers[(i+j)%len(l.servers)]))
	}
	return all
}

// until waits until nothing is missing any more.
func (l *lab) until(ctx context.Context, missing func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		during, cancel := context.WithTimeout(ctx, callTimeout)
		err := missing(during)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("never came about: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (l *lab) healthyServers(ctx context.Context, count int) error {
	cluster, err := l.admin.Cluster().GetCluster(ctx, &v1.GetClusterRequest{})
	if err != nil {
		return err
	}
	healthy, leads := 0, false
	for _, s := range cluster.GetStatus().GetServers() {
		leads = leads || s.GetLeader()
		if s.GetVoter() && s.GetHealthy() {
			healthy++
		}
	}
	if healthy != count || !leads {
		return fmt.Errorf("%d of %d servers vote and are healthy: %v", healthy, count, cluster.GetStatus().GetServers())
	}
	return nil
}

// whole says what the cluster lacks.
func (l *lab) whole(ctx context.Context) error {
	if err := l.healthyServers(ctx, len(l.servers)); err != nil {
		return err
	}
	nodes, err := l.admin.Nodes().ListNodes(ctx, &v1.ListNodesRequest{})
	if err != nil {
		return err
	}
	ready := 0
	for _, n := range nodes.GetItems() {
		if n.GetStatus().GetState() == "ready" {
			ready++
		} else {
			err = errors.Join(err, fmt.Errorf("node %s is %s: %s", n.GetMetadata().GetName(), n.GetStatus().GetState(), n.GetStatus().GetReason()))
		}
	}
	if ready != len(l.nodes) {
		return errors.Join(fmt.Errorf("%d of %d nodes are ready", ready, len(l.nodes)), err)
	}
	return nil
}

// leader is the machine of the leader, according to any server.
func (l *lab) leader(ctx context.Context) (*machine, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	cluster, err := l.admin.Cluster().GetCluster(ctx, &v1.GetClusterRequest{})
	if err != nil {
		return nil, err
	}
	for _, s := range cluster.GetStatus().GetServers() {
		for _, m := range l.servers {
			if s.GetLeader() && s.GetName() == m.name {
				return m, nil
			}
		}
	}
	return nil, errors.New("no server leads")
}

// push makes the containers' program an image of the cluster. Images of different names
// differ.
func (l *lab) push(ctx context.Context, tag string) (string, error) {
	return l.pushBy(ctx, l.admin, tag)
}

func (l *lab) pushBy(ctx context.Context, by *client.Client, tag string) (string, error) {
	return l.pushProgram(ctx, by, "sleeper", tag)
}

func (l *lab) pushProgram(ctx context.Context, by *client.Client, which, tag string) (string, error) {
	data, err := os.ReadFile(sandbox.Program(which))
	if err != nil {
		return "", err
	}
	path := filepath.Join(l.dir, which+"-"+tag)
	if err := os.WriteFile(path, append(data, tag...), 0o700); err != nil { // data after a program is ignored
		return "", err
	}
	img, err := image.FromBinary(path, image.Options{})
	if err != nil {
		return "", err
	}
	name, err := image.ParseName(which + ":" + tag)
	if err != nil {
		return "", err
	}
	_, err = image.Push(ctx, img, name, image.PushOptions{Transport: by.HTTPTransport()})
	return which + ":" + tag, err
}

// runApp runs a workload on the nodes.
func (l *lab) runApp(ctx context.Context, image string) error {
	if err := l.create(ctx, appName, image, appReplicas); err != nil {
		return err
	}
	return l.until(ctx, l.appRuns)
}

func (l *lab) create(ctx context.Context, name, image string, replicas int32) error {
	_, err := l.admin.Workloads().CreateWorkload(ctx, &v1.CreateWorkloadRequest{Workload: &v1.Workload{
		Metadata: &v1.Metadata{Name: name},
		Spec:     &v1.WorkloadSpec{Image: image, Replicas: proto.Int32(replicas)},
	}})
	return err
}

// appRuns says what is missing until every replica runs where the cluster says,
// and nothing else does.
func (l *lab) appRuns(ctx context.Context) error {
	app, err := l.admin.Workloads().GetWorkload(ctx, &v1.GetWorkloadRequest{Name: appName})
	if err != nil {
		return err
	}
	replicas, err := l.admin.Workloads().ListReplicas(ctx, &v1.ListReplicasRequest{})
	if err != nil {
		return err
	}
	perNode, count := map[string]int{}, 0
	for _, r := range replicas.GetItems() {
		if r.GetSpec().GetWorkload() == appName {
			count++
		}
		if !spec.Serves(r) {
			return fmt.Errorf("replica %s on %s is %s: %s%s", r.GetMetadata().GetName(), r.GetSpec().GetNode(), r.GetStatus().GetPhase(), r.GetStatus().GetReason(), r.GetStatus().GetUnready())
		}
		perNode[r.GetSpec().GetNode()]++
	}
	if wanted := int(app.GetSpec().GetReplicas()); count != wanted { // clients scale it all the time
		return fmt.Errorf("there are %d replicas in place of %d", count, wanted)
	}
	for _, m := range l.nodes {
		running, err := m.containers()
		if err != nil {
			return err
		}
		if len(running) != perNode[m.name] {
			return fmt.Errorf("on %s run %d containers, and %d should", m.name, len(running), perNode[m.name])
		}
	}
	return nil
}
