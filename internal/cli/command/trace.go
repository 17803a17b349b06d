package command

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/internal/telemetry"
)

// tracePatience limits how long a command waits at its end to export its spans, so that a collector that is down does
// not delay it.
const tracePatience = time.Second

// trace starts the span of the command if the environment names a collector. Roles have a flag of their own for that.
// Errors in tracing do not fail the command.
func (e *Env) trace(ctx context.Context, root *cobra.Command, args []string) (_ context.Context, end func(error)) {
	endpoint := os.Getenv(telemetry.OTLPEndpointEnv)
	cmd, _, err := root.Find(args)
	if endpoint == "" || err != nil || !cmd.Runnable() || cmd.GroupID == GroupMachine {
		return ctx, func(error) {}
	}
	e.tracing, err = telemetry.OpenTracing(ctx, telemetry.TraceOptions{Endpoint: endpoint, Service: "cloudless-cli", Version: e.Version})
	if err != nil {
		e.Note("cloudless: traces are not sent: %v", err)
		return ctx, func(error) {}
	}
	ctx, span := e.tracing.Start(ctx, telemetry.SpanInternal, cmd.CommandPath())
	return ctx, func(err error) {
		span.End(err)
		patience, cancel := context.WithTimeout(context.Background(), tracePatience)
		defer cancel()
		e.tracing.Close(patience)
	}
}
