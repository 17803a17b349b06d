package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	crowdName = "load-"
	// crowdClients submit workloads at the same time.
	crowdClients = 8
)

// crowdLabels are those of the nodes.
var crowdLabels = []string{"--label", "zone=a,b,c,d,e", "--label", "disk=ssd,hdd,nvme", "--label", "cores=8,16,32,64"}

// crowdWorkload is the i-th one. A fifth of them has each kind of constraint.
func crowdWorkload(i, replicas int, image string) *v1.Workload {
	w := workload(fmt.Sprintf("%s%05d", crowdName, i), image, int32(replicas))
	w.Spec.Resources = &v1.Resources{Requests: &v1.ResourceAmounts{Cpu: "30m", Memory: "64Mi"}}
	w.Spec.Placement = &v1.Placement{}
	p := w.Spec.Placement
	switch i % 5 {
	case 0:
		p.Require = []*v1.LabelRule{{Key: "disk", Operator: "in", Values: []string{"ssd", "nvme"}}, {Key: "cores", Operator: "gt", Values: []string{"8"}}}
	case 1:
		p.Spread = []*v1.Spread{{Key: "zone", MaxSkew: 1}}
	case 2:
		p.Prefer = []*v1.LabelPreference{{Rule: &v1.LabelRule{Key: "disk", Operator: "in", Values: []string{"nvme"}}, Weight: 10}}
	case 3:
		p.Zones = []string{"a", "c", "e"}
	case 4:
		p.Affinity = []*v1.Affinity{{Workload: fmt.Sprintf("%s%05d", crowdName, i-1), Key: "zone", Weight: 10}}
	}
	return w
}

