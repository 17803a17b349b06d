package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/term"
	"google.golang.org/grpc"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/sleep"
)

// crowd is the size of the two-million challenge.
type crowd struct {
	nodes, workloads, replicas int
	// heartbeat is how often nodes report; the default if empty. On a shared machine a run takes long, and with the
	// default interval it would measure little but heartbeats.
	heartbeat string
}

// theCrowd is the challenge itself; smaller ones are for experiments.
var theCrowd = crowd{nodes: 6100, workloads: 1000, replicas: 2_000_000}

func (c *crowd) flags(flags *flag.FlagSet) {
	flags.IntVar(&c.nodes, "c2m-nodes", theCrowd.nodes, "how many simulated `nodes` c2m_seconds has")
	flags.IntVar(&c.workloads, "c2m-workloads", theCrowd.workloads, "over how many `workloads` its replicas are spread")
	flags.StringVar(&c.heartbeat, "c2m-heartbeat", theCrowd.heartbeat, "how often its nodes report, such as `10s`; as usual if empty")
	flags.IntVar(&c.replicas, "c2m-replicas", theCrowd.replicas, "how many `replicas` it places")
}

func (c *crowd) check() error {
	if c.nodes < 1 || c.workloads < 1 || c.replicas < c.workloads {
		return errors.New("the two-million challenge needs a node, a workload, and a replica for each workload")
	}
	return nil
}

// of is how many replicas the i-th workload has.
func (c *crowd) of(i int) int { return (i+1)*c.replicas/c.workloads - i*c.replicas/c.workloads }

// crowdMeasurements come from one run, which takes minutes and most of a machine, so they are measured only if named.
var crowdMeasurements = []measurement{
	{
		name: "c2m_seconds", unit: "s", measure: measureCrowd("seconds", (*crowdRun).time), target: atMost(180),
		what:  "2,000,000 replicas in 1,000 workloads with constraints on 6,100 simulated nodes: from the first workload that is created through the API of one server with fsync to the last replica that the API shows running",
		floor: "none",
	},
	{
		name: "c2m_rss_gb", unit: "GiB", measure: measureCrowd("rss_gb", (*crowdRun).memory), target: atMost(8),
		what:  "the most that the server had resident in that time",
		floor: "none",
	},
	{
		name: "c2m_snapshot_stall", unit: "ms", measure: measureCrowd("snapshot_stall", (*crowdRun).stall), target: under(100),
		what:  "the longest of the small writes that one client makes all the time, of those during a snapshot, by the clock",
		floor: "the longest of all others",
	},
}

// crowdRun is the result of one run.
type crowdRun struct {
	crowd
	began                time.Time
	took                 time.Duration
	rss                  int     // KiB, at most
	server, fleet, bench float64 // seconds of CPU
	writes               []smallWrite
	snapshots            []span
	history              []crowdMoment
	logBytes, savedBytes int64
	plot, late           string
}

// measureCrowd reports one part of a run's result. A run of another size than the challenge has other names.
func measureCrowd(part string, found func(*crowdRun) result) func(context.Context, *lab) (result, error) {
	return func(ctx context.Context, l *lab) (result, error) {
		if l.crowded == nil {
			r, err := l.gather(ctx, l.crowd)
			if err != nil {
				return result{}, err
			}
			l.crowded = r
		}
		r := found(l.crowded)
		r.notes = append([]string{l.crowded.about()}, r.notes...)
		if l.crowded.crowd != theCrowd {
			r.name = fmt.Sprintf("c2m_%d_on_%d_%s", l.crowded.replicas, l.crowded.nodes, part)
		}
		return r, nil
	}
}

// about says what was placed where.
func (c *crowd) about() string {
	text := fmt.Sprintf("%d replicas in %d workloads on %d simulated nodes", c.replicas, c.workloads, c.nodes)
	if c.heartbeat != "" {
		text += ", which report every " + c.heartbeat
	}
	return text
}

