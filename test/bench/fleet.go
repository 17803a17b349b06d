package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	fleetNodes = 5000
	// fleetLost is how many die at once, half of each kind.
	fleetLost    = fleetNodes / 10
	fleetSources = "127.7.0.0/16"
	fleetSettle  = 20 * time.Second // before anything is measured
	fleetTime    = 2 * time.Minute  // duration of the measurement
	fleetJoin    = 5 * time.Minute  // limit for joining and connecting
	// fleetPatience is when a killed node counts as never noticed.
	fleetPatience = time.Minute
)

// fleetRun is the result of one run of the fleet.
type fleetRun struct {
	cores   float64
	false   int
	offline sample // seconds
	notes   []string
}

func measureFleetCores(ctx context.Context, l *lab) (result, error) {
	r, err := l.measureFleet(ctx)
	return result{value: r.cores, notes: r.notes}, err
}

func measureFleetFalse(ctx context.Context, l *lab) (result, error) {
	r, err := l.measureFleet(ctx)
	return result{value: float64(r.false)}, err
}

func measureFleetOffline(ctx context.Context, l *lab) (result, error) {
	r, err := l.measureFleet(ctx)
	if err != nil {
		return result{}, err
	}
	return result{value: r.offline.quantile(0.95), notes: []string{
		r.offline.spread("death to offline"), fmt.Sprintf("the last one was noticed after %.4g s", r.offline.quantile(1)),
	}}, nil
}

// measureFleet lets thousands of simulated nodes report to one server for a while, and then
// kills a tenth of them.
func (l *lab) measureFleet(ctx context.Context) (_ fleetRun, err error) {
	if l.fleet != nil {
		return *l.fleet, nil
	}
	var r fleetRun
	err = l.withServer(ctx, "fleet", func(c *cloud, y *yard, conn *grpc.ClientConn) (err error) {
		r, err = c.fleetRun(ctx, y, conn)
		return err
	})
	if err == nil {
		l.fleet = &r
	}
	return r, err
}

// withServer calls measure with a server in a yard of its own, and a connection to it.
func (l *lab) withServer(ctx context.Context, name string, measure func(*cloud, *yard, *grpc.ClientConn) error) (err error) {
	y, err := newYard(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, y.close()) }()
	c := &cloud{lab: l, address: "127.0.0.1:7700", data: filepath.Join(l.dir, name), config: filepath.Join(l.dir, name+".yaml")}
	defer func() {
		_ = y.inside(func() error {
			c.close()
			return nil
		})
	}()
	err = y.inside(func() error {
		return c.run(ctx, "server", "--detach", "--data-dir", c.data, "--api-addr", c.address)
	})
	if err != nil {
		return err
	}
	conn, err := y.connect(c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return measure(c, y, conn)
}

// connect is a plain gRPC connection to a cloud in the yard.
func (y *yard) connect(c *cloud) (*grpc.ClientConn, error) {
	return c.connect(grpc.WithContextDialer(y.dial))
}

// connect is a plain gRPC connection to a cloud.
func (c *cloud) connect(more ...grpc.DialOption) (*grpc.ClientConn, error) {
	where, err := c.context()
	if err != nil {
		return nil, err
	}
	trust, err := identity.ParseTrustPEM([]byte(where.CA))
	if err != nil {
		return nil, err
	}
	config := identity.ClientTLS(trust, nil)
	config.NextProtos = []string{"h2"}
	return grpc.NewClient("passthrough:///"+c.address, append(more, grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithPerRPCCredentials(bearer(where.Token)))...)
}

