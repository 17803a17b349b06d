// Command cloudless-shim stands between containerd and one container: it is containerd's
// own shim for runc with a log writer.
//
// If the standard output and error of a task are a log's URI (see package logfile), the
// shim itself writes the output there, with time and stream, even while containerd
// restarts. Everything else is as in the stock shim. When the shim reports that a container
// has exited, its output is on disk. If another process keeps the output open, the shim
// waits only for a limited time.
//
// If a container has secret variables, the shim adds them to its processes. They are in its
// memory and in files on a file system in memory, never on a disk (secrets.go).
//
// An external containerd that cannot run this shim uses the program as the logging binary
// of its stock shim instead: "cloudless-shim log URI".
//
// There is one such process for each container, so it must stay small. It must not know
// workloads, servers or the agent, nor link their dependencies.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/sirupsen/logrus"

	"github.com/cloudless/cloudless/internal/logfile"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == logfile.Command {
		if err := runLogger(os.Args[2]); err != nil {
			fmt.Fprintf(os.Stderr, "cloudless-shim: %v\n", err)
			os.Exit(1)
		}
		return
	}
	// Package shim finds the service here.
	registry.Register(&plugin.Registration{
		Type:     plugins.TTRPCPlugin,
		ID:       "task",
		Requires: []plugin.Type{plugins.EventPlugin, plugins.InternalPlugin},
		InitFn:   newPlugin,
	})
	shim.RunShim(context.Background(), manager.NewShimManager("io.containerd.cloudless.v1"))
}

// newPlugin wraps the stock service.
func newPlugin(ic *plugin.InitContext) (any, error) {
	logger := logrus.StandardLogger() // package shim has prepared it
	logger.SetFormatter(quiet{logger.Formatter})
	events, err := ic.GetByID(plugins.EventPlugin, "publisher")
	if err != nil {
		return nil, err
	}
	stop, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
	if err != nil {
		return nil, err
	}
	outputs := newOutputs()
	inner, err := task.NewTaskService(ic.Context, &publisher{events.(shim.Publisher), outputs}, stop.(shutdown.Service))
	if err != nil {
		return nil, err
	}
	return &service{TTRPCTaskService: inner, outputs: outputs, secrets: map[string]secrets{}}, nil
}
