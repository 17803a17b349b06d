package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/test/chaos/consistency"
	s3 "github.com/cloudless/cloudless/test/s3/client"
)

const (
	objectNodes = 4
	// objectDisk is the size of a node's disk in MiB. It is kept in memory, as far as it is used.
	objectDisk    = 1536
	objectBucket  = "chaos"
	objectCopies  = 3
	objectWriters = 4
	// mendTimeout bounds one attempt to check or repair all disks.
	mendTimeout = time.Minute
	scrubRate   = "200Mi"
)

// objects is the object store with its clients, and all that they saw.
type objects struct {
	lab     *lab
	history consistency.History
	writers []*writer
	// midway is offered a channel by clients in the middle of an upload; they go on when it is closed.
	midway chan chan struct{}
	rot    rot

	mu sync.Mutex
	// known are the contents by their ETags, since before they were put.
	known map[string]consistency.Content
	// odd are answers that no fault explains.
	odd   []string
	spent int64
	// bereft are the uploads that lost a node in the middle and were completed nevertheless.
	lost, bereft int
	// damaged is how many chunks the nodes have found damaged.
	damaged int64
}

// newObjects makes a bucket and the clients.
func newObjects(ctx context.Context, l *lab, seed uint64) (*objects, error) {
	o := &objects{lab: l, midway: make(chan chan struct{}), known: map[string]consistency.Content{}}
	if err := l.until(ctx, o.whole); err != nil {
		return nil, err
	}
	buckets := client.Service(l.admin, v1.NewBucketServiceClient)
	if _, err := buckets.CreateBucket(ctx, &v1.CreateBucketRequest{Bucket: &v1.Bucket{
		Metadata: &v1.Metadata{Namespace: "default", Name: objectBucket}, Spec: &v1.BucketSpec{Replicas: objectCopies},
	}}); err != nil {
		return nil, err
	}
	key, err := buckets.CreateAccessKey(ctx, &v1.CreateAccessKeyRequest{Namespace: "default", Spec: &v1.AccessKeySpec{Role: "operator"}})
	if err != nil {
		return nil, err
	}
	for i := range objectWriters {
		o.writers = append(o.writers, newWriter(o, i+1, seed, key.GetAccessKey().GetMetadata().GetName(), key.GetSecret()))
	}
	return o, nil
}

func (o *objects) close() {
	for _, w := range o.writers {
		for _, server := range w.servers {
			server.Close()
		}
	}
}

func (o *objects) storage() v1.StorageServiceClient {
	return client.Service(o.lab.admin, v1.NewStorageServiceClient)
}

// whole says what the object store lacks, as it says itself.
func (o *objects) whole(ctx context.Context) error {
	status, err := o.storage().GetStorageStatus(ctx, &v1.GetStorageStatusRequest{})
	if err != nil {
		return err
	}
	online := 0
	o.damaged = 0
	for _, n := range status.GetNodes() {
		o.damaged += n.GetDamaged()
		if n.GetState() == "online" && n.GetFree() > 0 {
			online++
		}
	}
	if online != len(o.lab.nodes) || status.GetLeader() == "" || status.GetUnderReplicated() > 0 || status.GetUnreachable() > 0 || len(status.GetReasons()) > 0 {
		return fmt.Errorf("the object store is not complete: %v", status)
	}
	return nil
}

// mend has nodes check their chunks and everything repaired, and says why the object store is not complete then. All
// nodes check theirs if none is named.
func (o *objects) mend(ctx context.Context, nodes ...string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mendTimeout)
	defer cancel()
	scrub, err := o.storage().ScrubStorage(ctx, &v1.ScrubStorageRequest{Nodes: nodes, Rate: scrubRate})
	if err == nil {
		err = finished(scrub.Recv)
	}
	if err != nil {
		return fmt.Errorf("check chunks: %w", err)
	}
	repair, err := o.storage().RepairStorage(ctx, &v1.RepairStorageRequest{})
	if err == nil {
		err = finished(repair.Recv)
	}
	if err != nil {
		return fmt.Errorf("repair chunks: %w", err)
	}
	return o.whole(ctx)
}

// finished waits for the end of work that reports its progress.
func finished(next func() (*v1.StorageProgress, error)) error {
	for {
		if _, err := next(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// converge waits until the healed cluster is whole and no chunk lacks a copy or is damaged.
func (o *objects) converge(ctx context.Context) error {
	if err := o.lab.until(ctx, o.lab.whole); err != nil {
		return fmt.Errorf("a whole cluster: %w", err)
	}
	if err := o.lab.until(ctx, func(ctx context.Context) error { return o.mend(ctx) }); err != nil {
		return fmt.Errorf("all copies of all chunks: %w", err)
	}
	return nil
}

// work lets the clients work while something happens.
func (o *objects) work(ctx context.Context, what func(context.Context) error) error {
	during, end := context.WithCancel(ctx)
	var working sync.WaitGroup
	for _, w := range o.writers {
		working.Go(func() { w.work(during) })
	}
	err := what(ctx)
	end()
	working.Wait()
	return err
}

// resume lets each client succeed with each kind of call.
func (o *objects) resume(ctx context.Context) error {
	for _, w := range o.writers {
		for _, one := range chores {
			if err := o.lab.until(ctx, func(context.Context) error {
				if !one.do(w) {
					return errors.New("it failed")
				}
				return nil
			}); err != nil {
				return fmt.Errorf("%s by client %d: %w", one.name, w.number, err)
			}
		}
	}
	return nil
}

// readAll ends the history: every key that was ever changed is read completely, and every server lists all keys.
func (o *objects) readAll(ctx context.Context) error {
	reader := o.writers[0]
	keys := map[string]bool{}
	for _, c := range o.history.Calls() {
		if c.Key != "" {
			keys[c.Key] = true
		}
	}
	for key := range keys {
		if err := o.lab.until(ctx, func(context.Context) error { return reader.get(key) }); err != nil {
			return fmt.Errorf("%s cannot be read in the end: %w", key, err)
		}
	}
	for i, server := range reader.servers {
		if err := o.lab.until(ctx, func(context.Context) error {
			return reader.list("", func() *s3.Client { return server })
		}); err != nil {
			return fmt.Errorf("%s cannot list all objects in the end: %w", o.lab.servers[i].name, err)
		}
	}
	return nil
}

// complaints are what the clients must not have seen.
func (o *objects) complaints() []string {
	all := consistency.Check(o.history.Calls())
	if len(o.odd) > 0 {
		all = append(all, "answers that no fault explains:\n"+strings.Join(o.odd, "\n"))
	}
	return all
}

func (o *objects) String() string {
	counts := map[string]int{}
	kinds := []string{}
	for _, c := range o.history.Calls() {
		kind := string(c.Verb)
		if c.Outcome != consistency.Done {
			kind += " " + string(c.Outcome)
		}
		if counts[kind]++; counts[kind] == 1 {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	for i, kind := range kinds {
		kinds[i] = fmt.Sprintf("%d x %s", counts[kind], kind)
	}
	return fmt.Sprintf("%s; %d MB put; %d uploads lost a node midway, %d of them were completed; %d flipped bits, %d damaged chunks found", strings.Join(kinds, ", "), o.spent/1e6, o.lost, o.bereft, o.rot.flips, o.damaged)
}
