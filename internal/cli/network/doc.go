// Package network has the commands of cloudless network, which show how nodes and replicas reach each other.
//
// It must not know other commands.
package network
