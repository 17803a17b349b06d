// Command cloudless-ingress is the ingress process of a node. The agent starts it; see package ingressd.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/cloudless/cloudless/internal/ingressd"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "cloudless-ingress is started by the agent: cloudless-ingress DIR LOGDIR")
		os.Exit(2)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := ingressd.Confine(os.Args[1], os.Args[2]); err != nil {
		log.Error("the ingress process cannot give up its privileges", "error", err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := ingressd.Serve(ctx, ingressd.Process{Dir: os.Args[1], LogDir: os.Args[2], Program: filepath.Base(os.Args[0]), Log: log})
	if err != nil {
		log.Error("the ingress process ends", "error", err)
		os.Exit(1)
	}
}
