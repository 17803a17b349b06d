package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	firstAppTimes = 5
	firstAppPause = 2 * time.Millisecond // between two checks whether the app answers
)

// measureFirstApp does what a newcomer does, beginning with an empty data folder.
func measureFirstApp(ctx context.Context, l *lab) (result, error) {
	hello, err := l.build(ctx, "hello", "./examples/hello")
	if err != nil {
		return result{}, err
	}
	var whole, started sample
	for n := range firstAppTimes {
		up, all, err := l.firstApp(ctx, hello, n)
		if err != nil {
			return result{}, err
		}
		started, whole = append(started, up), append(whole, all)
	}
	return result{
		value: whole.median(),
		notes: []string{whole.spread("seconds until the app answers"), started.spread("of them until up returns")},
	}, nil
}

func (l *lab) firstApp(ctx context.Context, hello string, n int) (up, whole float64, err error) {
	port, err := freePort()
	if err != nil {
		return 0, 0, err
	}
	api, err := freePort()
	if err != nil {
		return 0, 0, err
	}
	name := fmt.Sprintf("first-%d", n)
	c := &cloud{
		lab: l, address: fmt.Sprintf("127.0.0.1:%d", api),
		data: filepath.Join(l.dir, name), config: filepath.Join(l.dir, name+".yaml"),
	}
	defer c.close()
	began := time.Now()
	if err := c.up(ctx); err != nil {
		return 0, 0, err
	}
	up = time.Since(began).Seconds()
	// The test waits for the page: run would also check that the app stays up.
	if err := c.run(ctx, "run", hello, "--name", "web", "--wait=false", "--publish", fmt.Sprintf("%d:8080", port)); err != nil {
		return 0, 0, err
	}
	err = answers(ctx, fmt.Sprintf("http://127.0.0.1:%d/", port))
	return up, time.Since(began).Seconds(), err
}

// answers waits until a page is there.
func answers(ctx context.Context, url string) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		if err := sleep.For(ctx, firstAppPause); err != nil {
			return err
		}
	}
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return listener.Addr().(*net.TCPAddr).Port, listener.Close()
}

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
