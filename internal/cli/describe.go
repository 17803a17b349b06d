package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/api"
	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/phrase"
	"github.com/cloudless/cloudless/internal/cli/secret"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

func (c *cli) describeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "describe NAME|KIND/NAME",
		Short: "Show everything about a workload or another object",
		Long: "Describe shows a workload's spec, newest deployment, replicas, last exits, failed probes, revisions and events,\n" +
			"and why replicas are pending.\n" +
			"With KIND/NAME it describes an object of another kind, such as a node, a replica or an image.",
		Example:    "  cloudless describe web\n  cloudless describe node/box1\n  cloudless describe replica/web-x7k2p\n  cloudless describe image/web:1 -o yaml",
		SuggestFor: []string{"inspect", "show"},
		Args:       command.ExactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, name, found := strings.Cut(args[0], "/")
			if !found {
				kind, name = "workload", args[0]
			}
			known, isKind := api.KindOf(kind)
			if name == "" || !isKind {
				return command.Usagef(cmd, "%q is not something to describe: write the name of a workload, or KIND/NAME such as node/box1; the kinds are %s",
					args[0], strings.Join(kindNames(), ", "))
			}
			return c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				return c.describerOf(known)(ctx, cl, name)
			})(cmd, args)
		},
		ValidArgsFunction: c.completeDescribed,
	}
}

type describer func(ctx context.Context, cl *client.Client, name string) error

// describerOf returns the function that describes objects of a kind.
func (c *cli) describerOf(kind api.Kind) describer {
	own := map[string]describer{
		"Workload": c.describeWorkload, "Node": c.describeNodeByName, "Replica": c.describeReplica, "Image": c.describeImage,
		"Namespace": c.describeNamespace,
	}[kind.Name]
	if own != nil {
		return own
	}
	return c.describeObject(kind)
}

// description is everything about a workload.
type description struct {
	workload *cloudlessv1.Workload
	// deployments has the newest one, if there is one.
	deployments []*cloudlessv1.Deployment
	revisions   []*cloudlessv1.Revision // newest first
	replicas    []*cloudlessv1.Replica
	events      []*cloudlessv1.Event // oldest first
}

// describedEvents is how many of the newest events are shown.
const describedEvents = 20

func (c *cli) describeWorkload(ctx context.Context, cl *client.Client, name string) error {
	var d description
	var err error
	if d.workload, err = cl.Workloads().GetWorkload(ctx, &cloudlessv1.GetWorkloadRequest{Namespace: c.Namespace, Name: name}); err != nil {
		return err
	}
	if d.revisions, err = listRevisions(ctx, cl, c.Namespace, name); err != nil {
		return err
	}
	if d.deployments, err = c.listDeployments(ctx, cl, name); err != nil {
		return err
	}
	d.deployments = d.deployments[:min(1, len(d.deployments))]
	selection := &cloudlessv1.Selection{Namespace: c.Namespace}
	if d.replicas, err = command.ListReplicas(ctx, cl, &cloudlessv1.ListReplicasRequest{Selection: selection, Workload: name, Ended: true}); err != nil {
		return err
	}
	// Earlier workloads may have had the same name.
	d.replicas = slices.DeleteFunc(d.replicas, func(r *cloudlessv1.Replica) bool {
		return r.GetSpec().GetWorkloadUid() != d.workload.GetMetadata().GetUid()
	})
	events := &eventSource{cl: cl, namespace: c.Namespace, workload: name, limit: describedEvents, seen: newRecent(0)}
	if d.events, err = events.past(ctx); err != nil {
		return err
	}
	if !c.ForPeople() {
		return c.printDescription(&d)
	}
	if err := c.showDescription(&d); err != nil {
		return err
	}
	return c.showRuns(ctx, cl, d.workload)
}

// printDescription writes the API's objects as one JSON or YAML object.
func (c *cli) printDescription(d *description) error {
	build := d.json
	if c.WantsYAML() {
		build = d.yaml
	}
	data, err := build()
	if err != nil {
		return err
	}
	_, err = terminal.Safe(c.Stdout).Write(data)
	return err
}

