// Command cloudless-net is the network process of a node. The agent starts it; see package netd.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/cloudless/cloudless/internal/netd"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "cloudless-net is started by the agent: cloudless-net SOCKET")
		os.Exit(2)
	}
	// The score of the agent would outlive it. Replicas need the network more than anything else but the agent.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-800"), 0)
	// It allocates little and lives long: memory is worth more than the time of the collector.
	debug.SetGCPercent(25)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := netd.Serve(ctx, os.Args[1], log); err != nil {
		log.Error("the network process ends", "error", err)
		os.Exit(1)
	}
}
