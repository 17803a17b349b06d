package command

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/internal/telemetry"
)

// tracePatience is how long a command waits at its end for a collector to take
// its spans. One that is away must not be felt.
const tracePatience = time.Second

// trace begins the span of the command, if the environment says where traces go. Roles trace themselves, by their own
// flag. Nothing that goes wrong with traces is a matter of the command.
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
