package wait

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/spec"
)

// routePause is how long ForRoute waits before it asks again. Which node answers is only in the memory of the leader, so that
// no watch reports it.
const routePause = 300 * time.Millisecond

// ForRoute waits until a node answers for a route and its certificate is there, and returns the route as it is then.
func (w Flags) ForRoute(ctx context.Context, e *command.Env, cl *client.Client, asked *cloudlessv1.Route) (*cloudlessv1.Route, error) {
	interrupted := ctx
	ctx, cancel := limit(ctx, w.timeout)
	defer cancel()
	line := terminal.NewProgressLine(e.Stderr)
	defer line.Clear()
	m := asked.GetMetadata()
	see := spec.Hint(m.GetNamespace(), "cloudless route get "+m.GetName())
	missing := "nothing is known of it yet"
	for {
		now, awaits, err := askRoute(ctx, cl, m)
		if err == nil && awaits == "" {
			return now, nil
		}
		if err == nil {
			missing = awaits
			line.Show(fmt.Sprintf("route %s: %s", m.GetName(), missing))
			err = sleep.For(ctx, routePause)
		}
		if err == nil {
			continue
		}
		line.Clear()
		switch {
		case interrupted.Err() != nil:
			e.Note("Stopped waiting. Route %s stays: %s. See: %s", m.GetName(), missing, see)
			return nil, command.Exit(command.ExitInterrupted, nil)
		case errors.Is(context.Cause(ctx), errWaitedEnough):
			return nil, fmt.Errorf("route %s stays, but after %s %s; see: %s", m.GetName(), w.timeout, missing, see)
		}
		return nil, err
	}
}

// askRoute returns a route and what it still waits for; empty if nothing.
func askRoute(ctx context.Context, cl *client.Client, m *cloudlessv1.Metadata) (now *cloudlessv1.Route, awaits string, err error) {
	now, err = client.Service(cl, cloudlessv1.NewRouteServiceClient).GetRoute(ctx, &cloudlessv1.GetRouteRequest{Namespace: m.GetNamespace(), Name: m.GetName()})
	if err != nil {
		return nil, "", err
	}
	answers := func(n *cloudlessv1.RouteNode) bool { return n.GetProblem() == "" }
	if nodes := now.GetStatus().GetNodes(); !slices.ContainsFunc(nodes, answers) {
		if len(nodes) == 0 {
			return now, "no node that should answer for it is online", nil
		}
		return now, fmt.Sprintf("no node answers yet; node %s %s", nodes[0].GetNode(), nodes[0].GetProblem()), nil
	}
	name := now.GetStatus().GetCertificate()
	if name == "" {
		return now, "", nil
	}
	c, err := client.Service(cl, cloudlessv1.NewCertificateServiceClient).GetCertificate(ctx, &cloudlessv1.GetCertificateRequest{Namespace: m.GetNamespace(), Name: name})
	switch problem := c.GetStatus().GetProblem(); {
	case status.Code(err) == codes.NotFound:
		return now, "its certificate is being requested", nil
	case err != nil:
		return nil, "", err
	case c.GetStatus().GetState() == "ready", c.GetStatus().GetFingerprint() != "" && c.GetStatus().GetState() != "expired":
		return now, "", nil
	case problem != "":
		return now, "it has no certificate yet: " + problem, nil
	}
	return now, "its certificate is being requested", nil
}
