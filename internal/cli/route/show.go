package route

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// Get is the command cloudless route get.
func Get(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show one route: its nodes, requests, errors and latency",
		Long: "Get shows where a route leads to, which nodes answer for it and why others do not, its certificate, and the traffic of\n" +
			"the last minute, also for each service and revision.",
		Example: "  cloudless route get shop-example-org\n  cloudless route get shop-example-org -o json",
		Args:    command.ExactArgs("NAME"),
		RunE: e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			r, err := client.Service(cl, v1.NewRouteServiceClient).GetRoute(ctx, &v1.GetRouteRequest{Namespace: e.Namespace, Name: args[0]})
			if err != nil {
				return err
			}
			if !e.ForPeople() {
				return e.PrintObject(r)
			}
			return show(e, r)
		}),
	}
}

func show(e *command.Env, r *v1.Route) error {
	s, st := r.GetSpec(), r.GetStatus()
	f := terminal.NewFacts(e.Stdout)
	f.Add("Name", r.GetMetadata().GetName())
	f.Add("URL", st.GetUrl())
	f.Add("To", Backends(r))
	f.Add("Ready", spec.Count(int(st.GetReady()), "endpoint"))
	tls := spec.RouteTLS(s)
	if st.GetCertificate() != "" {
		tls += ", certificate " + st.GetCertificate()
	}
	f.Add("TLS", tls)
	f.Add("Plain HTTP", s.GetHttp().GetPlain())
	f.Add("Allow", strings.Join(s.GetAllow(), ", "))
	var users []string
	for _, u := range s.GetHttp().GetUsers() {
		users = append(users, u.GetName())
	}
	f.Add("Users", strings.Join(users, ", "))
	f.Add("Labels", terminal.Pairs(r.GetMetadata().GetLabels()))
	f.Add("Age", command.Age(r.GetMetadata().GetCreateTime(), time.Now()))
	if t := st.GetTraffic(); t != nil {
		f.Add(requestsWord(s), fmt.Sprintf("%s/s, %s failed, %d open", Rate(t.GetRequests()), percent(t.GetErrorRate()), t.GetOpen()))
		f.Add("Latency", latency(t))
		f.Add("Traffic", fmt.Sprintf("%s/s in, %s/s out", spec.HumanBytes(int64(t.GetReceived())), spec.HumanBytes(int64(t.GetSent()))))
	}
	f.Add("Reason", st.GetReason())
	if err := f.Flush(); err != nil {
		return err
	}
	if len(st.GetNodes()) > 0 {
		t := terminal.NewTable(e.Stdout, "NODE", "ADDRESSES", "PROBLEM")
		for _, n := range st.GetNodes() {
			t.Row(n.GetNode(), strings.Join(n.GetAddresses(), ", "), n.GetProblem())
		}
		if err := e.Section("Nodes", t); err != nil {
			return err
		}
	}
	if len(st.GetTraffic().GetBackends()) == 0 {
		return nil
	}
	t := terminal.NewTable(e.Stdout, "SERVICE", "REVISION", "REQUESTS/S", "FAILED", "P99")
	for _, b := range st.GetTraffic().GetBackends() {
		revision := ""
		if b.GetRevision() != 0 {
			revision = strconv.FormatUint(b.GetRevision(), 10)
		}
		t.Row(b.GetService(), revision, Rate(b.GetRequests()), percent(b.GetErrorRate()), milliseconds(b.GetP99()))
	}
	return e.Section("Traffic", t)
}

func requestsWord(s *v1.RouteSpec) string {
	switch {
	case s.GetTcp() != 0:
		return "Connections"
	case s.GetUdp() != 0:
		return "Flows"
	}
	return "Requests"
}

func latency(t *v1.RouteTraffic) string {
	if t.GetP50() == 0 && t.GetP99() == 0 {
		return ""
	}
	return fmt.Sprintf("p50 %s, p99 %s", milliseconds(t.GetP50()), milliseconds(t.GetP99()))
}

func milliseconds(ms float64) string {
	switch {
	case ms == 0:
		return ""
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.0f ms", ms)
}

// Rate is a number of requests a second for people.
func Rate(n float64) string {
	if n != 0 && n < 10 {
		return fmt.Sprintf("%.1f", n)
	}
	return fmt.Sprintf("%.0f", n)
}

func percent(share float64) string {
	if share != 0 && share < 0.1 {
		return fmt.Sprintf("%.2f %%", share*100)
	}
	return fmt.Sprintf("%.0f %%", share*100)
}

// Backends are what a route leads to in one line, such as "api:8080 90 %, api-next:8080 10 %".
func Backends(r *v1.Route) string {
	all, sum := r.GetSpec().GetBackends(), int32(0)
	for _, b := range all {
		sum += b.GetWeight()
	}
	var texts []string
	for _, b := range all {
		text := spec.BackendTitle(b)
		if len(all) > 1 && sum > 0 {
			text += fmt.Sprintf(" %.3g %%", float64(b.GetWeight())*100/float64(sum))
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

// Answering says how many of the nodes of a route answer for it, such as "2/3".
func Answering(r *v1.Route) string {
	answering := 0
	for _, n := range r.GetStatus().GetNodes() {
		if n.GetProblem() == "" {
			answering++
		}
	}
	return fmt.Sprintf("%d/%d", answering, len(r.GetStatus().GetNodes()))
}
