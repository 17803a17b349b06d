package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/test/bench/s3"
)

// cleanupTime bounds the cleanup of one cloud.
const cleanupTime = 2 * time.Minute

// lab is what all measurements share: a folder on the disk of the repository, the programs,
// and where to report progress.
type lab struct {
	dir       string
	cloudless string
	sleeper   string // a small static program to run in containers
	out       io.Writer
	losses    sample // of a leader, measured once for both of their figures
	fleet     *fleetRun
	dns       *dnsRun
	crowd     crowd
	crowded   *crowdRun
	rolling   *rollingRun
	switching *switchRun
	objects   *objectStand
	listed    *s3.Keys
}

func newLab(ctx context.Context, out io.Writer) (_ *lab, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("this runs containers and needs root")
	}
	l := &lab{out: out}
	if l.cloudless, err = filepath.Abs("bin/cloudless"); err != nil {
		return nil, err
	}
	if _, err := os.Stat(l.cloudless); err != nil {
		return nil, errors.New("bin/cloudless is missing: run make build in the repository's folder, and this from there")
	}
	if err := os.MkdirAll("build", 0o755); err != nil {
		return nil, err
	}
	if l.dir, err = os.MkdirTemp("build", "bench-"); err != nil {
		return nil, err
	}
	if l.dir, err = filepath.Abs(l.dir); err == nil {
		l.sleeper, err = l.build(ctx, "sleeper", "./test/bench/sleeper")
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *lab) close() {
	if l.objects != nil {
		l.objects.close()
	}
	if err := os.RemoveAll(l.dir); err != nil {
		l.say("clear away: %v", err)
	}
}

func (l *lab) say(format string, args ...any) { fmt.Fprintf(l.out, format+"\n", args...) }

// build builds a static program.
func (l *lab) build(ctx context.Context, name, pkg string, flags ...string) (string, error) {
	path := filepath.Join(l.dir, name)
	args := append([]string{"build", "-trimpath", "-ldflags", "-s -w", "-o", path}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return path, nil
}

// cloud is a one-machine cloud for one measurement.
type cloud struct {
	lab     *lab
	data    string
	address string
	config  string
}

// newCloud starts one. Its close leaves nothing behind.
func (l *lab) newCloud(ctx context.Context, name string) (*cloud, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &cloud{
		lab: l, address: listener.Addr().String(),
		data: filepath.Join(l.dir, name), config: filepath.Join(l.dir, name+".yaml"),
	}
	if err := listener.Close(); err != nil {
		return nil, err
	}
	if err := c.up(ctx); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *cloud) up(ctx context.Context) error {
	return c.run(ctx, "up", "--detach", "--data-dir", c.data, "--api-addr", c.address)
}

func (c *cloud) down(ctx context.Context) error {
	return c.run(ctx, "down", "--data-dir", c.data)
}

// close also works when the measurement was interrupted.
func (c *cloud) close() {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTime)
	defer cancel()
	if err := c.run(ctx, "down", "--purge", "--data-dir", c.data); err != nil {
		c.lab.say("%v", err)
	}
}

// run runs a command of the binary in its own process group, so that only this program gets
// ctrl-C and the command is ended in order.
func (c *cloud) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, c.lab.cloudless, args...)
	cmd.Env = append(os.Environ(), client.ConfigEnv+"="+c.config)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = cleanupTime
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cloudless %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (c *cloud) context() (client.Context, error) {
	config, err := client.LoadConfig(c.config)
	if err != nil {
		return client.Context{}, err
	}
	return config.Context("")
}

func (c *cloud) dial(ctx context.Context) (*client.Client, error) {
	where, err := c.context()
	if err != nil {
		return nil, err
	}
	return client.Dial(ctx, where)
}

// id is the cloud's name on this machine.
func (c *cloud) id() (string, error) {
	data, err := os.ReadFile(filepath.Join(c.data, "cloud.json"))
	if err != nil {
		return "", err
	}
	var about struct{ ID string }
	if err := json.Unmarshal(data, &about); err != nil {
		return "", fmt.Errorf("read cloud.json: %w", err)
	}
	return about.ID, nil
}

// pushed is push for callers without a client.
func (c *cloud) pushed(ctx context.Context) (string, error) {
	api, err := c.dial(ctx)
	if err != nil {
		return "", err
	}
	name, err := c.push(ctx, api)
	return name, errors.Join(err, api.Close())
}

// push makes the sleeper an image of the cloud and returns its name.
func (c *cloud) push(ctx context.Context, api *client.Client) (string, error) {
	return "sleeper:1", pushProgram(ctx, api, c.lab.sleeper, "sleeper:1")
}

// pushProgram makes a static program an image of the cloud.
func pushProgram(ctx context.Context, api *client.Client, path, as string) error {
	img, err := image.FromBinary(path, image.Options{})
	if err != nil {
		return err
	}
	name, err := image.ParseName(as)
	if err != nil {
		return err
	}
	_, err = image.Push(ctx, img, name, image.PushOptions{Transport: api.HTTPTransport()})
	return err
}

// stage is a cloud with an image to run on it, and a connected client.
type stage struct {
	*cloud
	api   *client.Client
	image string
}

// newStage starts a cloud, connects to it and pushes the image. Its close removes all of that.
func (l *lab) newStage(ctx context.Context, name string) (_ *stage, err error) {
	c, err := l.newCloud(ctx, name)
	if err != nil {
		return nil, err
	}
	s := &stage{cloud: c}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.api, err = c.dial(ctx); err != nil {
		return nil, err
	}
	s.image, err = c.push(ctx, s.api)
	return s, err
}

func (s *stage) close() {
	if s.api != nil {
		_ = s.api.Close()
	}
	s.cloud.close()
}