func (c *cloud) fleetRun(ctx context.Context, y *yard, conn *grpc.ClientConn) (r fleetRun, err error) {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	seen, err := watchNodes(watching, v1.NewNodeServiceClient(conn))
	if err != nil {
		return r, err
	}
	pid, err := c.pid()
	if err != nil {
		return r, err
	}
	alone, err := procStatus(pid, "VmRSS")
	if err != nil {
		return r, err
	}
	stalls := watchStalls(watching)
	f, err := c.startFleet(ctx, fleetPlan{nodes: fleetNodes, args: []string{"--sources", fleetSources}, inside: y.inside}, conn)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, f.end()) }()
	joined := time.Now()
	if err := f.await(ctx, seen); err != nil {
		return r, err
	}
	r.notes = append(r.notes, fmt.Sprintf("%d nodes joined in %.3g s, and had sessions and were ready %.3g s after that", fleetNodes, f.enrolled, time.Since(joined).Seconds()))
	if err := sleep.For(ctx, fleetSettle); err != nil {
		return r, err
	}
	if err := r.steady(ctx, pid, f, alone); err != nil {
		return r, err
	}
	if err := r.lose(ctx, y, f, seen); err != nil {
		return r, err
	}
	var mistakes string
	if r.false, mistakes = seen.mistakes(joined); mistakes != "" {
		r.notes = append(r.notes, mistakes)
	}
	r.notes = append(r.notes, fmt.Sprintf("the latest heartbeat of the fleet was %.2g s late, the latest waking of an idle process %.2g s",
		float64(f.stats().Late)/1000, stalls.longest().Seconds()))
	return r, seen.failed()
}

// steady measures while there are only heartbeats.
func (r *fleetRun) steady(ctx context.Context, server int, f *fleetProcess, alone int) error {
	own := f.cmd.Process.Pid
	before, err := cpuTicks(server)
	if err != nil {
		return err
	}
	ownBefore, err := cpuTicks(own)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := sleep.For(ctx, fleetTime); err != nil {
		return err
	}
	after, err := cpuTicks(server)
	if err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	ownAfter, err := cpuTicks(own)
	if err != nil {
		return err
	}
	rss, err := procStatus(server, "VmRSS")
	if err != nil {
		return err
	}
	r.cores = float64(after-before) / ticksPerSecond / took
	last := f.stats()
	r.notes = append(r.notes,
		fmt.Sprintf("the server has %.4g MB resident, %d KiB for each session with its node and the garbage of both", megabytes(rss), (rss-alone)/fleetNodes),
		fmt.Sprintf("the fleet itself used %.2g cores and %d KiB for each node; it sent %d heartbeats in the last second",
			float64(ownAfter-ownBefore)/ticksPerSecond/took, last.PerNode, last.Heartbeats))
	if last.Connected != fleetNodes {
		r.notes = append(r.notes, fmt.Sprintf("only %d nodes were connected at the end", last.Connected))
	}
	return nil
}

// lose lets machines vanish: those of one half break their connections first, as in an
// orderly shutdown, the others say nothing, as after a power loss.
func (r *fleetRun) lose(ctx context.Context, y *yard, f *fleetProcess, seen *nodeWatch) error {
	at := time.Now()
	broken, err := f.order(ctx, "kill", fleetLost/2)
	if err != nil {
		return err
	}
	silent, err := f.order(ctx, "pause", fleetLost-fleetLost/2)
	if err != nil {
		return err
	}
	killed, addresses := map[string]bool{}, []string{}
	for _, n := range append(broken, silent...) {
		killed[n.UID] = true
		addresses = append(addresses, n.Address)
	}
	seen.doom(killed)
	if err := y.vanish(ctx, addresses); err != nil {
		return err
	}
	took := time.Since(at)
	if err := seen.untilOffline(ctx, killed, at.Add(fleetPatience)); err != nil {
		return err
	}
	times := func(nodes []fleetNode) (all sample) {
		for _, n := range nodes {
			all = append(all, seen.offlineAfter(n.UID, at).Seconds())
		}
		return all
	}
	first, second := times(broken), times(silent)
	r.offline = append(append(r.offline, first...), second...)
	r.notes = append(r.notes,
		first.spread("broken connection and no answer, to offline in s"), second.spread("silent, to offline in s"),
		fmt.Sprintf("killing them took %.2g s, which counts", took.Seconds()))
	return nil
}

// nodeWatch follows the states of all nodes through the API.
type nodeWatch struct {
	mu      sync.Mutex
	state   map[string]string
	ready   int                  // how many are
	doomed  map[string]bool      // those that were killed
	offline map[string]time.Time // when one of them was first seen offline
	wrong   map[string]lapse     // others that went offline
	news    chan struct{}        // closed at the next change
	err     error
}

// lapse is when a node left the state ready without having been killed.
type lapse struct {
	at     time.Time
	reason string
}

