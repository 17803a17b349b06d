package s3

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// kept is how many objects of a size are there to get: more than fit into the caches of a server, but not of the kernel.
func kept(size int) int { return min(2000, max(2*Clients, (256<<20)/size)) }

// puts lets clients put objects for a while, each with other content: nothing is stored twice.
func (e *Endpoint) puts(ctx context.Context, bucket string, turn, size int, length time.Duration) (float64, error) {
	var objects atomic.Int64
	took, err := crew(ctx, length, func(ctx context.Context, client int) func() error {
		body, number := content(size), 0
		return func() error {
			number++
			stamp(body)
			objects.Add(1)
			return e.Put(ctx, bucket, fmt.Sprintf("put/%d/%d/%06d", turn, client, number), body)
		}
	})
	return speed(size, int(objects.Load()), took), err
}

// gets lets clients get objects for a while, after they were put.
func (e *Endpoint) gets(ctx context.Context, bucket string, size int, length time.Duration) (float64, error) {
	if err := e.fill(ctx, bucket, size); err != nil {
		return 0, err
	}
	var objects atomic.Int64
	took, err := crew(ctx, length, func(ctx context.Context, client int) func() error {
		choose := rand.New(rand.NewPCG(uint64(client), 1))
		return func() error {
			objects.Add(1)
			return e.Get(ctx, bucket, fmt.Sprintf("get/%06d", choose.IntN(kept(size))), size)
		}
	})
	return speed(size, int(objects.Load()), took), err
}

// fill puts the objects to get.
func (e *Endpoint) fill(ctx context.Context, bucket string, size int) error {
	last := fmt.Sprintf("get/%06d", kept(size)-1)
	if e.Get(ctx, bucket, last, size) == nil {
		return nil // in an earlier turn
	}
	return e.Fill(ctx, bucket, "get/%06d", kept(size), size)
}

// Fill puts so many objects, whose keys are numbers in a format.
func (e *Endpoint) Fill(ctx context.Context, bucket, format string, count, size int) error {
	var next atomic.Int64
	all, ctx := errgroup.WithContext(ctx)
	for range Clients {
		all.Go(func() error {
			body := content(size)
			for {
				number := int(next.Add(1)) - 1
				if number >= count {
					return nil
				}
				stamp(body)
				if err := e.Put(ctx, bucket, fmt.Sprintf(format, number), body); err != nil {
					return err
				}
			}
		})
	}
	return all.Wait()
}

// crew lets all clients repeat what they do until a time has passed, and returns how long that took with what was begun
// before.
func crew(ctx context.Context, length time.Duration, task func(ctx context.Context, client int) func() error) (time.Duration, error) {
	began := time.Now()
	all, ctx := errgroup.WithContext(ctx)
	for client := range Clients {
		step := task(ctx, client)
		all.Go(func() error {
			for time.Since(began) < length {
				if err := step(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := all.Wait()
	return time.Since(began), err
}

// content returns random bytes.
func content(size int) []byte {
	body := make([]byte, size)
	for i := 0; i+8 <= size; i += 8 {
		binary.LittleEndian.PutUint64(body[i:], rand.Uint64())
	}
	return body
}

// stamp changes a little of each chunk that the content may be cut into.
func stamp(body []byte) {
	const every = 1 << 20
	for i := 0; i+8 <= len(body); i += every {
		binary.LittleEndian.PutUint64(body[i:], rand.Uint64())
	}
}