func (d *description) json() ([]byte, error) {
	workload, err := spec.EncodeJSON(d.workload)
	if err != nil {
		return nil, err
	}
	out := struct {
		Workload    json.RawMessage   `json:"workload"`
		Deployments []json.RawMessage `json:"deployments"`
		Revisions   []json.RawMessage `json:"revisions"`
		Replicas    []json.RawMessage `json:"replicas"`
		Events      []json.RawMessage `json:"events"`
	}{Workload: workload}
	if out.Deployments, err = command.RawMessages(d.deployments); err != nil {
		return nil, err
	}
	if out.Revisions, err = command.RawMessages(d.revisions); err != nil {
		return nil, err
	}
	if out.Replicas, err = command.RawMessages(d.replicas); err != nil {
		return nil, err
	}
	if out.Events, err = command.RawMessages(d.events); err != nil {
		return nil, err
	}
	return command.IndentedJSON(out)
}

func (d *description) yaml() ([]byte, error) {
	var out bytes.Buffer
	workload, err := spec.EncodeYAML(d.workload)
	if err != nil {
		return nil, err
	}
	out.WriteString("workload:\n")
	command.Indent(&out, "  ", workload)
	for _, list := range []func() ([]byte, error){
		func() ([]byte, error) { return command.KeyedYAML("deployments", d.deployments) },
		func() ([]byte, error) { return command.KeyedYAML("revisions", d.revisions) },
		func() ([]byte, error) { return command.KeyedYAML("replicas", d.replicas) },
		func() ([]byte, error) { return command.KeyedYAML("events", d.events) },
	} {
		data, err := list()
		if err != nil {
			return nil, err
		}
		out.Write(data)
	}
	return out.Bytes(), nil
}

func (c *cli) showDescription(d *description) error {
	var current *cloudlessv1.Revision // not the newest one after a rollback
	for _, r := range d.revisions {
		if r.GetSpec().GetNumber() == d.workload.GetStatus().GetRevision() {
			current = r
		}
	}
	if err := c.workloadFacts(d.workload, current).Flush(); err != nil {
		return err
	}
	if err := c.whyPending(d.workload.GetStatus()); err != nil {
		return err
	}
	now := time.Now()
	replicas := terminal.NewTable(c.Stdout, "NAME", "NODE", "PHASE", "REVISION", "RESTARTS", "AGE", "ADDRESSES", "REASON")
	exits := terminal.NewTable(c.Stdout, "REPLICA", "AGO", "CODE", "REASON")
	probes := terminal.NewTable(c.Stdout, "REPLICA", "AGO", "PROBE", "REASON", "OUTPUT")
	for _, r := range d.replicas {
		if status := r.GetStatus(); status.GetEndTime() == nil {
			replicas.Row(r.GetMetadata().GetName(), r.GetSpec().GetNode(), phrase.ReplicaPhase(r),
				strconv.FormatUint(r.GetSpec().GetRevision(), 10), strconv.Itoa(int(status.GetRestarts())),
				command.Age(r.GetMetadata().GetCreateTime(), now), strings.Join(status.GetAddresses(), ", "), cmp.Or(status.GetReason(), status.GetUnready()))
		}
		if f := r.GetStatus().GetFailedProbe(); f != nil {
			probes.Row(r.GetMetadata().GetName(), command.Age(f.GetTime(), now), f.GetProbe(), f.GetReason(), f.GetOutput())
		}
		if exit := r.GetStatus().GetLastExit(); exit != nil {
			exits.Row(r.GetMetadata().GetName(), command.Age(exit.GetTime(), now), strconv.Itoa(int(exit.GetCode())), exitReason(exit))
		}
	}
	for _, part := range []struct {
		heading string
		table   *terminal.Table
	}{
		{"Deployment", c.deploymentTable(d.deployments)},
		{"Replicas", replicas},
		{"Last exits", exits},
		{"Last failed probes", probes},
		{"Revisions", c.revisionTable(d.revisions, d.workload.GetStatus().GetRevision())},
		{"Events", c.eventTable(d.events, now)},
	} {
		if part.table.Empty() {
			continue
		}
		if err := c.Section(part.heading, part.table); err != nil {
			return err
		}
	}
	return nil
}

func exitReason(exit *cloudlessv1.Exit) string {
	switch {
	case spec.ExitReason(exit) != "":
		return spec.ExitReason(exit)
	case exit.GetCode() > 128 && exit.GetCode() < 160:
		return fmt.Sprintf("ended by signal %d", exit.GetCode()-128)
	}
	return ""
}