func watchNodes(ctx context.Context, nodes v1.NodeServiceClient) (*nodeWatch, error) {
	stream, err := nodes.WatchNodes(ctx, &v1.WatchNodesRequest{})
	if err != nil {
		return nil, err
	}
	w := &nodeWatch{state: map[string]string{}, offline: map[string]time.Time{}, wrong: map[string]lapse{}, news: make(chan struct{})}
	go func() { // ends with ctx
		for {
			change, err := stream.Recv()
			if ctx.Err() != nil {
				return
			}
			w.take(change, err)
			if err != nil {
				return
			}
		}
	}()
	return w, nil
}

func (w *nodeWatch) take(change *v1.NodeChange, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err = err; err == nil && change.GetNode() != nil {
		uid, now := change.GetNode().GetMetadata().GetUid(), change.GetNode().GetStatus().GetState()
		left := w.state[uid] == "ready" && now != "ready"
		_, known := w.offline[uid]
		switch {
		case left && !w.doomed[uid]:
			w.wrong[uid] = lapse{time.Now(), change.GetNode().GetStatus().GetReason()}
		case now == "offline" && w.doomed[uid] && !known:
			w.offline[uid] = time.Now()
		}
		if w.state[uid] == "ready" {
			w.ready--
		}
		if now == "ready" {
			w.ready++
		}
		w.state[uid] = now
	}
	close(w.news)
	w.news = make(chan struct{})
}

