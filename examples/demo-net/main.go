// Command demo-net shows step by step how replicas reach each other by name across two NATs. Two machines are behind two
// routers that hide them, as at home, and a server is on the internet. All of them are network namespaces of this
// machine. An app of three services gets requests all the time, while kill -9 ends an agent, UDP is blocked and an
// endpoint goes. Nothing is left behind, not even after ctrl-C.
//
//	make demo-net
//
// It uses Cloudless only through the CLI and HTTP, as users do.
package main

import (
	_ "embed"

	"github.com/cloudless/cloudless/examples/internal/tour"
)

//go:embed app.yaml
var appFile []byte

func main() {
	tour.Main("demo-net", "build/shop", func(t *tour.Tour) []tour.Step {
		d := &demo{t}
		return []tour.Step{d.plugIn, d.join, d.runApp, d.names, d.path, d.killAgent, d.blockUDP, d.loseEndpoint, d.end}
	})
}
