// Package tour has the parts that guided demonstrations share: a guide that explains each step, machines in network
// namespaces, and a client whose requests are counted. It uses Cloudless only through the CLI, as users do, and does not
// know what a demonstration shows.
package tour

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// Tour is one run of a demonstration.
type Tour struct {
	Guide   *Guide
	Network *Network
	// App is the path of the program that the demonstration runs as its app.
	App string
	// Traffic is what the app gets all the time; nil before the app runs.
	Traffic *Traffic

	name, dir, cloudless string
	machines             []*Machine
}

// Step is one part of a demonstration.
type Step func(context.Context) error

// Main runs the steps of a demonstration and exits. It removes everything afterwards, even after ctrl-C. app is where
// the Makefile puts the program of the app.
func Main(name, app string, steps func(*Tour) []Step) {
	t := &Tour{name: name}
	flag.StringVar(&t.cloudless, "cloudless", "bin/cloudless", "path of the cloudless `program`")
	flag.StringVar(&t.App, "app", app, "path of the `program` to run as the app")
	yes := flag.Bool("yes", false, "do not wait for a key between the steps")
	flag.Parse()
	// Ctrl-C stays caught until the cleanup is done.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	t.Guide = newGuide(os.Stdout, os.Stdin, *yes)
	err := t.run(ctx, steps(t))
	if ctx.Err() != nil {
		os.Exit(130)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

func (t *Tour) run(ctx context.Context, steps []Step) (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("network namespaces and containers need root: run sudo make %s", t.name)
	}
	for _, path := range []*string{&t.cloudless, &t.App} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
		if _, err := os.Stat(*path); err != nil {
			return fmt.Errorf("%w: build it with make %s", err, t.name)
		}
	}
	if t.dir, err = os.MkdirTemp("", t.name+"-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(t.dir)) }()
	t.Network = newNetwork(t.name)
	defer func() {
		t.Guide.Say("Cleaning up.")
		err = errors.Join(err, t.clear())
	}()
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
		if t.Traffic != nil {
			t.Guide.Say("→ %s", t.Traffic)
		}
	}
	return nil
}

// clear removes everything that exists so far.
func (t *Tour) clear() error {
	var failures []error
	if t.Traffic != nil {
		t.Traffic.stop()
	}
	for _, m := range slices.Backward(t.machines) {
		failures = append(failures, m.purge(context.Background()))
	}
	return errors.Join(append(failures, t.Network.close())...)
}

const (
	patience = 2 * time.Minute
	lookTime = 100 * time.Millisecond
)

// Until waits for a condition. otherwise is the error after too long a wait.
func Until(ctx context.Context, otherwise string, met func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New(otherwise))
	defer cancel()
	for !met() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lookTime):
		}
	}
	return nil
}

// Look decodes the JSON output of a command on a machine and reports whether that worked.
func (t *Tour) Look(ctx context.Context, where string, into any, args ...string) bool {
	out, err := t.Run(ctx, where, append(args, "-o", "json")...)
	return err == nil && json.Unmarshal([]byte(out), into) == nil
}

// Token creates a join token on a machine, writes it to a file and returns the path.
func (t *Tour) Token(ctx context.Context, where, role string, uses int) (string, error) {
	file := filepath.Join(t.dir, role+".token")
	args := []string{"token", "create", "--role", role, "--uses", fmt.Sprint(uses), "--ttl", "1h"}
	t.Guide.Command(where, append(slices.Clone(args), ">", file))
	var made struct{ Secret string }
	out, err := t.Run(ctx, where, append(args, "-o", "json")...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &made)
	}
	if err != nil {
		return "", err
	}
	return file, os.WriteFile(file, []byte(made.Secret), 0o600)
}

// WriteFile writes a file to the folder of the demonstration and returns its path.
func (t *Tour) WriteFile(name string, data []byte) (string, error) {
	path := filepath.Join(t.dir, name)
	return path, os.WriteFile(path, data, 0o600)
}

// ReadyNodes waits until so many nodes are ready.
func (t *Tour) ReadyNodes(ctx context.Context, where string, want int) error {
	return Until(ctx, "the nodes are not all ready", func() bool {
		var nodes struct {
			Items []struct{ Status struct{ State string } }
		}
		ready := 0
		if t.Look(ctx, where, &nodes, "node", "ls") {
			for _, n := range nodes.Items {
				if n.Status.State == "ready" {
					ready++
				}
			}
		}
		return ready == want
	})
}
