package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
)

// converge waits until the healed cluster is complete and everything that should run runs.
func (l *lab) converge(ctx context.Context) error {
	if err := l.until(ctx, l.whole); err != nil {
		return fmt.Errorf("a whole cluster: %w", err)
	}
	if err := l.until(ctx, func(ctx context.Context) error {
		_, err := l.admin.Workloads().ScaleWorkload(ctx, &v1.ScaleWorkloadRequest{Name: appName, Replicas: proto.Int32(appReplicas)})
		return err
	}); err != nil {
		return fmt.Errorf("scaling: %w", err)
	}
	if err := l.until(ctx, l.appRuns); err != nil {
		return fmt.Errorf("all replicas running: %w", err)
	}
	if err := l.until(ctx, l.idle); err != nil {
		return fmt.Errorf("all deployments ended: %w", err)
	}
	return nil
}

// loseForGood removes the leader without notice and for good. Clients and nodes that were
// connected to it must find another server by themselves: a change, a push and a pull
// succeed.
func (l *lab) loseForGood(ctx context.Context) error {
	leader, err := l.leader(ctx)
	if err != nil {
		return err
	}
	_ = l.admin.Close()
	if l.admin, err = l.dial(ctx, []string{apiAddress(leader)}); err != nil {
		return err
	}
	// It learns of the others, and has connections of both kinds.
	if _, err := l.push(ctx, "before"); err != nil {
		return err
	}
	if err := l.until(ctx, func(ctx context.Context) error { return l.healthyServers(ctx, len(l.servers)) }); err != nil {
		return err
	}
	what, _, err := isolated(l, leader, step{})
	if err != nil {
		return err
	}
	l.told.note("%s for good", what)
	var image string
	for _, one := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"a change", func(ctx context.Context) error {
			_, err := l.admin.Workloads().ScaleWorkload(ctx, &v1.ScaleWorkloadRequest{Name: appName, Replicas: proto.Int32(0)})
			return err
		}},
		{"a push", func(ctx context.Context) (err error) {
			image, err = l.push(ctx, "after")
			return err
		}},
		{"a new workload", func(ctx context.Context) error {
			if err := l.create(ctx, "late", image, 1); status.Code(err) != codes.AlreadyExists {
				return err
			}
			return nil
		}},
		{"a pull", func(ctx context.Context) error {
			late, err := l.admin.Workloads().GetWorkload(ctx, &v1.GetWorkloadRequest{Name: "late"})
			if err == nil && late.GetStatus().GetRunning() != 1 {
				err = fmt.Errorf("it is %v", late.GetStatus())
			}
			return err
		}},
	} {
		if err := l.until(ctx, one.do); err != nil {
			return fmt.Errorf("%s after the loss of %s: %w", one.what, leader.name, err)
		}
		l.told.note("%s after the loss of %s", one.what, leader.name)
	}
	return nil
}

// readAll ends the history with the final value of every register.
func (c *crowd) readAll(ctx context.Context) error {
	reader := &caller{crowd: c, number: len(c.lab.clients), api: c.lab.admin}
	for i := range registers {
		made := call{client: reader.number, verb: read, register: registerName(i)}
		if !reader.perform(&made, 0) {
			return fmt.Errorf("%s cannot be read in the end", made.register)
		}
		c.add(made)
	}
	return ctx.Err()
}

// acknowledgedWrites says which acknowledged creation is missing or which deletion was
// undone.
func (c *crowd) acknowledgedWrites(ctx context.Context) error {
	there := map[string]bool{}
	all, err := client.AllPages(func(page *v1.Page) ([]*v1.Workload, string, error) {
		answer, err := c.lab.admin.Workloads().ListWorkloads(ctx, &v1.ListWorkloadsRequest{Page: page})
		return answer.GetItems(), answer.GetNext(), err
	})
	if err != nil {
		return err
	}
	for _, w := range all {
		there[w.GetMetadata().GetName()] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.kept)) {
		if !there[name] {
			errs = append(errs, fmt.Errorf("the acknowledged creation of %s is lost", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.gone)) {
		if there[name] {
			errs = append(errs, fmt.Errorf("%s is still there after its acknowledged deletion", name))
		}
	}
	return errors.Join(errs...)
}

// crashes are the places where a process crashed.
func (l *lab) crashes() (found []string) {
	for _, m := range l.machines() {
		data, err := os.ReadFile(m.log)
		if err != nil {
			return append(found, err.Error())
		}
		for _, sign := range []string{"panic:", "fatal error:", "SIGSEGV"} {
			if i := strings.Index(string(data), sign); i >= 0 {
				found = append(found, fmt.Sprintf("%s crashed:\n%s", m.name, data[i:min(len(data), i+3000)]))
			}
		}
	}
	return found
}
