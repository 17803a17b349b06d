package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
)

const (
	registers   = 4
	swappers    = 4
	callTimeout = 4 * time.Second
	valueKey    = "value"
	// missing is the value of a register that does not exist.
	missing = "(missing)"
)

// crowd is all clients and what they have seen.
type crowd struct {
	lab   *lab
	image string
	history
	diligence

	mu sync.Mutex
	// kept and gone are the acknowledged creations and deletions.
	kept, gone map[string]bool
	failures   map[codes.Code]int
	// odd are errors that no fault explains.
	odd []string
}

func newCrowd(l *lab, image string) *crowd {
	return &crowd{lab: l, image: image, kept: map[string]bool{}, gone: map[string]bool{}, failures: map[codes.Code]int{}}
}

// thing is a workload without replicas.
func (c *crowd) thing(name, value string) *v1.Workload {
	return &v1.Workload{
		Metadata: &v1.Metadata{Name: name, Annotations: map[string]string{valueKey: value}},
		Spec:     &v1.WorkloadSpec{Image: c.image, Replicas: proto.Int32(0)},
	}
}

func registerName(i int) string { return fmt.Sprintf("register-%d", i) }

// prepare creates the registers.
func (c *crowd) prepare(ctx context.Context, api *client.Client) error {
	for i := range registers {
		w := c.thing(registerName(i), "first")
		begin := c.lab.told.now()
		made, err := api.Workloads().CreateWorkload(ctx, &v1.CreateWorkloadRequest{Workload: w})
		if err != nil {
			return err
		}
		c.add(call{
			register: registerName(i), verb: write, value: "first", begin: begin, end: c.lab.told.now(),
			outcome: done, seen: "first", seenVersion: made.GetMetadata().GetVersion(),
		})
	}
	return nil
}

// connect creates the clients; each calls in a loop of its own.
func (c *crowd) connect(ctx context.Context, seed uint64) (loops []func(context.Context), err error) {
	add := func(addresses []string, loop func(*caller, context.Context), kinds ...verb) {
		api, dialErr := c.lab.dial(ctx, addresses)
		if dialErr != nil {
			err = errors.Join(err, dialErr)
			return
		}
		number := len(c.lab.clients) // also the seed of its randomness
		c.lab.clients = append(c.lab.clients, api)
		one := &caller{crowd: c, number: number, api: api, random: rand.New(rand.NewPCG(seed, uint64(number)))}
		c.expect(number, kinds...)
		loops = append(loops, func(ctx context.Context) { loop(one, ctx) })
	}
	for i := range swappers {
		add(c.lab.addressesFrom(i), (*caller).exercise, read, write, swap)
	}
	for _, s := range c.lab.servers {
		add([]string{apiAddress(s)}, (*caller).readStale, staleRead)
	}
	add(c.lab.addressesFrom(1), (*caller).create, creation, deletion)
	add(c.lab.addressesFrom(2), (*caller).scale, scaling)
	return loops, err
}

// caller is one client with a connection of its own.
type caller struct {
	*crowd
	number int
	api    *client.Client
	random *rand.Rand
	count  int
}

// pause waits about so long and reports whether to continue.
func (c *caller) pause(ctx context.Context, about time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(about/2 + time.Duration(c.random.Int64N(int64(about)))):
		return true
	}
}

// exercise reads, writes and swaps.
func (c *caller) exercise(ctx context.Context) {
	type known struct {
		value   string
		version uint64
	}
	last := map[string]known{} // what a swap is based on
	for c.pause(ctx, 30*time.Millisecond) {
		made := call{client: c.number, register: registerName(c.random.IntN(registers))}
		from := last[made.register]
		switch n := c.random.IntN(10); {
		case n < 3 || from.version == 0:
			made.verb = read
		case n < 6:
			made.verb = write
		default:
			made.verb, made.expected = swap, from.value
		}
		if made.verb != read {
			made.value = fmt.Sprintf("%d-%d", c.number, c.count)
			c.count++
		}
		if c.perform(&made, from.version) {
			c.add(made)
			if made.outcome != unknown {
				c.diligence.count(c.number, made.verb)
			}
		}
		if made.seenVersion != 0 {
			last[made.register] = known{made.seen, made.seenVersion}
		}
	}
}

