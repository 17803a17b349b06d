package cli

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
)

type eventsFlags struct {
	object             string
	follow, everywhere bool
	limit              int
}

func (c *cli) eventsCommand() *cobra.Command {
	var f eventsFlags
	cmd := &cobra.Command{
		Use:     "events",
		Short:   "Show what happened and why",
		Example: "  cloudless events\n  cloudless events --for web -f",
		Args:    names(),
		RunE: c.withClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			return interruptible(ctx, c.events(ctx, cl, f))
		}),
	}
	cmd.Flags().StringVar(&f.object, "for", "", "only about what has this `name`")
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false, "go on with new events")
	cmd.Flags().BoolVarP(&f.everywhere, "all-namespaces", "A", false, "of all namespaces")
	cmd.Flags().IntVar(&f.limit, "limit", 100, "the newest so `many` of the past; 0 for all")
	return cmd
}

func (c *cli) events(ctx context.Context, cl *client.Client, f eventsFlags) error {
	namespace := c.namespace
	if f.everywhere {
		namespace = ""
	}
	// The watch is opened first, so that nothing falls between the past and the new.
	var news <-chan eventOrError
	if f.follow {
		var err error
		if news, err = watchEvents(ctx, cl, &cloudlessv1.WatchEventsRequest{Namespace: namespace, Object: f.object}); err != nil {
			return err
		}
	}
	past, err := pastEvents(ctx, cl, &cloudlessv1.ListEventsRequest{Namespace: namespace, Object: f.object}, f.limit)
	if err != nil {
		return err
	}
	if !f.follow && !c.forPeople() {
		return printList(c, past)
	}
	print := c.eventPrinter()
	seen := map[string]bool{}
	for _, event := range past {
		seen[event.GetMetadata().GetUid()] = true
	}
	if err := print(past...); err != nil || !f.follow {
		return err
	}
	for next := range news {
		switch {
		case next.err != nil:
			return next.err
		case seen[next.event.GetMetadata().GetUid()]:
			continue
		}
		if err := print(next.event); err != nil {
			return err
		}
	}
	return nil
}

// pastEvents gives the newest events, the oldest of them first.
func pastEvents(ctx context.Context, cl *client.Client, request *cloudlessv1.ListEventsRequest, limit int) ([]*cloudlessv1.Event, error) {
	fetched := 0
	events, err := client.AllPages(func(page *cloudlessv1.Page) ([]*cloudlessv1.Event, string, error) {
		if limit > 0 {
			page.Size = int32(min(limit-fetched, 1000))
		}
		request.Page = page
		answer, err := cl.Events().ListEvents(ctx, request)
		fetched += len(answer.GetItems())
		if limit > 0 && fetched >= limit {
			return answer.GetItems(), "", err
		}
		return answer.GetItems(), answer.GetNext(), err
	})
	slices.Reverse(events)
	return events, err
}

type eventOrError struct {
	event *cloudlessv1.Event
	err   error
}

// watchEvents reads new events ahead of whoever shows them. It ends with ctx, which ends with the command.
func watchEvents(ctx context.Context, cl *client.Client, request *cloudlessv1.WatchEventsRequest) (<-chan eventOrError, error) {
	stream, err := cl.Events().WatchEvents(ctx, request)
	if err != nil {
		return nil, err
	}
	out := make(chan eventOrError, 64)
	go func() {
		defer close(out)
		for {
			event, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return
			}
			select {
			case out <- eventOrError{event, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return out, nil
}

// eventPrinter shows events as they come, in one table.
func (c *cli) eventPrinter() func(...*cloudlessv1.Event) error {
	if !c.forPeople() {
		return func(events ...*cloudlessv1.Event) error {
			for _, event := range events {
				if err := c.printItem(event); err != nil {
					return err
				}
			}
			return nil
		}
	}
	t := newTable(c.Stdout, "TIME", "SEVERITY", "REASON", "ABOUT", "MESSAGE")
	return func(events ...*cloudlessv1.Event) error {
		for _, event := range events {
			s := event.GetSpec()
			t.row(s.GetTime().AsTime().Local().Format(time.DateTime), s.GetSeverity(), s.GetReason(),
				s.GetObjectKind()+" "+s.GetObjectName(), s.GetMessage())
		}
		return t.flush()
	}
}
