package s3

import (
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/metrics"
)

// unknownOperation stands for requests that ended before it was clear what they are.
const unknownOperation = "unknown"

// operations tells each call which operation of the API it is. It implements versitygw's metrics.Manager.
type operations struct{}

// Send implements metrics.Manager.
func (*operations) Send(ctx fiber.Ctx, _ error, action string, _ int64, _ int) {
	if c, ok := ctx.RequestCtx().UserValue(callKey{}).(*call); ok && action != metrics.ActionUndetected && action != "" {
		c.operation = strings.TrimPrefix(action, "s3_")
	}
}

// Close implements metrics.Manager.
func (*operations) Close() {}
