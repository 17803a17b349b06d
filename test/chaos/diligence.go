package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// A run in which clients hardly succeeded proves nothing. How much they achieve depends on
// the machine, so the minimum is counted in faults and not in seconds.

// The kinds of calls beside those on registers.
const (
	staleRead verb = "stale read"
	creation  verb = "creation"
	deletion  verb = "deletion"
	scaling   verb = "scaling"
)

// rare are calls that a client makes only a few times.
var rare = []verb{deletion, scaling}

// diligence counts the successful calls of each client. A swap that found another value
// counts, too.
type diligence struct {
	mu   sync.Mutex
	done map[int]map[verb]int
}

// expect says which kinds of calls a client makes.
func (d *diligence) expect(client int, kinds ...verb) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done == nil {
		d.done = map[int]map[verb]int{}
	}
	d.done[client] = map[verb]int{}
	for _, kind := range kinds {
		d.done[client][kind] = 0
	}
}

func (d *diligence) count(client int, kind verb) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if counts := d.done[client]; counts != nil { // unexpected clients, such as the last reader, do not count
		counts[kind]++
	}
}

// soFar is a copy of the counts.
func (d *diligence) soFar() map[int]map[verb]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[int]map[verb]int{}
	for client, counts := range d.done {
		all[client] = maps.Clone(counts)
	}
	return all
}

// since is an error as long as a client has had no answer of one of its kinds
// since those counts.
func (d *diligence) since(before map[int]map[verb]int) error {
	var errs []error
	for client, counts := range ordered(d.soFar()) {
		for kind, n := range ordered(counts) {
			if n == before[client][kind] {
				errs = append(errs, fmt.Errorf("client %d has had no %s answered", client, kind))
			}
		}
	}
	return errors.Join(errs...)
}

// enough is an error if so few calls succeeded that the run proves nothing: each kind, and
// each client, needs one for every fault. Of the rare ones one is enough.
func (d *diligence) enough(faults int) error {
	var errs []error
	kinds := map[verb]int{}
	for client, counts := range ordered(d.soFar()) {
		sum, usual := 0, false
		for kind, n := range counts {
			kinds[kind] += n
			sum += n
			usual = usual || !slices.Contains(rare, kind)
		}
		if usual && sum < faults {
			errs = append(errs, fmt.Errorf("client %d had only %d calls answered during %d faults", client, sum, faults))
		}
	}
	for kind, n := range ordered(kinds) {
		least := faults
		if slices.Contains(rare, kind) {
			least = 1
		}
		if n < least {
			errs = append(errs, fmt.Errorf("only %d calls of kind %s were answered during %d faults", n, kind, faults))
		}
	}
	return errors.Join(errs...)
}

// ordered iterates over a map in the order of its keys.
func ordered[K int | verb, V any](m map[K]V) func(func(K, V) bool) {
	return func(yield func(K, V) bool) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !yield(key, m[key]) {
				return
			}
		}
	}
}

// resume waits until every client has succeeded with each of its kinds on the healed
// cluster.
func (c *crowd) resume(ctx context.Context) error {
	before := c.soFar()
	if err := c.lab.until(ctx, func(context.Context) error { return c.since(before) }); err != nil {
		return fmt.Errorf("clients going on: %w", err)
	}
	return nil
}