func (c *cli) eventTable(events []*cloudlessv1.Event, now time.Time) *terminal.Table {
	t := terminal.NewTable(c.Stdout, "AGO", "SEVERITY", "REASON", "ABOUT", "MESSAGE")
	for _, event := range events {
		s := event.GetSpec()
		t.Row(command.Age(s.GetTime(), now), s.GetSeverity(), s.GetReason(), s.GetObjectKind()+" "+s.GetObjectName(), phrase.Happened(s))
	}
	return t
}

// workloadFacts is the head of a description. The revision, if known, adds the image's digest.
func (c *cli) workloadFacts(w *cloudlessv1.Workload, revision *cloudlessv1.Revision) *terminal.Facts {
	status, s := w.GetStatus(), w.GetSpec()
	f := terminal.NewFacts(c.Stdout)
	f.Add("Name", w.GetMetadata().GetName())
	f.Add("Namespace", w.GetMetadata().GetNamespace())
	f.Add("Labels", terminal.Pairs(w.GetMetadata().GetLabels()))
	f.Add("Phase", status.GetPhase())
	f.Add("Reason", status.GetReason())
	kindFacts(f, w)
	f.Add("Revision", strconv.FormatUint(status.GetRevision(), 10))
	f.Add("Image", s.GetImage())
	if _, digest, pinned := strings.Cut(revision.GetSpec().GetImage(), "@"); pinned {
		f.Add("Digest", digest)
	}
	f.Add("Command", strings.Join(append(append([]string{}, s.GetCommand()...), s.GetArgs()...), " "))
	f.Add("Environment", terminal.Pairs(s.GetEnv()))
	f.Add("Secrets", secret.InWords(s.GetSecrets()))
	f.Add("User", s.GetUser())
	f.Add("Folder", s.GetWorkingDir())
	if s.GetReadOnlyRoot() {
		f.Add("Root", "read-only")
	}
	f.Add("Security", spec.SecurityInWords(s))
	f.Add("Sandbox", s.GetSandbox())
	f.Add("Network", s.GetNetwork())
	f.Add("Ports", ports(s.GetPorts()))
	if e := s.GetEgress(); e != nil {
		f.Add("Egress", spec.EgressInWords(e))
	}
	if i := s.GetIdentity(); i != nil {
		f.Add("Identity", "certificates and tokens for "+spec.FormatDuration(spec.IdentityTTL(i)))
	}
	f.Add("Limits", amounts(s.GetResources().GetLimits()))
	f.Add("Requests", amounts(s.GetResources().GetRequests()))
	schedulingFacts(f, s)
	f.Add("Restart", s.GetRestart().GetPolicy())
	f.Add("Age", command.Age(w.GetMetadata().GetCreateTime(), time.Now()))
	return f
}

// whyPending shows why each node refuses the workload's replicas.
func (c *cli) whyPending(status *cloudlessv1.WorkloadStatus) error {
	if len(status.GetUnplaced()) == 0 {
		return nil
	}
	t := terminal.NewTable(c.Stdout, "NODE", "REASON")
	t.ShowFullText()
	for _, node := range status.GetUnplaced() {
		t.Row(node.GetNode(), node.GetReason())
	}
	return c.Section("Why it is pending, node by node:", t)
}

func (c *cli) describeNodeByName(ctx context.Context, cl *client.Client, name string) error {
	node, err := cl.Nodes().GetNode(ctx, &cloudlessv1.GetNodeRequest{Name: name})
	if err != nil {
		return err
	}
	if !c.ForPeople() {
		return c.PrintObject(node)
	}
	replicas, err := command.ListReplicas(ctx, cl, &cloudlessv1.ListReplicasRequest{Node: name})
	if err != nil {
		return err
	}
	if err := c.describeNode(node, replicas); err != nil {
		return err
	}
	return c.eventsAbout(ctx, cl, "Node", name)
}

func (c *cli) eventsAbout(ctx context.Context, cl *client.Client, kind, object string) error {
	source := &eventSource{cl: cl, namespace: c.Namespace, kind: kind, object: object, limit: describedEvents, seen: newRecent(0)}
	events, err := source.past(ctx)
	if err != nil || len(events) == 0 {
		return err
	}
	return c.Section("Events", c.eventTable(events, time.Now()))
}

