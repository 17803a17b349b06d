package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
)

// crew is a set of clients that write until the script asks for the result.
type crew struct {
	stop context.CancelFunc
	done sync.WaitGroup

	mu sync.Mutex
	// acknowledged has the names of acknowledged writes.
	acknowledged []string
	// unanswered has the names of writes without an answer.
	unanswered []string
	last       error
}

// writePause keeps the writers from using all CPUs.
const writePause = 5 * time.Millisecond

// startWriters starts clients that each send one write after the other, until the
// command written:
//
//	writers 4
func startWriters(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	ctx, cancel := context.WithCancel(context.Background())
	all := &crew{stop: cancel}
	ts.Defer(all.end)
	for i := range n {
		c := dial(ts, ctx)
		all.done.Go(func() {
			defer func() { _ = c.Close() }()
			all.write(ctx, c, i)
		})
	}
	crews.Store(ts.Getenv("WORK"), all)
	ts.Defer(func() { crews.Delete(ts.Getenv("WORK")) })
}

// crews has the crews of the running scripts by folder. Commands of a script have no
// other place to store them.
var crews sync.Map

func (c *crew) end() {
	c.stop()
	c.done.Wait()
}

func (c *crew) write(ctx context.Context, to *client.Client, writer int) {
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("write-%d-%d", writer, n)
		c.note(name, create(ctx, to, name))
		select {
		case <-ctx.Done():
		case <-time.After(writePause):
		}
	}
}

// create creates a token. A call in progress when the crew ends is still answered.
func create(ctx context.Context, to *client.Client, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	_, err := to.Tokens().CreateToken(ctx, &v1.CreateTokenRequest{Role: "viewer", Name: name})
	if ctx.Err() != nil {
		return errUnanswered
	}
	return err
}

var errUnanswered = errors.New("no server answered")

func (c *crew) note(name string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.acknowledged = append(c.acknowledged, name)
	case errors.Is(err, errUnanswered):
		c.unanswered = append(c.unanswered, name)
	default:
		c.last = err
	}
}

// moreWritten waits until the given number of further writes has been acknowledged:
//
//	more 20
func moreWritten(ts *testscript.TestScript, _ bool, args []string) {
	more, err := strconv.Atoi(args[0])
	ts.Check(err)
	all := crewOf(ts)
	before, _ := all.look()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if now, _ := all.look(); now >= before+more {
			return
		}
	}
	now, last := all.look()
	ts.Fatalf("only %d more writes were acknowledged; the last error is %v\n%s", now-before, last, processLog(ts))
}

func (c *crew) look() (acknowledged int, last error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.acknowledged), c.last
}

// allWritten stops the writers. It checks that every write was answered, and that every
// acknowledged write is stored:
//
//	written
func allWritten(ts *testscript.TestScript, _ bool, _ []string) {
	all := crewOf(ts)
	all.end()
	if len(all.unanswered) > 0 {
		ts.Fatalf("the writes %v were not answered within %s", all.unanswered, patience)
	}
	ctx := ts.Value(storyContext{}).(context.Context)
	c := dial(ts, ctx)
	defer func() { _ = c.Close() }()
	tokens, err := client.AllPages(func(page *v1.Page) ([]*v1.Token, string, error) {
		answer, err := c.Tokens().ListTokens(ctx, &v1.ListTokensRequest{Page: page})
		return answer.GetItems(), answer.GetNext(), err
	})
	ts.Check(err)
	var there []string
	for _, token := range tokens {
		there = append(there, token.GetMetadata().GetName())
	}
	slices.Sort(there)
	for _, name := range all.acknowledged {
		if _, found := slices.BinarySearch(there, name); !found {
			ts.Fatalf("the acknowledged write %s is lost; there are %d of %d", name, len(there), len(all.acknowledged))
		}
	}
	ts.Logf("%d writes were acknowledged, and all are there", len(all.acknowledged))
}

func crewOf(ts *testscript.TestScript) *crew {
	all, ok := crews.Load(ts.Getenv("WORK"))
	if !ok {
		ts.Fatalf("there are no writers: start them with the command writers")
	}
	return all.(*crew)
}

// dial returns a client with the script's client configuration.
func dial(ts *testscript.TestScript, ctx context.Context) *client.Client {
	contexts, err := client.LoadConfig(ts.Getenv("CLOUDLESS_CONFIG"))
	ts.Check(err)
	where, err := contexts.Context("")
	ts.Check(err)
	c, err := client.Dial(ctx, where)
	ts.Check(err)
	return c
}
