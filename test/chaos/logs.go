package chaos

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/logfile"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/test/sandbox"
)

const (
	printerName     = "printer"
	printerReplicas = 3
)

// audience are followers of the printer's output: none may miss a line that is in a log, and none may see one twice.
type audience struct {
	lab       *lab
	followers []*follower
	following sync.WaitGroup
	end       context.CancelFunc
}

// follow runs the printer and followers, one through the SDK and one through the command line.
func (l *lab) follow(ctx context.Context) (*audience, error) {
	image, err := l.pushProgram(ctx, l.admin, "printer", "1")
	if err != nil {
		return nil, err
	}
	if _, err := l.admin.Workloads().CreateWorkload(ctx, &v1.CreateWorkloadRequest{Workload: &v1.Workload{
		Metadata: &v1.Metadata{Name: printerName},
		Spec: &v1.WorkloadSpec{
			Image: image, Replicas: proto.Int32(printerReplicas),
			Placement: &v1.Placement{Spread: []*v1.Spread{{Key: "node", MaxSkew: 1}}}, // faults of any node should hit one
		},
	}}); err != nil {
		return nil, err
	}
	api, err := l.dial(ctx, l.addressesFrom(1))
	if err != nil {
		return nil, err
	}
	l.clients = append(l.clients, api)
	ctx, cancel := context.WithCancel(ctx)
	a := &audience{lab: l, end: cancel}
	a.add(ctx, "the SDK", func(ctx context.Context, f *follower) error { return f.followAPI(ctx, l, api) })
	a.add(ctx, "cloudless logs -f", func(ctx context.Context, f *follower) error { return f.followCommand(ctx, l) })
	return a, nil
}

func (a *audience) add(ctx context.Context, name string, follow func(context.Context, *follower) error) {
	f := &follower{name: name, next: map[series]int{}, partial: map[series]string{}, admitted: map[string]int{}, at: map[string]time.Time{}}
	a.followers = append(a.followers, f)
	a.following.Go(func() { f.ended = follow(ctx, f) })
}

// dismiss ends the printer. Its followers then end by themselves.
func (a *audience) dismiss(ctx context.Context) error {
	defer a.end()
	if err := a.lab.until(ctx, func(ctx context.Context) error {
		_, err := a.lab.admin.Workloads().DeleteWorkload(ctx, &v1.DeleteWorkloadRequest{Name: printerName})
		return err
	}); err != nil {
		return err
	}
	gone := make(chan struct{})
	go func() {
		a.following.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return nil
	case <-time.After(patience):
		return errors.New("a follower of a deleted workload's log has not ended")
	}
}

// complaints are what followers missed or saw twice, and what is in the logs and reached no follower.
func (a *audience) complaints() (all []string) {
	written, err := a.written()
	if err != nil {
		return []string{err.Error()}
	}
	for _, f := range a.followers {
		if f.ended != nil {
			all = append(all, fmt.Sprintf("%s ended with %v", f.name, f.ended))
		}
		all = append(all, f.wrong...)
		for s, count := range written {
			if f.next[s] < count {
				all = append(all, fmt.Sprintf("%s: of %v came %d lines, and %d are in the log", f.name, s, f.next[s], count))
			}
		}
		a.lab.told.note("%s: %d lines of %d processes, %d lines admittedly lost", f.name, f.lines, len(f.next)/2, f.lost)
	}
	if rotated, err := a.rotated(); err != nil || rotated == 0 {
		all = append(all, fmt.Sprintf("no log was rotated (%v)", err))
	}
	return all
}

// rotated is how many files were begun after the first one of a log.
func (a *audience) rotated() (count int, err error) {
	for _, m := range a.lab.nodes {
		later, globErr := filepath.Glob(filepath.Join(m.data, "logs", "*", "*[02-9].log"))
		count, err = count+len(later), errors.Join(err, globErr)
	}
	return count, err
}

