package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/api"
	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/phrase"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

type eventsFlags struct {
	about              string
	follow, everywhere bool
	limit              int
}

func (c *cli) eventsCommand() *cobra.Command {
	var f eventsFlags
	cmd := &cobra.Command{
		Use:     "events",
		Short:   "Show what happened and why",
		Example: "  cloudless events\n  cloudless events -f --for web\n  cloudless events --for node/box1 -o json",
		Args:    command.ExactArgs(),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			return command.Interruptible(ctx, c.events(ctx, cl, f))
		}),
	}
	cmd.Flags().StringVar(&f.about, "for", "", "only events of this workload and its replicas, or of an object as `KIND/NAME`")
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false, "keep showing new events")
	cmd.Flags().BoolVarP(&f.everywhere, "all-namespaces", "A", false, "show all namespaces")
	cmd.Flags().IntVar(&f.limit, "limit", 100, "`number` of past events to show, the newest; 0 for all")
	return cmd
}

// events shows past events and, with --follow, new ones: each exactly once, even if the connection breaks in between.
func (c *cli) events(ctx context.Context, cl *client.Client, f eventsFlags) error {
	source := &eventSource{cl: cl, namespace: c.Namespace, limit: f.limit, seen: newRecent(100_000)}
	if f.everywhere {
		source.namespace = ""
	}
	var err error
	if source.workload, source.kind, source.object, err = splitAbout(f.about); err != nil {
		return err
	}
	if f.follow {
		return source.follow(ctx, c.eventPrinter())
	}
	past, err := source.past(ctx)
	if err != nil {
		return err
	}
	if !c.ForPeople() {
		return command.PrintList(c.Env, past)
	}
	if len(past) == 0 {
		if other, err := source.ofOtherKind(ctx); err != nil {
			return err
		} else if other != "" {
			c.Note("no events about workload %s, but there are events of %s: %s", source.workload, other, spec.Hint(c.Namespace, "cloudless events --for "+other))
			return nil
		}
		c.Note("no events%s; those of long ago are not kept", aboutWhat(f.about))
		return nil
	}
	return c.eventPrinter()(past...)
}

func aboutWhat(about string) string {
	if about == "" {
		return ""
	}
	return " about " + about
}

// splitAbout splits the value of --for into a workload, or the kind and the name of another object.
func splitAbout(about string) (workload, kind, object string, err error) {
	word, name, found := strings.Cut(about, "/")
	if !found {
		return about, "", "", nil
	}
	known, isKind := api.KindOf(word)
	switch {
	case !isKind:
		return "", "", "", fmt.Errorf("there is no kind %q; the kinds are %s", word, strings.Join(kindNames(), ", "))
	case known.Name == "Workload":
		return name, "", "", nil
	}
	return "", known.Name, name, nil
}

// eventSource fetches events.
type eventSource struct {
	cl                                *client.Client
	namespace, workload, kind, object string
	limit                             int
	seen                              *recent
	connected                         bool // at least once
}

// past returns the newest events in order of time: up to the limit, or all since the last seen ones.
func (s *eventSource) past(ctx context.Context) ([]*cloudlessv1.Event, error) {
	limit := s.limit
	if !s.seen.empty() {
		limit = 0
	}
	var events []*cloudlessv1.Event
	_, err := client.AllPages(func(page *cloudlessv1.Page) ([]struct{}, string, error) {
		if limit > 0 {
			page.Size = int32(min(limit-len(events), 1000))
		}
		answer, err := s.cl.Events().ListEvents(ctx, &cloudlessv1.ListEventsRequest{
			Namespace: s.namespace, Workload: s.workload, ObjectKind: s.kind, Object: s.object, Page: page,
		})
		for _, event := range answer.GetItems() {
			if s.seen.has(event.GetMetadata().GetUid()) {
				return nil, "", err
			}
			events = append(events, event)
		}
		if limit > 0 && len(events) >= limit {
			return nil, "", err
		}
		return nil, answer.GetNext(), err
	})
	slices.Reverse(events)
	return events, err
}