// perform makes a call and reports whether it counts. A call that certainly changed nothing and returned nothing does
// not. It outlasts the end of the run, so that its outcome is known.
func (c *caller) perform(made *call, version uint64) (counts bool) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	var answer *v1.Workload
	var err error
	w := c.thing(made.register, made.value)
	made.begin = c.lab.told.now()
	switch made.verb {
	case read:
		answer, err = c.api.Workloads().GetWorkload(ctx, &v1.GetWorkloadRequest{Name: made.register})
	case write:
		var applied *v1.ApplyWorkloadResponse
		applied, err = c.api.Workloads().ApplyWorkload(ctx, &v1.ApplyWorkloadRequest{Workload: w})
		answer = applied.GetWorkload()
	case swap:
		w.Metadata.Version = version
		answer, err = c.api.Workloads().UpdateWorkload(ctx, &v1.UpdateWorkloadRequest{Workload: w})
	}
	made.end = c.lab.told.now()
	made.outcome = done
	if err != nil {
		if made.outcome, answer = c.judge(made.verb, err); made.outcome == "" {
			return false
		}
	}
	made.seen, made.seenVersion = answer.GetMetadata().GetAnnotations()[valueKey], answer.GetMetadata().GetVersion()
	return true
}

// judge says what an error reveals about a call. The outcome is empty if the call can be forgotten.
func (c *caller) judge(v verb, err error) (outcome, *v1.Workload) {
	c.failed(v, err)
	switch status.Code(err) {
	case codes.NotFound: // a register always exists
		return done, &v1.Workload{Metadata: &v1.Metadata{Annotations: map[string]string{valueKey: missing}}}
	case codes.Aborted:
		for _, detail := range status.Convert(err).Details() {
			if current, ok := detail.(*v1.Workload); ok {
				return refused, current
			}
		}
		return "", nil
	case codes.ResourceExhausted: // refused for lack of room
		return "", nil
	}
	if v == read {
		return "", nil
	}
	return unknown, nil
}

// failed counts failures, and records those that no fault explains.
func (c *caller) failed(what verb, err error) {
	code := status.Code(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures[code]++
	if !explained(what, err) {
		c.odd = append(c.odd, fmt.Sprintf("%s by client %d: %s: %v", what, c.number, code, err))
	}
}

// explained reports whether a fault explains an error. Only a change can be uncertain, and its answer must say so:
// otherwise a client cannot distinguish it from a bug of the server.
func explained(what verb, err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Aborted:
		return true
	case codes.Unknown:
		return what != read && what != staleRead && client.Uncertain(err)
	}
	return false
}

// readStale makes stale reads at one server.
func (c *caller) readStale(ctx context.Context) {
	for c.pause(ctx, 150*time.Millisecond) {
		made := call{client: c.number, verb: read, register: registerName(c.random.IntN(registers)), begin: c.lab.told.now()}
		during, cancel := context.WithTimeout(context.Background(), callTimeout)
		answer, err := c.api.Workloads().GetWorkload(client.WithStale(during), &v1.GetWorkloadRequest{Name: made.register})
		cancel()
		if status.Code(err) == codes.NotFound {
			continue // a stale answer may be that old
		}
		if err != nil {
			c.failed(staleRead, err)
			continue
		}
		c.diligence.count(c.number, staleRead)
		made.end, made.seen, made.seenVersion = c.lab.told.now(), answer.GetMetadata().GetAnnotations()[valueKey], answer.GetMetadata().GetVersion()
		c.addStale(made)
	}
}

// create creates things and deletes every third one, and remembers what was acknowledged.
func (c *caller) create(ctx context.Context) {
	for c.pause(ctx, 100*time.Millisecond) {
		name := fmt.Sprintf("thing-%d", c.count)
		c.count++
		if c.acknowledged(creation, func(ctx context.Context) error {
			_, err := c.api.Workloads().CreateWorkload(ctx, &v1.CreateWorkloadRequest{Workload: c.thing(name, name)})
			return err
		}) {
			c.mark(c.kept, name, true)
		}
		if c.count%3 != 0 || !c.kept[name] {
			continue
		}
		c.mark(c.kept, name, false) // whatever the outcome of the deletion
		if c.acknowledged(deletion, func(ctx context.Context) error {
			_, err := c.api.Workloads().DeleteWorkload(ctx, &v1.DeleteWorkloadRequest{Name: name})
			return err
		}) {
			c.mark(c.gone, name, true)
		}
	}
}

func (c *caller) mark(set map[string]bool, name string, in bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if in {
		set[name] = true
	} else {
		delete(set, name)
	}
}

func (c *caller) acknowledged(kind verb, do func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	err := do(ctx)
	if err != nil {
		c.failed(kind, err)
		return false
	}
	c.diligence.count(c.number, kind)
	return true
}

// scale scales the running workload.
func (c *caller) scale(ctx context.Context) {
	for c.pause(ctx, 4*time.Second) {
		to := int32(2 + c.random.IntN(5))
		if c.acknowledged(scaling, func(ctx context.Context) error {
			_, err := c.api.Workloads().ScaleWorkload(ctx, &v1.ScaleWorkloadRequest{Name: appName, Replicas: proto.Int32(to)})
			return err
		}) {
			c.lab.told.note("scaled to %d replicas", to)
		}
	}
}