func (r *crowdRun) time() result {
	per := func(seconds float64) float64 { return seconds * 1e6 / float64(r.replicas) }
	return result{value: r.took.Seconds(), notes: []string{
		fmt.Sprintf("%.0f replicas a second", float64(r.replicas)/r.took.Seconds()),
		fmt.Sprintf("CPU time: server %.4g s (%.3g us for each replica), fleet %.4g s (%.3g us), this program %.3g s; %.3g cores in all",
			r.server, per(r.server), r.fleet, per(r.fleet), r.bench, (r.server+r.fleet+r.bench)/r.took.Seconds()),
		fmt.Sprintf("the log has %d MB, the snapshots have %d MB; drawn in %s", r.logBytes/1e6, r.savedBytes/1e6, r.plot),
		r.late,
	}}
}

func (r *crowdRun) memory() result {
	return result{value: float64(r.rss) / (1 << 20), notes: []string{fmt.Sprintf("%.4g KiB for each replica, with everything else", float64(r.rss)/float64(r.replicas))}}
}

func (r *crowdRun) stall() result {
	inside, outside := split(r.writes, r.snapshots)
	during, otherwise := timesOf(inside), timesOf(outside)
	if len(inside) == 0 {
		return result{absent: true, floor: otherwise.quantile(1), notes: []string{"no snapshot was taken while small writes were made", otherwise.spread("all writes in ms")}}
	}
	most := longest(inside)
	notes := []string{
		during.spread("writes during a snapshot in ms"), otherwise.spread("others in ms"),
		fmt.Sprintf("the middle one takes %.3g ms longer during a snapshot, of ten the longest but one %.3g ms, of a hundred %.3g ms",
			during.median()-otherwise.median(), during.quantile(0.9)-otherwise.quantile(0.9), during.quantile(0.99)-otherwise.quantile(0.99)),
		fmt.Sprintf("for %.3g ms of the longest, which count, this machine's host had given a core to others", milliseconds(most.stolen)),
	}
	for _, s := range r.snapshots {
		notes = append(notes, fmt.Sprintf("a snapshot took %.3g s", s.end.Sub(s.begin).Seconds()))
	}
	return result{value: during.quantile(1), floor: otherwise.quantile(1), notes: notes}
}

// gather creates a cluster of one server and the nodes, and lets it place the replicas.
func (l *lab) gather(ctx context.Context, size crowd) (_ *crowdRun, err error) {
	c, err := l.newServer(ctx, "c2m")
	if err != nil {
		return nil, err
	}
	defer c.close()
	if size.heartbeat != "" {
		if err := c.run(ctx, "cluster", "config", "set", "liveness.heartbeat="+size.heartbeat, "liveness.silence=60s"); err != nil {
			return nil, err
		}
	}
	image, err := c.pushed(ctx)
	if err != nil {
		return nil, err
	}
	callers, hangUp, err := c.connectMany(ctx, 3)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	var conns []*grpc.ClientConn
	for _, one := range callers {
		conns = append(conns, one.(plain).ClientConn)
	}
	f, err := c.startFleet(ctx, fleetPlan{nodes: size.nodes, args: crowdLabels, inside: func(start func() error) error { return start() }}, conns[0])
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.end()) }()
	l.say("%d nodes have joined in %.3g s", size.nodes, f.enrolled)
	if err := f.ready(ctx, conns[0]); err != nil {
		return nil, err
	}
	r := &crowdRun{crowd: size}
	if err := r.run(ctx, c, conns, image, f); err != nil {
		return nil, err
	}
	return r, r.draw()
}

