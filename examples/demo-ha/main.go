// Command demo-ha shows what a cluster survives, step by step, to a person at a
// terminal: three servers and three nodes as network namespaces of this machine,
// an app on them that is asked all the time, kill -9 of the server that leads,
// and a node without power. Afterwards nothing of it is left, also after ctrl-C.
//
//	make demo-ha
//
// It knows Cloudless only as its users do: by the command line and by HTTP.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	var o options
	flag.StringVar(&o.cloudless, "cloudless", "bin/cloudless", "the `program` that is shown")
	flag.StringVar(&o.app, "app", "build/hello", "the `program` that it runs")
	flag.BoolVar(&o.yes, "yes", false, "do not wait for a key between the steps")
	flag.Parse()
	// Ctrl-C stays caught until everything is cleared away.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, o)
	if ctx.Err() != nil {
		os.Exit(130)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo-ha:", err)
		os.Exit(1)
	}
}

type options struct {
	cloudless, app string
	yes            bool
}

func run(ctx context.Context, o options) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces and containers need root: run sudo make demo-ha")
	}
	for _, path := range []*string{&o.cloudless, &o.app} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
		if _, err := os.Stat(*path); err != nil {
			return fmt.Errorf("%w: build it with make demo-ha", err)
		}
	}
	dir, err := os.MkdirTemp("", "demo-ha-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	d := &demo{guide: newGuide(os.Stdout, os.Stdin, o.yes), dir: dir, cloudless: o.cloudless, app: o.app}
	defer func() {
		d.guide.say("Clearing everything away.")
		err = errors.Join(err, d.clear())
	}()
	return d.show(ctx)
}