// submit creates all workloads through the API, roughly in order.
func (r *crowdRun) submit(ctx context.Context, conn *grpc.ClientConn, image string) error {
	api := v1.NewWorkloadServiceClient(conn)
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range crowdClients {
		g.Go(func() error {
			for i := int(next.Add(1)) - 1; i < r.workloads; i = int(next.Add(1)) - 1 {
				if _, err := api.CreateWorkload(ctx, &v1.CreateWorkloadRequest{Workload: crowdWorkload(i, r.of(i), image)}); err != nil {
					return fmt.Errorf("create workload %d: %w", i, err)
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// census counts replicas through the API. Counting millions each time would dominate the measurement: workloads finish
// roughly in the order of their names, so it reads only those where something happens.
type census struct {
	api   v1.WorkloadServiceClient
	size  crowd
	pages []censusPage
}

type censusPage struct {
	token           string // before it
	placed, running int
	wanted          int
}

const (
	censusSize  = 20 // workloads on a page
	censusPages = 2  // unfinished ones that are read at a time
)

// look returns how many replicas are placed and how many run.
func (c *census) look(ctx context.Context) (placed, running int, err error) {
	if len(c.pages) == 0 {
		c.pages = []censusPage{{}}
	}
	unfinished, unplaced := 0, 0
	for i := 0; i < len(c.pages); i++ {
		known := c.pages[i]
		settled := known.wanted > 0 && (known.running == known.wanted || known.placed == known.wanted && unfinished >= censusPages)
		if last := i == len(c.pages)-1; settled && !last || unplaced >= censusPages {
			continue
		}
		next, err := c.read(ctx, i)
		if err != nil {
			return 0, 0, err
		}
		if c.pages[i].running < c.pages[i].wanted {
			unfinished++
		}
		if c.pages[i].placed < c.pages[i].wanted {
			unplaced++
		}
		if next != "" && i == len(c.pages)-1 {
			c.pages = append(c.pages, censusPage{token: next})
		}
	}
	for _, page := range c.pages {
		placed, running = placed+page.placed, running+page.running
	}
	return placed, running, nil
}

// read counts one page again.
func (c *census) read(ctx context.Context, i int) (next string, err error) {
	answer, err := c.api.ListWorkloads(ctx, &v1.ListWorkloadsRequest{Page: &v1.Page{Size: censusSize, Token: c.pages[i].token}})
	if err != nil {
		return "", fmt.Errorf("list workloads: %w", err)
	}
	page := censusPage{token: c.pages[i].token}
	for _, w := range answer.GetItems() {
		if !strings.HasPrefix(w.GetMetadata().GetName(), crowdName) {
			continue
		}
		st := w.GetStatus()
		page.wanted += int(st.GetDesired())
		page.placed += int(st.GetRunning() + st.GetPending())
		page.running += int(st.GetRunning())
	}
	c.pages[i] = page
	return answer.GetNext(), nil
}

// smallWrite is when a small change was requested and acknowledged, and how long a core was stolen from this machine
// meanwhile.
type smallWrite struct {
	span
	stolen time.Duration
}

// took is its duration on the clock.
func (w smallWrite) took() time.Duration { return w.end.Sub(w.begin) }

type span struct{ begin, end time.Time }

func (s span) overlaps(o span) bool { return s.begin.Before(o.end) && o.begin.Before(s.end) }

// smallPause is the pause between two small writes.
const smallPause = 25 * time.Millisecond

// writeSteadily changes a label of one workload repeatedly, until ctx ends.
func writeSteadily(ctx context.Context, conn *grpc.ClientConn, image string) ([]smallWrite, error) {
	api := v1.NewWorkloadServiceClient(conn)
	w, err := api.CreateWorkload(ctx, &v1.CreateWorkloadRequest{Workload: workload("steady", image, 0)})
	if err != nil {
		return nil, err
	}
	var writes []smallWrite
	for {
		next := proto.CloneOf(w)
		next.Status = nil
		next.Metadata.Labels["version"] = strconv.FormatUint(next.GetMetadata().GetVersion(), 10)
		before, err := stolenTime()
		if err != nil {
			return nil, err
		}
		began := time.Now()
		w, err = api.UpdateWorkload(ctx, &v1.UpdateWorkloadRequest{Workload: next})
		switch {
		case ctx.Err() != nil:
			return writes, nil
		case err != nil:
			return nil, fmt.Errorf("write while replicas are placed: %w", err)
		}
		ended := time.Now()
		after, err := stolenTime()
		if err != nil {
			return nil, err
		}
		writes = append(writes, smallWrite{span{began, ended}, after.since(before)})
		if sleep.For(ctx, smallPause) != nil {
			return writes, nil
		}
	}
}

// snapshotLook is the polling interval for snapshots.
const snapshotLook = 10 * time.Millisecond

// watchSnapshots records when snapshots are written into a folder, until ctx ends: while one is, its name says so.
func watchSnapshots(ctx context.Context, dir string) ([]span, error) {
	var all []span
	writing := false
	for {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		is := false
		for _, entry := range entries {
			is = is || strings.HasSuffix(entry.Name(), ".tmp")
		}
		now := time.Now()
		switch {
		case is && !writing:
			all = append(all, span{now, now})
		case is || writing:
			all[len(all)-1].end = now
		}
		writing = is
		if sleep.For(ctx, snapshotLook) != nil {
			return all, nil
		}
	}
}

// split divides writes into those during one of the spans and all others.
func split(writes []smallWrite, spans []span) (during, otherwise []smallWrite) {
	for _, w := range writes {
		if slices.ContainsFunc(spans, w.overlaps) {
			during = append(during, w)
		} else {
			otherwise = append(otherwise, w)
		}
	}
	return during, otherwise
}

// timesOf are the durations of writes, in milliseconds.
func timesOf(writes []smallWrite) (all sample) {
	for _, w := range writes {
		all = append(all, milliseconds(w.took()))
	}
	return all
}

// longest is the write that took longest.
func longest(writes []smallWrite) (most smallWrite) {
	for _, w := range writes {
		if w.took() >= most.took() {
			most = w
		}
	}
	return most
}

// stolen is for how long the hypervisor has given each core of this machine to others since boot, although there was
// something to do on it, in steps of 10 ms. On a physical machine it is always 0.
type stolen []time.Duration

func stolenTime() (stolen, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil, err
	}
	return parseStolen(string(stat))
}

func parseStolen(stat string) (stolen, error) {
	var all stolen
	for line := range strings.Lines(stat) {
		fields := strings.Fields(line)
		if len(fields) < 9 || !strings.HasPrefix(fields[0], "cpu") || fields[0] == "cpu" { // all together
			continue
		}
		ticks, err := strconv.ParseInt(fields[8], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("/proc/stat: %w", err)
		}
		all = append(all, time.Duration(ticks)*time.Second/ticksPerSecond)
	}
	if len(all) == 0 {
		return nil, errors.New("/proc/stat does not say what was stolen")
	}
	return all, nil
}

// since is for how long a core was stolen since before, the longest of all cores.
func (s stolen) since(before stolen) (most time.Duration) {
	for i := range min(len(s), len(before)) {
		most = max(most, s[i]-before[i])
	}
	return most
}