// written is how many lines each process has in the logs of all nodes.
func (a *audience) written() (map[series]int, error) {
	written := map[series]int{}
	for _, m := range a.lab.nodes {
		logs, err := filepath.Glob(filepath.Join(m.data, "logs", "*"))
		if err != nil {
			return nil, err
		}
		for _, dir := range logs {
			partial := map[logfile.Stream]string{}
			err := logfile.Read(context.Background(), dir, logfile.Options{Tail: -1}, func(e logfile.Entry) error {
				line := partial[e.Stream] + e.Line
				partial[e.Stream] = line
				if e.Partial {
					return nil
				}
				partial[e.Stream] = ""
				if s, number, ok := parseLine(line); ok {
					written[s] = number + 1
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return written, nil
}

// series is the output of one process on one stream.
type series struct{ process, stream string }

// parseLine reads a line of the printer. An incomplete line does not count.
func parseLine(line string) (s series, number int, ok bool) {
	line, whole := strings.CutSuffix(line, "x.")
	if !whole {
		return series{}, 0, false
	}
	_, err := fmt.Sscanf(line, "%s %s %d ", &s.process, &s.stream, &number)
	return s, number, err == nil
}

// follower checks the lines that reach it.
type follower struct {
	name     string
	next     map[series]int
	partial  map[series]string // by replica and stream
	admitted map[string]int    // by replica: how many lines the writer reports as lost that are not missed yet
	at       map[string]time.Time
	wrong    []string
	ended    error
	lines    int
	jumps    int // how often a clock changed between two lines of a replica, if times are shown
	lost     int // lines that were never written, according to the log itself
}

// slack are lines that a writer may lose in part, beyond those that it counts, each time that it loses some.
const slack = 2

func (f *follower) hear(replica, line string) {
	var count int
	if _, err := fmt.Sscanf(line, "cloudless: %d lines (", &count); err == nil {
		f.admitted[replica] += count + slack
		return
	}
	s, number, ok := parseLine(line)
	if !ok {
		f.miss(replica, 1, fmt.Sprintf("half a line: %.100q", line))
		f.admitted[replica]++ // its number is missed, too
		return
	}
	f.lines++
	if number < f.next[s] {
		f.wrong = append(f.wrong, fmt.Sprintf("%s: line %d of %v of %s came again, after %d", f.name, number, s, replica, f.next[s]-1))
		return
	}
	if number > f.next[s] {
		f.miss(replica, number-f.next[s], fmt.Sprintf("line %d of %v of %s came after %d", number, s, replica, f.next[s]-1))
	}
	f.next[s] = number + 1
}

// miss is called for lines that did not come. The writer may have reported them as lost.
func (f *follower) miss(replica string, lines int, what string) {
	f.admitted[replica] -= lines
	f.lost += lines
	if f.admitted[replica] < 0 {
		f.wrong = append(f.wrong, f.name+": "+what)
		f.admitted[replica] = 0
	}
}

// followAPI resumes by position even if the SDK has given up.
func (f *follower) followAPI(ctx context.Context, l *lab, api *client.Client) error {
	request := &v1.LogsRequest{Workload: printerName, Follow: true, Marks: true}
	positions := map[string]string{}
	for {
		var failed error
		for entry, err := range api.LogEntries(ctx, request) {
			if failed = err; err != nil {
				break
			}
			if entry.GetPosition() != "" {
				positions[entry.GetReplica()] = entry.GetPosition()
			}
			f.take(l, entry)
		}
		if failed == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		l.told.note("%s: %v", f.name, failed)
		if sleep.For(ctx, time.Second) != nil {
			return ctx.Err()
		}
		request.Resume = &v1.LogPositions{Replicas: maps.Clone(positions)}
	}
}

func (f *follower) take(l *lab, entry *v1.LogEntry) {
	replica := entry.GetReplica()
	switch {
	case entry.GetMark():
	case strings.HasSuffix(entry.GetError(), "its log continues when the node is back"):
		l.told.note("%s: %s: %s", f.name, replica, entry.GetError())
	case entry.GetError() != "":
		f.wrong = append(f.wrong, fmt.Sprintf("%s: %s: %s", f.name, replica, entry.GetError()))
	default:
		f.tell(l, replica, entry.GetTime().AsTime())
		of := series{replica, entry.GetStream()}
		f.partial[of] += entry.GetText() + string(entry.GetRaw())
		if !entry.GetPartial() {
			f.hear(replica, f.partial[of])
			f.partial[of] = ""
		}
	}
}

// tell notes when a clock changed between two lines of a replica.
func (f *follower) tell(l *lab, replica string, at time.Time) {
	before, known := f.at[replica]
	f.at[replica] = at
	if by := at.Sub(before); known && (by < -time.Minute || by > time.Minute) {
		f.jumps++
		l.told.note("%s: between two lines of %s the clock jumps by %v", f.name, replica, by.Round(time.Second))
	}
}

// followCommand reads what a person would see.
func (f *follower) followCommand(ctx context.Context, l *lab) error {
	cmd := exec.CommandContext(ctx, sandbox.Program("cloudless"), "logs", "-f", printerName)
	cmd.Env = append(os.Environ(), "CLOUDLESS_CONFIG="+filepath.Join(l.dir, "config.yaml"))
	said, err := os.OpenFile(filepath.Join(l.dir, "follower.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer said.Close()
	cmd.Stderr = said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		replica, text, found := strings.Cut(strings.TrimSuffix(line, "\n"), " | ")
		if !found {
			f.wrong = append(f.wrong, fmt.Sprintf("%s: no replica is named in %.100q", f.name, line))
			continue
		}
		f.hear(strings.TrimSpace(replica), text)
	}
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 {
		notes, _ := os.ReadFile(said.Name())
		if !strings.Contains(string(notes), "error:") {
			return nil // it only says that a node was away when its replica ended
		}
		return fmt.Errorf("%w: %s", err, notes)
	}
	return err
}