// ofOtherKind names an object of another kind that has the name of the workload and has events, as KIND/NAME. It is empty
// if there is none.
func (s *eventSource) ofOtherKind(ctx context.Context) (string, error) {
	if s.workload == "" {
		return "", nil
	}
	answer, err := s.cl.Events().ListEvents(ctx, &cloudlessv1.ListEventsRequest{Namespace: s.namespace, Object: s.workload, Page: &cloudlessv1.Page{Size: 1}})
	if err != nil || len(answer.GetItems()) == 0 {
		return "", err
	}
	found := answer.GetItems()[0].GetSpec()
	return strings.ToLower(found.GetObjectKind()) + "/" + found.GetObjectName(), nil
}

// eventPause is the pause before a broken watch is opened again.
const eventPause = 300 * time.Millisecond

func (s *eventSource) follow(ctx context.Context, show func(...*cloudlessv1.Event) error) error {
	for {
		err := s.followOnce(ctx, show)
		if again := status.Code(err) == codes.Unavailable && s.connected; !again || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(eventPause):
		case <-ctx.Done():
			return nil
		}
	}
}

// followOnce shows the events since the last seen one, and then new ones until the watch ends.
func (s *eventSource) followOnce(ctx context.Context, show func(...*cloudlessv1.Event) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The watch is opened first, so that no event is missed between list and watch.
	stream, err := s.cl.Events().WatchEvents(ctx, &cloudlessv1.WatchEventsRequest{
		Namespace: s.namespace, Workload: s.workload, ObjectKind: s.kind, Object: s.object,
	}, grpc.WaitForReady(s.connected))
	if err != nil {
		return err
	}
	if _, err := stream.Header(); err != nil {
		return err
	}
	s.connected = true
	past, err := s.past(ctx)
	if err != nil {
		return err
	}
	if err := s.show(show, past...); err != nil {
		return err
	}
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.show(show, event); err != nil {
			return err
		}
	}
}

func (s *eventSource) show(show func(...*cloudlessv1.Event) error, events ...*cloudlessv1.Event) error {
	events = slices.DeleteFunc(events, func(e *cloudlessv1.Event) bool { return !s.seen.add(e.GetMetadata().GetUid()) })
	return show(events...)
}

// recent is a bounded set of uids that forgets the oldest first.
type recent struct {
	uids  map[string]bool
	order []string
	most  int
}

func newRecent(most int) *recent { return &recent{uids: map[string]bool{}, most: most} }

func (r *recent) has(uid string) bool { return r.uids[uid] }

func (r *recent) empty() bool { return len(r.uids) == 0 }

// add reports whether the uid is new.
func (r *recent) add(uid string) bool {
	if r.uids[uid] {
		return false
	}
	if len(r.order) == r.most {
		delete(r.uids, r.order[0])
		r.order = r.order[1:]
	}
	r.uids[uid] = true
	r.order = append(r.order, uid)
	return true
}

// eventPrinter shows events as they arrive, in one table.
func (c *cli) eventPrinter() func(...*cloudlessv1.Event) error {
	if !c.ForPeople() {
		return func(events ...*cloudlessv1.Event) error {
			for _, event := range events {
				if err := c.PrintItem(event); err != nil {
					return err
				}
			}
			return nil
		}
	}
	t := terminal.NewTable(c.Stdout, "TIME", "SEVERITY", "REASON", "ABOUT", "MESSAGE")
	return func(events ...*cloudlessv1.Event) error {
		for _, event := range events {
			s := event.GetSpec()
			t.Row(s.GetTime().AsTime().Local().Format(time.DateTime), s.GetSeverity(), s.GetReason(),
				s.GetObjectKind()+" "+s.GetObjectName(), phrase.Happened(s))
		}
		return t.Flush()
	}
}
