package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// withKey adds an idempotency key to a creating request that has none, in a shallow copy, so that a retry cannot create
// twice.
func withKey(req any) any {
	message, ok := req.(proto.Message)
	if !ok {
		return req
	}
	given := message.ProtoReflect()
	key := given.Descriptor().Fields().ByName("idempotency_key")
	if key == nil || key.Kind() != protoreflect.StringKind || given.Get(key).String() != "" {
		return req
	}
	keyed := given.New()
	given.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		keyed.Set(field, value)
		return true
	})
	keyed.SetUnknown(given.GetUnknown())
	keyed.Set(key, protoreflect.ValueOfString(rand.Text()))
	return keyed.Interface()
}

// rewatchPause is how long WaitWorkload pauses after a broken watch.
const rewatchPause = 300 * time.Millisecond

// WaitWorkload watches a workload until done returns true, and returns it as it was then. done is called with the
// current workload and after every change, with nil while it does not exist; an error of done ends the waiting. Short
// absences of the cluster are waited out.
func (c *Client) WaitWorkload(ctx context.Context, namespace, name string, done func(*cloudlessv1.Workload) (bool, error)) (*cloudlessv1.Workload, error) {
	for {
		workload, err := c.watchWorkload(ctx, namespace, name, done)
		if status.Code(err) != codes.Unavailable {
			return workload, err
		}
		select {
		case <-time.After(rewatchPause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (c *Client) watchWorkload(ctx context.Context, namespace, name string, done func(*cloudlessv1.Workload) (bool, error)) (*cloudlessv1.Workload, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Workloads().WatchWorkloads(ctx, &cloudlessv1.WatchWorkloadsRequest{
		Selection: &cloudlessv1.Selection{Namespace: namespace},
		Name:      name,
	}, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	var current *cloudlessv1.Workload
	synced := false
	for {
		change, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil, status.Errorf(codes.Unavailable, "the watch of workload %s ended", name)
		}
		if err != nil {
			return nil, err
		}
		switch change.GetChange() {
		case "synced":
			synced = true
		case "removed":
			current = nil
		default:
			current = change.GetWorkload()
		}
		if current == nil && !synced {
			continue
		}
		if ok, err := done(current); err != nil || ok {
			return current, err
		}
	}
}

// AllPages calls list for one page after the other and returns all items. list returns the items of one page and the
// token of the next one, empty for the last.
func AllPages[T any](list func(page *cloudlessv1.Page) (items []T, next string, err error)) ([]T, error) {
	var all []T
	page := &cloudlessv1.Page{Size: 1000}
	for {
		items, next, err := list(page)
		if err != nil {
			return nil, err
		}
		all = append(all, items...)
		if next == "" {
			return all, nil
		}
		if next == page.GetToken() {
			return nil, fmt.Errorf("the cluster gave the same page twice")
		}
		page = &cloudlessv1.Page{Size: page.GetSize(), Token: next}
	}
}
