// Package membership is how servers and nodes become members of a cluster and stop
// being members: founding a cluster, enrollment, certificates, removal, and the checks
// that every identity runs only once. It also has the part of a server that finds and
// asks the other servers.
//
// It guarantees that a removed member is cut off by every server that learns of the
// removal. It knows no workloads, no images and no sessions of agents.
package membership
