// Package object puts, gets and lists objects: it cuts content into chunks, has enough nodes store them, and then writes
// the object's name. An acknowledged put is on the disks of a write quorum, and every later read on any server sees it.
//
// The names are in package names, on the servers; the chunks are in package chunks, on the nodes. This package must not
// know how either is reached, nor who calls: S3 and the cluster's own API are above it.
package object
