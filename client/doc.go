// Package client is the Go SDK of Cloudless: it finds a cluster in the client configuration, connects to it and
// calls its API.
//
//	config, err := client.LoadConfig(path)
//	where, err := config.Context("")
//	c, err := client.Dial(ctx, where)
//	defer c.Close()
//	web, err := c.Workloads().GetWorkload(ctx, &cloudlessv1.GetWorkloadRequest{Name: "web"})
//
// It guarantees that
//   - every connection speaks TLS 1.3 with a server that the cluster's own authority has certified, and that the
//     token goes nowhere else;
//   - every error of a call is one sentence for people and still carries its gRPC status for programs;
//   - calls that create something can be repeated by the SDK without creating it twice;
//   - the configuration file is replaced as a whole and under a lock, readable by its owner alone.
//
// It must not know how a cluster is run, stored or scheduled: whatever it tells comes from the API.
package client
