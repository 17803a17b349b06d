// Package client is the Go SDK of Cloudless: it finds a cluster in the client configuration, connects to it and calls
// its API.
//
//	config, err := client.LoadConfig(path)
//	where, err := config.Context("")
//	c, err := client.Dial(ctx, where)
//	defer c.Close()
//	web, err := c.Workloads().GetWorkload(ctx, &cloudlessv1.GetWorkloadRequest{Name: "web"})
//
// It guarantees:
// - Every connection uses TLS 1.3 with a server that the cluster's own authority has certified, and the token goes
// nowhere else.
// - Every error of a call is one sentence for people and still carries its gRPC status for programs.
// - The SDK can retry calls that create something without creating it twice.
// - The configuration file is replaced atomically and under a lock, and only its owner can read it.
//
// It must not know how a cluster is run, stored or scheduled: everything it knows comes from the API.
package client
