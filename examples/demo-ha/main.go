// Command demo-ha shows step by step what a cluster survives. Three servers and three
// nodes run in network namespaces of this machine. An app gets requests all the time,
// while kill -9 ends the leader and a node loses power. Nothing is left behind, not even
// after ctrl-C.
//
//	make demo-ha
//
// It uses Cloudless only through the CLI and HTTP, as users do.
package main

import "github.com/cloudless/cloudless/examples/internal/tour"

func main() {
	tour.Main("demo-ha", "build/hello", func(t *tour.Tour) []tour.Step {
		d := &demo{t}
		return []tour.Step{d.plugIn, d.found, d.addNodes, d.runApp, d.loseLeader, d.loseNode, d.bringBack, d.end}
	})
}
