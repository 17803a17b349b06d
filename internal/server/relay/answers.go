package relay

import (
	"context"
	"slices"
	"sync"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

const (
	// maxLarge is how many large answers one stream sends at once: a small answer waits for
	// one piece of each at most.
	maxLarge = 4
	// maxUnsent is how many bytes of answers may wait for a server that does not read them
	// before its further calls have to wait.
	maxUnsent = 64 << 20
)

// answers sends the answers of one stream to the server that relayed the calls. Small
// answers share messages. Large ones go in pieces, which take turns with the small ones and
// with each other, so that no answer waits for the whole of another one.
type answers struct {
	send func(*v1.PassCallsResponse) error
	// turn is held by the goroutine that sends, since a stream takes one message at a time.
	// It is a channel because goroutines that wait for a channel are served in order.
	turn   chan struct{}
	small  *mailbox[*v1.PassedAnswer]
	large  chan struct{}
	unsent backlog
}

func newAnswers(send func(*v1.PassCallsResponse) error) *answers {
	return &answers{send: send, turn: make(chan struct{}, 1), small: newMailbox(answerSize), large: make(chan struct{}, maxLarge)}
}

func answerSize(a *v1.PassedAnswer) int { return len(a.GetResponse()) + len(a.GetFailure()) + 32 }

// put sends an answer: a small one soon, a large one before it returns, unless ctx ends.
func (a *answers) put(ctx context.Context, answer *v1.PassedAnswer) {
	size := answerSize(answer)
	a.unsent.add(size)
	if size <= maxPassed {
		a.small.put(answer)
		return
	}
	defer a.unsent.add(-size)
	select {
	case a.large <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-a.large }()
	for _, piece := range pieces(answer) {
		if a.say(ctx, &v1.PassCallsResponse{Answers: []*v1.PassedAnswer{piece}}) != nil {
			return
		}
	}
}

// pieces splits an answer.
func pieces(answer *v1.PassedAnswer) (all []*v1.PassedAnswer) {
	for part := range slices.Chunk(answer.GetResponse(), maxPassed) {
		all = append(all, &v1.PassedAnswer{Number: answer.GetNumber(), Response: part, More: true})
	}
	for part := range slices.Chunk(answer.GetFailure(), maxPassed) {
		all = append(all, &v1.PassedAnswer{Number: answer.GetNumber(), Failure: part, More: true})
	}
	all[len(all)-1].More = false
	return all
}

// deliver sends small answers until the mailbox is closed or ctx ends.
func (a *answers) deliver(ctx context.Context) {
	a.small.deliver(ctx, func(batch []*v1.PassedAnswer) error {
		err := a.say(ctx, &v1.PassCallsResponse{Answers: batch})
		for _, answer := range batch {
			a.unsent.add(-answerSize(answer))
		}
		return err
	})
}

func (a *answers) say(ctx context.Context, response *v1.PassCallsResponse) error {
	select {
	case a.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-a.turn }()
	if ctx.Err() != nil { // both were ready
		return ctx.Err()
	}
	return a.send(response)
}

// silence stops all sending. It cancels the context of all that send.
func (a *answers) silence(cancel context.CancelFunc) {
	a.turn <- struct{}{}
	cancel()
	<-a.turn
}

// backlog counts the bytes that wait to be sent.
type backlog struct {
	mu    sync.Mutex
	bytes int
	room  chan struct{} // closed when there is room again, nil if there is
}

func (b *backlog) add(bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes += bytes
	switch {
	case b.bytes > maxUnsent && b.room == nil:
		b.room = make(chan struct{})
	case b.bytes <= maxUnsent && b.room != nil:
		close(b.room)
		b.room = nil
	}
}

// wait returns when there is room or ctx ends.
func (b *backlog) wait(ctx context.Context) {
	b.mu.Lock()
	room := b.room
	b.mu.Unlock()
	if room == nil {
		return
	}
	select {
	case <-room:
	case <-ctx.Done():
	}
}
