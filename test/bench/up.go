package main

import (
	"context"
	"os/exec"
	"time"
)

const upTimes = 9

// measureUp times a restart of the whole cloud. The detached command returns when the node
// has received its first assignments from the server.
func measureUp(ctx context.Context, l *lab) (result, error) {
	c, err := l.newCloud(ctx, "up")
	if err != nil {
		return result{}, err
	}
	defer c.close()
	if err := c.fill(ctx); err != nil {
		return result{}, err
	}
	var up, bare sample
	for range upTimes {
		if err := c.down(ctx); err != nil {
			return result{}, err
		}
		took, err := timed(func() error { return exec.CommandContext(ctx, l.cloudless, "--help").Run() })
		if err != nil {
			return result{}, err
		}
		bare = append(bare, took)
		if took, err = timed(func() error { return c.up(ctx) }); err != nil {
			return result{}, err
		}
		up = append(up, took)
	}
	return result{
		value: up.median(), floor: bare.median(),
		notes: []string{up.spread("up"), bare.spread("bare exec")},
	}, nil
}

// fill gives the cloud a running workload.
func (c *cloud) fill(ctx context.Context) error {
	api, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer api.Close()
	image, err := c.push(ctx, api)
	if err != nil {
		return err
	}
	_, err = startWorkload(ctx, api, "resident", image)
	return err
}

// timed returns how many milliseconds f took.
func timed(f func() error) (float64, error) {
	began := time.Now()
	err := f()
	return milliseconds(time.Since(began)), err
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
