// Command demo-ha shows step by step what a cluster survives. Three servers and three
// nodes run in network namespaces of this machine. An app gets requests all the time,
// while kill -9 ends the leader and a node loses power. Nothing is left behind, not even
// after ctrl-C.
//
//	make demo-ha
//
// It uses Cloudless only through the CLI and HTTP, as users do.
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
	flag.StringVar(&o.cloudless, "cloudless", "bin/cloudless", "path of the cloudless `program`")
	flag.StringVar(&o.app, "app", "build/hello", "path of the `program` to run as the app")
	flag.BoolVar(&o.yes, "yes", false, "do not wait for a key between the steps")
	flag.Parse()
	// Ctrl-C stays caught until the cleanup is done.
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
		d.guide.say("Cleaning up.")
		err = errors.Join(err, d.clear())
	}()
	return d.show(ctx)
}
