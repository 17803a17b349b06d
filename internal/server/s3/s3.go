package s3

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3api/middlewares"
	"github.com/versity/versitygw/s3api/utils"

	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/telemetry"
)

const (
	// defaultRegion is what clients assume that are not told another one.
	defaultRegion = "us-east-1"
	// defaultStall ends a request whose client moves less than stallBytes in that time.
	defaultStall = time.Minute
	// maxParts is the greatest number of parts of an upload.
	maxParts = 10_000
)

// Options configures the gateway.
type Options struct {
	Store     *object.Store
	Directory Directory
	Logger    *slog.Logger
	// Metrics may be nil.
	Metrics *telemetry.S3
	// Region is what clients sign for; us-east-1 if empty.
	Region string
	// Stall is how long a client may stop sending or reading; a minute if 0.
	Stall time.Duration
}

// Gateway answers requests of S3 clients.
type Gateway struct {
	store     *object.Store
	directory Directory
	logger    *slog.Logger
	metrics   *telemetry.S3
	stall     time.Duration
	handler   fasthttp.RequestHandler
	closed    atomic.Bool
}

// running makes sure of versitygw's limit: it keeps some of its configuration in global variables.
var running atomic.Bool

// ErrServed says that another gateway of this process is open.
var ErrServed = errors.New("a process can serve the S3 API only once")

// New returns a gateway. A process can have one at a time.
func New(o Options) (*Gateway, error) {
	if o.Store == nil || o.Directory == nil || o.Logger == nil {
		return nil, errors.New("the S3 API needs a store, a directory and a logger")
	}
	if o.Region == "" {
		o.Region = defaultRegion
	}
	if o.Stall == 0 {
		o.Stall = defaultStall
	}
	if !running.CompareAndSwap(false, true) {
		return nil, ErrServed
	}
	g := &Gateway{store: o.Store, directory: o.Directory, logger: o.Logger, metrics: o.Metrics, stall: o.Stall}
	if err := g.assemble(o.Region); err != nil {
		running.Store(false)
		return nil, err
	}
	return g, nil
}

// assemble makes versitygw's handler.
func (g *Gateway) assemble(region string) error {
	utils.SetBucketNameValidationStrict(true)
	// versitygw must have an account that may do everything. Nobody knows this one.
	root := middlewares.RootUserConfig{Access: "root-" + rand.Text(), Secret: rand.Text()}
	report := reporter{logger: g.logger}
	server, err := s3api.New(&store{reporter: report, objects: g.store, directory: g.directory}, root, region,
		&accounts{reporter: report, directory: g.directory}, nil, nil, nil, &operations{},
		s3api.WithQuiet(), s3api.WithMpMaxParts(maxParts), s3api.WithConcurrencyLimiter(maxRequests, maxRequests))
	if err != nil {
		return fmt.Errorf("starting the S3 API: %w", err)
	}
	app, err := appOf(server)
	if err != nil {
		return err
	}
	g.handler = app.Handler()
	return nil
}

// maxRequests is how many requests versitygw works on at once. The memory of each is bounded by the store; further ones
// get SlowDown.
const maxRequests = 4096

// appOf returns the application of a server, which versitygw only shows to sockets on which it listens itself.
func appOf(server *s3api.S3ApiServer) (*fiber.App, error) {
	field := reflect.ValueOf(server).Elem().FieldByName("app")
	if !field.IsValid() || field.Type() != reflect.TypeFor[*fiber.App]() {
		return nil, errors.New("this version of versitygw has no field with its application")
	}
	return (*fiber.App)(unsafe.Pointer(field.UnsafePointer())), nil
}

// Close makes room for another gateway. Requests must have ended before.
func (g *Gateway) Close() {
	if g.closed.CompareAndSwap(false, true) {
		running.Store(false)
	}
}

// Signed is whether a request has an AWS signature, in whichever form, so that it is meant for the gateway.
func Signed(r *http.Request) bool {
	return claimedKey(r) != ""
}

// Claimed is the access key that a request names; empty without an AWS signature. Nothing has checked the signature.
func Claimed(r *http.Request) string { return claimedKey(r) }
