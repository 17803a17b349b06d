// Package s3 measures the object store as S3 clients see it: beside a plain program that keeps each object in a file,
// and beside versitygw's own POSIX backend. All three get the same requests from the same clients, by TLS, in turns.
//
// It must not know how figures are recorded, nor how a cluster is started.
package s3

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Clients is how many clients there are at a time.
const Clients = 8

// rounds is how often each server has its turn, and round how long a turn is.
const (
	rounds = 3
	round  = 4 * time.Second
)

// Figure is what a measurement has come to. Value and Floor are in objects or megabytes a second.
type Figure struct {
	Value, Floor float64
	Notes        []string
}

// Sizes are those of the objects, by the names of the figures.
var Sizes = map[string]int{"4k": 4 << 10, "1m": 1 << 20, "64m": 64 << 20}

// speed is objects a second for small objects and megabytes a second for others.
func speed(size int, objects int, took time.Duration) float64 {
	perSecond := float64(objects) / took.Seconds()
	if size < 1<<20 {
		return perSecond
	}
	return perSecond * float64(size) / 1e6
}

// Compare puts or gets objects of a size at servers, in turns. The first is the one to measure, the second the floor, and
// others are noted.
func Compare(ctx context.Context, servers []*Endpoint, size int, put bool) (Figure, error) {
	speeds := make([][]float64, len(servers))
	for turn := range rounds {
		for i, server := range servers {
			measured, err := server.turn(ctx, turn, size, put)
			if err != nil {
				return Figure{}, fmt.Errorf("%s: %w", server.Name, err)
			}
			speeds[i] = append(speeds[i], measured)
		}
	}
	f := Figure{}
	for i, server := range servers {
		slices.Sort(speeds[i])
		median := speeds[i][rounds/2]
		switch i {
		case 0:
			f.Value = median
		case 1:
			f.Floor = median
		}
		f.Notes = append(f.Notes, fmt.Sprintf("%s: %.4g (%.4g to %.4g)", server.Name, median, speeds[i][0], speeds[i][rounds-1]))
	}
	return f, nil
}

// turn lets clients work at a server for a while.
func (e *Endpoint) turn(ctx context.Context, number, size int, put bool) (float64, error) {
	bucket := fmt.Sprintf("b%d", size)
	if err := e.CreateBucket(ctx, bucket); err != nil {
		return 0, err
	}
	if put {
		return e.puts(ctx, bucket, number, size, round)
	}
	return e.gets(ctx, bucket, size, round)
}

// CompareBuckets puts objects of a size into two buckets, in turns. The first is the one to measure, the second the floor.
func CompareBuckets(ctx context.Context, e *Endpoint, measured, floor string, size int) (Figure, error) {
	speeds := map[string][]float64{}
	for turn := range rounds {
		for _, bucket := range []string{measured, floor} {
			one, err := e.puts(ctx, bucket, turn, size, round)
			if err != nil {
				return Figure{}, err
			}
			speeds[bucket] = append(speeds[bucket], one)
		}
	}
	f := Figure{}
	for bucket, median := range map[string]*float64{measured: &f.Value, floor: &f.Floor} {
		slices.Sort(speeds[bucket])
		*median = speeds[bucket][rounds/2]
		f.Notes = append(f.Notes, fmt.Sprintf("bucket %s: %.4g to %.4g", bucket, speeds[bucket][0], speeds[bucket][rounds-1]))
	}
	slices.Sort(f.Notes)
	return f, nil
}
