// Package origin is what the ingress of a node says on a connection to the object store: for which route it is, and of what.
// The agent passes such connections on to a server as they are. After the first line, they speak HTTP/1.1.
//
// It is pure, and must not know routes or buckets.
package origin

import (
	"errors"
	"io"
	"strings"
)

const (
	// Protocol is what agents and servers agree on in the handshake.
	Protocol = "cloudless-origin"
	// Socket is the name of the agent's socket, in the folder of the cloud below /run.
	Socket = "origin.sock"
	// longest bounds the first line.
	longest = 256
)

// Greeting is the first line of a connection.
type Greeting struct {
	// Route is the uid of the route.
	Route string
	// Bucket is the name of the bucket that is served as a web site. If it is empty, the requests are for the S3 API.
	Bucket string
}

// String is the line as it is sent.
func (g Greeting) String() string { return g.Route + " " + g.Bucket + "\n" }

var errGreeting = errors.New("the connection does not say which route it is for")

// Read reads the first line, and nothing behind it.
func Read(r io.Reader) (Greeting, error) {
	var line []byte
	for one := make([]byte, 1); ; {
		if _, err := io.ReadFull(r, one); err != nil {
			return Greeting{}, err
		}
		if one[0] == '\n' {
			break
		}
		if line = append(line, one[0]); len(line) > longest {
			return Greeting{}, errGreeting
		}
	}
	route, bucket, ok := strings.Cut(string(line), " ")
	if !ok || route == "" || strings.Contains(bucket, " ") {
		return Greeting{}, errGreeting
	}
	return Greeting{Route: route, Bucket: bucket}, nil
}
