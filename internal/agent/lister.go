package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/driver"
)

// lister looks up single tasks of a driver that only lists them all. Those who
// ask at about the same time share one list, so that starting many replicas at
// once does not mean listing as many times.
type lister struct {
	driver driver.Driver
	log    *slog.Logger

	turn sync.Mutex // held while a list is made
	mu   sync.Mutex
	next *listing // has not begun, so it will hold every task that exists now
}

// listing is a list of tasks by id, to be read once done is closed.
type listing struct {
	done  chan struct{}
	tasks map[string]driver.Status
}

// listTimeout bounds a list, which nobody in particular waits for.
const listTimeout = 5 * time.Second

// find returns the task as it is now. It is empty if it cannot be had: what it
// is asked for is worth knowing, but nothing depends on it.
func (l *lister) find(ctx context.Context, id string) driver.Status {
	l.mu.Lock()
	list, mine := l.next, false
	if list == nil {
		list, mine = &listing{done: make(chan struct{})}, true
		l.next = list
	}
	l.mu.Unlock()
	if mine {
		l.fill(ctx, list)
	}
	select {
	case <-list.done:
		return list.tasks[id]
	case <-ctx.Done():
		return driver.Status{}
	}
}

func (l *lister) fill(ctx context.Context, list *listing) {
	defer close(list.done)
	l.turn.Lock()
	defer l.turn.Unlock()
	l.mu.Lock()
	l.next = nil // whoever comes now may ask for a task that this list misses
	l.mu.Unlock()
	// Others wait for it too, so it does not end with the one who asked first.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), listTimeout)
	defer cancel()
	tasks, err := l.driver.List(ctx)
	if err != nil {
		l.log.Warn("cannot list tasks; process ids will be missing", "driver", l.driver.Name(), "error", err)
		return
	}
	list.tasks = make(map[string]driver.Status, len(tasks))
	for _, task := range tasks {
		list.tasks[task.ID] = task
	}
}