// newServer starts a lone server. Its close leaves nothing behind.
func (l *lab) newServer(ctx context.Context, name string) (*cloud, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &cloud{lab: l, address: listener.Addr().String(), data: filepath.Join(l.dir, name), config: filepath.Join(l.dir, name+".yaml")}
	if err := listener.Close(); err != nil {
		return nil, err
	}
	if err := c.run(ctx, "server", "--detach", "--data-dir", c.data, "--api-addr", c.address); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// ready waits until all nodes are ready.
func (f *fleetProcess) ready(ctx context.Context, conn *grpc.ClientConn) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	seen, err := watchNodes(watching, v1.NewNodeServiceClient(conn))
	if err != nil {
		return err
	}
	return f.await(ctx, seen)
}

// run submits the workloads and follows them until every replica runs.
func (r *crowdRun) run(ctx context.Context, c *cloud, conns []*grpc.ClientConn, image string, f *fleetProcess) error {
	pid, err := c.pid()
	if err != nil {
		return err
	}
	used, err := cpuOf(pid, f.cmd.Process.Pid, os.Getpid())
	if err != nil {
		return err
	}
	r.began = time.Now()
	g, ctx := errgroup.WithContext(ctx)
	watching, stop := context.WithCancel(ctx)
	g.Go(func() error { return r.submit(ctx, conns[0], image) })
	g.Go(func() (err error) {
		r.writes, err = writeSteadily(watching, conns[2], image)
		return err
	})
	g.Go(func() (err error) {
		r.snapshots, err = watchSnapshots(watching, filepath.Join(c.data, "server", "raft", "snapshots"))
		return err
	})
	g.Go(func() error {
		defer stop()
		return r.follow(ctx, c.lab, conns[1], f)
	})
	if err := g.Wait(); err != nil {
		return err
	}
	after, err := cpuOf(pid, f.cmd.Process.Pid, os.Getpid())
	if err != nil {
		return err
	}
	r.server, r.fleet, r.bench = after[0]-used[0], after[1]-used[1], after[2]-used[2]
	if r.rss, err = procStatus(pid, "VmHWM"); err != nil {
		return err
	}
	r.late = fmt.Sprintf("the latest heartbeat of the fleet was %.2g s late", float64(f.stats().Late)/1000)
	if said := f.stats().LastError; said != "" {
		r.late += "; the last session that ended did so because of: " + said
	}
	r.logBytes = sizeOf(filepath.Join(c.data, "server", "raft", "log"))
	r.savedBytes = sizeOf(filepath.Join(c.data, "server", "raft", "snapshots"))
	return nil
}

// cpuOf is the CPU time of each process so far, in seconds.
func cpuOf(pids ...int) ([]float64, error) {
	all := make([]float64, len(pids))
	for i, pid := range pids {
		ticks, err := cpuTicks(pid)
		if err != nil {
			return nil, err
		}
		all[i] = float64(ticks) / ticksPerSecond
	}
	return all, nil
}

// sizeOf is the size of a folder's files.
func sizeOf(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(_ string, entry os.DirEntry, err error) error {
		if err != nil {
			return nil // it has just gone
		}
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			bytes += info.Size()
		}
		return nil
	})
	return bytes
}

// crowdLook is how often progress is checked, crowdLine how often it is printed if lines cannot be overwritten.
const (
	crowdLook = 2 * time.Second
	crowdLine = 5
)

// follow reports the progress of the cluster until it is done.
func (r *crowdRun) follow(ctx context.Context, l *lab, conn *grpc.ClientConn, f *fleetProcess) error {
	seen := &census{api: v1.NewWorkloadServiceClient(conn), size: r.crowd}
	live := false
	if out, ok := l.out.(*os.File); ok {
		live = term.IsTerminal(int(out.Fd()))
	}
	for n := 0; ; n++ {
		placed, running, err := seen.look(ctx)
		if err != nil {
			return err
		}
		now := crowdMoment{at: time.Since(r.began), placed: placed, told: f.stats().Reported, running: running}
		r.history = append(r.history, now)
		done := running == r.replicas
		line := now.line(r.replicas)
		switch {
		case live:
			fmt.Fprint(l.out, "\r\x1b[K"+line)
		case n%crowdLine == 0 || done:
			l.say("%s", line)
		}
		if done {
			if live {
				l.say("")
			}
			r.took = now.at
			return nil
		}
		pause := crowdLook
		if now.told >= r.replicas {
			pause /= 10
		}
		if err := sleep.For(ctx, pause); err != nil {
			return err
		}
	}
}