func (c *cli) describeReplica(ctx context.Context, cl *client.Client, name string) error {
	r, err := cl.Workloads().GetReplica(ctx, &cloudlessv1.GetReplicaRequest{Namespace: c.Namespace, Name: name})
	if err != nil {
		return err
	}
	if !c.ForPeople() {
		return c.PrintObject(r)
	}
	status := r.GetStatus()
	f := terminal.NewFacts(c.Stdout)
	f.Add("Name", name)
	f.Add("Namespace", r.GetMetadata().GetNamespace())
	f.Add("Workload", r.GetSpec().GetWorkload())
	f.Add("Revision", strconv.FormatUint(r.GetSpec().GetRevision(), 10))
	f.Add("Node", r.GetSpec().GetNode())
	f.Add("Phase", phrase.ReplicaPhase(r))
	f.Add("Reason", cmp.Or(status.GetReason(), status.GetUnready()))
	f.Add("Addresses", strings.Join(status.GetAddresses(), ", "))
	f.Add("Restarts", strconv.Itoa(int(status.GetRestarts())))
	if status.GetPid() != 0 {
		f.Add("Process", strconv.Itoa(int(status.GetPid())))
	}
	if exit := status.GetLastExit(); exit != nil {
		f.Add("Last exit", strings.TrimSpace(fmt.Sprintf("code %d, %s ago %s", exit.GetCode(), command.Age(exit.GetTime(), time.Now()), exitReason(exit))))
	}
	if probe := status.GetFailedProbe(); probe != nil {
		f.Add("Last failed probe", fmt.Sprintf("%s ago, %s", command.Age(probe.GetTime(), time.Now()), phrase.FailedProbe(probe)))
	}
	f.Add("Age", command.Age(r.GetMetadata().GetCreateTime(), time.Now()))
	if err := f.Flush(); err != nil {
		return err
	}
	return c.eventsAbout(ctx, cl, "Replica", name)
}

func (c *cli) describeImage(ctx context.Context, cl *client.Client, name string) error {
	image, err := cl.Images().GetImage(ctx, &cloudlessv1.GetImageRequest{Name: name})
	if err != nil {
		return err
	}
	if !c.ForPeople() {
		return c.PrintObject(image)
	}
	status := image.GetStatus()
	f := terminal.NewFacts(c.Stdout)
	f.Add("Name", image.GetMetadata().GetName())
	f.Add("Digest", status.GetDigest())
	f.Add("Size", terminal.Size(status.GetSize()))
	f.Add("Platforms", strings.Join(status.GetPlatforms(), ", "))
	f.Add("Phase", status.GetPhase())
	f.Add("Used by", strings.Join(status.GetUsedBy(), ", "))
	f.Add("Pushed", command.Age(status.GetPushTime(), time.Now()))
	return f.Flush()
}

func amounts(a *cloudlessv1.ResourceAmounts) string {
	var all []string
	for _, one := range []struct{ what, amount string }{
		{"CPU", a.GetCpu()},
		{"memory", shortQuantity(a.GetMemory())},
		{"disk", shortQuantity(a.GetDisk())},
		{"bandwidth", a.GetBandwidth()},
	} {
		if one.amount != "" {
			all = append(all, one.what+" "+one.amount)
		}
	}
	return strings.Join(all, ", ")
}

// publishedAt says where a published port answers.
func publishedAt(p *cloudlessv1.Port) string {
	text := fmt.Sprintf(" on the node's %d", p.GetPublish())
	if p.GetPublishAddress() != "" {
		text += " at " + p.GetPublishAddress()
	}
	if p.GetPublishMode() == spec.PublishHost {
		text += ", only where a replica runs"
	}
	return text
}

func ports(list []*cloudlessv1.Port) string {
	var all []string
	for _, p := range list {
		text := fmt.Sprint(p.GetPort())
		if p.GetProtocol() == "udp" {
			text += "/udp"
		}
		if p.GetName() != "" {
			text = p.GetName() + " " + text
		}
		if p.GetPublish() != 0 {
			text += publishedAt(p)
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}
