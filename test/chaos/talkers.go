package chaos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/logfile"
)

const (
	talkersName = "talkers"
	talkersPort = 8080
	// talkersSettle is how many reports a new process may need before its calls succeed: it may have come before the
	// others.
	talkersSettle = 10
	// talkersReport is the time that a report is about.
	talkersReport = time.Second
)

// talk runs a replica on every node that calls the service of all of them by name, wherever the endpoints are.
func (l *lab) talk(ctx context.Context) error {
	image, err := l.pushProgram(ctx, l.admin, "talker", "1")
	if err != nil {
		return err
	}
	if _, err := client.Service(l.admin, v1.NewServiceServiceClient).CreateService(ctx, &v1.CreateServiceRequest{Service: &v1.Service{
		Metadata: &v1.Metadata{Name: talkersName},
		Spec:     &v1.ServiceSpec{Ports: []*v1.ServicePort{{Port: talkersPort}}, Balancer: &v1.Balancer{Locality: "none"}},
	}}); err != nil {
		return err
	}
	if _, err := l.admin.Workloads().CreateWorkload(ctx, &v1.CreateWorkloadRequest{Workload: &v1.Workload{
		Metadata: &v1.Metadata{Name: talkersName},
		Spec: &v1.WorkloadSpec{
			Kind: "daemon", Image: image, Args: []string{fmt.Sprintf("%s:%d", talkersName, talkersPort)}, Ports: []*v1.Port{{Port: talkersPort}},
		},
	}}); err != nil {
		return err
	}
	return l.until(ctx, func(context.Context) error { return l.allTalk(0) })
}

// talkReport is what a talker says of one second.
type talkReport struct {
	at         time.Duration // since the beginning of the run
	ok, failed int
	names      []string
	failure    string
	process    string
}

// talkReports are those of every process, by node and in order.
func (l *lab) talkReports() (map[string][]talkReport, error) {
	all := map[string][]talkReport{}
	for _, m := range l.nodes {
		logs, err := filepath.Glob(filepath.Join(m.data, "logs", "*"))
		if err != nil {
			return nil, err
		}
		for _, dir := range logs {
			err := logfile.Read(context.Background(), dir, logfile.Options{Tail: -1}, func(e logfile.Entry) error {
				if r, ok := l.parseTalk(e.Line); ok {
					all[m.name] = append(all[m.name], r)
				}
				return nil
			})
			if err != nil && !os.IsNotExist(err) {
				return nil, err
			}
		}
	}
	return all, nil
}

func (l *lab) parseTalk(line string) (r talkReport, ok bool) {
	var millis int64
	var names string
	if _, err := fmt.Sscanf(line, "%d %d %d %s %q %s", &millis, &r.ok, &r.failed, &names, &r.failure, &r.process); err != nil {
		return r, false // another program's
	}
	r.at = time.UnixMilli(millis).Sub(l.told.began.Round(0))
	if names = strings.Trim(names, "[]"); names != "" {
		r.names = strings.Split(names, ",")
	}
	return r, true
}

// allTalk says which node has not reached every other one by name since a moment.
func (l *lab) allTalk(since time.Duration) error {
	reports, err := l.talkReports()
	if err != nil {
		return err
	}
	for _, m := range l.nodes {
		heard := map[string]bool{}
		for _, r := range reports[m.name] {
			if r.at > since {
				for _, name := range r.names {
					heard[name] = true
				}
			}
		}
		if len(heard) < len(l.nodes) {
			return fmt.Errorf("the talker of %s has heard only %d of %d others: %v", m.name, len(heard), len(l.nodes), last(reports[m.name]))
		}
	}
	return nil
}

func last(reports []talkReport) any {
	if len(reports) == 0 {
		return "it has said nothing"
	}
	return reports[len(reports)-1]
}

// talkComplaints are failed calls that no fault explains. Nothing that happens to servers or agents explains one: only
// the loss of a machine does, and on a node that was stranded for long that others have moved meanwhile.
func (l *lab) talkComplaints() (all []string) {
	reports, err := l.talkReports()
	if err != nil {
		return []string{err.Error()}
	}
	lost, stranded := losses(l.told.faults), strandings(l.told.faults)
	for node, list := range reports {
		calls, excused := 0, 0
		worked := map[string]int{}
		explained := slices.Concat(lost, of(node, stranded))
		for _, r := range list {
			calls += r.ok
			if r.ok > 0 {
				worked[r.process]++
			}
			switch {
			case r.failed == 0 || worked[r.process] <= talkersSettle:
			case during(explained, r.at-talkersReport, r.at):
				excused += r.failed
			default:
				all = append(all, fmt.Sprintf("at %.3fs, %d calls of the talker on %s failed beside %d others: %s", r.at.Seconds(), r.failed, node, r.ok, r.failure))
			}
		}
		l.told.note("the talker on %s had %d calls answered, and %d failed that faults explain", node, calls, excused)
	}
	return all
}