// crowdMoment is the progress at a moment: replicas that are placed, that nodes have reported as running, and that the
// API shows as running.
type crowdMoment struct {
	at                    time.Duration
	placed, told, running int
}

func (m crowdMoment) line(of int) string {
	const width = 30
	full := width * m.running / of
	return fmt.Sprintf("[%s%s] %4.0f s: %d of %d placed, %d acknowledged", strings.Repeat("#", full), strings.Repeat(".", width-full), m.at.Seconds(), m.placed, of, m.running)
}

// The size of the drawing and of its margins.
const (
	plotWidth, plotHeight = 800, 420
	plotLeft, plotBottom  = 80, 50
	plotTop, plotRight    = 40, 20
)

// curve is a line of the drawing.
type curve struct {
	name, colour string
	of           func(crowdMoment) int
}

var curves = []curve{
	{"placed", "#1f6feb", func(m crowdMoment) int { return m.placed }},
	{"acknowledged", "#2da44e", func(m crowdMoment) int { return m.running }},
}

// draw writes the drawing of the run into build.
func (r *crowdRun) draw() (err error) {
	r.plot = filepath.Join("build", "c2m.svg")
	file, err := os.Create(r.plot)
	if err != nil {
		return err
	}
	plotCrowd(file, r.history, r.began, r.snapshots, r.replicas)
	return file.Close()
}

// plotCrowd draws replicas over time. Snapshots are grey.
func plotCrowd(to io.Writer, history []crowdMoment, began time.Time, snapshots []span, of int) {
	end := 1.0
	if len(history) > 0 {
		end = max(end, history[len(history)-1].at.Seconds())
	}
	x := func(seconds float64) float64 { return plotLeft + seconds/end*(plotWidth-plotLeft-plotRight) }
	y := func(n int) float64 {
		return plotHeight - plotBottom - float64(n)/float64(of)*(plotHeight-plotBottom-plotTop)
	}
	fmt.Fprintf(to, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(to, `<rect width="%d" height="%d" fill="white"/>`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(to, `<text x="%d" y="22" font-size="15">%d replicas in %.0f s</text>`+"\n", plotLeft, of, end)
	for _, s := range snapshots {
		from, until := x(s.begin.Sub(began).Seconds()), x(s.end.Sub(began).Seconds())
		fmt.Fprintf(to, `<rect x="%.1f" y="%d" width="%.1f" height="%.1f" fill="#eee"/>`+"\n", from, plotTop, max(1, until-from), y(0)-plotTop)
	}
	for i := range 5 {
		n, seconds := of*i/4, end*float64(i)/4
		fmt.Fprintf(to, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/>`+"\n", plotLeft, plotWidth-plotRight, y(n), y(n))
		fmt.Fprintf(to, `<text x="%d" y="%.1f" text-anchor="end">%d</text>`+"\n", plotLeft-8, y(n)+4, n)
		fmt.Fprintf(to, `<text x="%.1f" y="%d" text-anchor="middle">%.0f s</text>`+"\n", x(seconds), plotHeight-plotBottom+20, seconds)
	}
	for i, c := range curves {
		points := make([]string, len(history))
		for j, m := range history {
			points[j] = fmt.Sprintf("%.1f,%.1f", x(m.at.Seconds()), y(c.of(m)))
		}
		fmt.Fprintf(to, `<polyline fill="none" stroke="%s" stroke-width="2" points="%s"/>`+"\n", c.colour, strings.Join(points, " "))
		fmt.Fprintf(to, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", plotLeft+12, plotTop+16+18*i, c.colour, c.name)
	}
	fmt.Fprintln(to, "</svg>")
}