func (w *nodeWatch) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// until waits until the nodes are as wanted.
func (w *nodeWatch) until(ctx context.Context, met func() bool) error {
	for {
		w.mu.Lock()
		done, err, news := met(), w.err, w.news
		w.mu.Unlock()
		if done || err != nil {
			return err
		}
		select {
		case <-news:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (w *nodeWatch) untilReady(ctx context.Context, n int) error {
	return w.until(ctx, func() bool { return w.ready == n })
}

// untilOffline waits until all of them are, or it is too late.
func (w *nodeWatch) untilOffline(ctx context.Context, nodes map[string]bool, latest time.Time) error {
	patient, cancel := context.WithDeadline(ctx, latest)
	defer cancel()
	err := w.until(patient, func() bool {
		for uid := range nodes {
			if w.state[uid] != "offline" {
				return false
			}
		}
		return true
	})
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return nil // the figure says so
	}
	return err
}

// offlineAfter is how long after a moment a node was seen offline.
func (w *nodeWatch) offlineAfter(uid string, at time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen, ok := w.offline[uid]
	if !ok {
		return fleetPatience
	}
	return seen.Sub(at)
}

// doom says which nodes are killed from now on.
func (w *nodeWatch) doom(nodes map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.doomed = nodes
	for uid := range nodes {
		if w.state[uid] == "offline" { // by mistake, before
			w.offline[uid] = time.Now()
		}
	}
}

// mistakes counts the others that left the state ready, and says when and why.
func (w *nodeWatch) mistakes(since time.Time) (n int, note string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var first, last lapse
	for _, one := range w.wrong {
		if first.at.IsZero() || one.at.Before(first.at) {
			first = one
		}
		if one.at.After(last.at) {
			last = one
		}
	}
	if len(w.wrong) == 0 {
		return 0, ""
	}
	return len(w.wrong), fmt.Sprintf("%d nodes were taken for offline by mistake, the first %.3g s and the last %.3g s after all had joined: %s",
		len(w.wrong), first.at.Sub(since).Seconds(), last.at.Sub(since).Seconds(), first.reason)
}

// fleetProcess is test/fleet in a process of its own.
type fleetProcess struct {
	cmd      *exec.Cmd
	nodes    int
	in       io.WriteCloser
	enrolled float64 // seconds
	done     chan fleetWord

	mu   sync.Mutex
	last fleetStats
}

type fleetWord struct {
	Did     string
	Nodes   []fleetNode
	Error   string
	Seconds float64
	Stats   *fleetStats
	Millis  []float64
}

type fleetNode struct{ UID, Name, Address string }

type fleetStats struct {
	Connected  int
	Assigned   int
	Reported   int
	Heartbeats int    `json:"heartbeats_per_s"`
	PerNode    int    `json:"kib_per_node"`
	Late       int    `json:"late_ms"`
	LastError  string `json:"last_error"`
}

// fleetPlan describes a fleet, and where it is started.
type fleetPlan struct {
	nodes  int
	args   []string
	inside func(func() error) error
}

// startFleet returns when all nodes have joined.
func (c *cloud) startFleet(ctx context.Context, plan fleetPlan, conn *grpc.ClientConn) (*fleetProcess, error) {
	token, err := v1.NewTokenServiceClient(conn).CreateToken(ctx, &v1.CreateTokenRequest{Role: "node", Uses: int32(plan.nodes)})
	if err != nil {
		return nil, err
	}
	path := filepath.Join(c.lab.dir, "fleet-token")
	if err := os.WriteFile(path, []byte(token.GetSecret()), 0o600); err != nil {
		return nil, err
	}
	program, err := c.lab.build(ctx, "fleet-program", "./test/fleet")
	if err != nil {
		return nil, err
	}
	f := &fleetProcess{nodes: plan.nodes, done: make(chan fleetWord, 4)}
	args := append([]string{"--json", "--nodes", fmt.Sprint(plan.nodes), "--join", c.address, "--token-file", path}, plan.args...)
	f.cmd = exec.CommandContext(ctx, program, args...)
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	f.cmd.Stderr = c.lab.out
	if f.in, err = f.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := plan.inside(f.cmd.Start); err != nil {
		return nil, err
	}
	go f.listen(out) // ends with the process
	joined, err := f.answer(ctx)
	if err != nil {
		return nil, errors.Join(err, f.end())
	}
	f.enrolled = joined.Seconds
	return f, nil
}

func (f *fleetProcess) listen(out io.Reader) {
	defer close(f.done)
	for decoder := json.NewDecoder(bufio.NewReader(out)); ; {
		var w fleetWord
		if err := decoder.Decode(&w); err != nil {
			return
		}
		if w.Stats != nil {
			f.mu.Lock()
			f.last = *w.Stats
			f.mu.Unlock()
			continue
		}
		f.done <- w
	}
}

func (f *fleetProcess) stats() fleetStats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// await waits until every node has a session and is ready.
func (f *fleetProcess) await(ctx context.Context, seen *nodeWatch) error {
	patient, cancel := context.WithTimeout(ctx, fleetJoin)
	defer cancel()
	err := seen.untilReady(patient, f.nodes)
	if err != nil {
		err = fmt.Errorf("wait until %d nodes are ready: %w; %d are connected, last error: %s", f.nodes, err, f.stats().Connected, f.stats().LastError)
	}
	return err
}

// order sends a command and returns the nodes that it affected.
func (f *fleetProcess) order(ctx context.Context, what string, nodes int) ([]fleetNode, error) {
	if _, err := fmt.Fprintf(f.in, "%s %d\n", what, nodes); err != nil {
		return nil, err
	}
	w, err := f.answer(ctx)
	if err == nil && len(w.Nodes) != nodes {
		err = fmt.Errorf("%s %d reached %d nodes", what, nodes, len(w.Nodes))
	}
	return w.Nodes, err
}

func (f *fleetProcess) answer(ctx context.Context) (fleetWord, error) {
	select {
	case w, ok := <-f.done:
		switch {
		case !ok:
			return w, errors.New("the fleet has ended")
		case w.Error != "":
			return w, errors.New(w.Error)
		}
		return w, nil
	case <-ctx.Done():
		return fleetWord{}, context.Cause(ctx)
	}
}

// end ends the fleet and waits for it.
func (f *fleetProcess) end() error {
	_, _ = fmt.Fprintln(f.in, "quit")
	for range f.done { // its remaining output
	}
	return f.cmd.Wait()
}

// stalls is how long this machine delayed a runnable process.
type stalls struct{ most atomic.Int64 }

func (s *stalls) longest() time.Duration { return time.Duration(s.most.Load()) }

// watchStalls measures that until ctx ends.
func watchStalls(ctx context.Context) *stalls {
	const nap = 20 * time.Millisecond
	s := &stalls{}
	go func() { // ends with ctx
		for ctx.Err() == nil {
			asleep := time.Now()
			time.Sleep(nap)
			s.most.Store(max(s.most.Load(), int64(time.Since(asleep)-nap)))
		}
	}()
	return s
}
