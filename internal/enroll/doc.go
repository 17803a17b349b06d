// Package enroll makes a machine a member of a cluster: it finds a server of the token's cluster, asks the cluster to
// take the machine as a node or as a server, and stores the answer in the data folder.
//
// It must not know the command line, nor what a node or a server does once it is a member.
package enroll
