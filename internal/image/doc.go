// Package image makes OCI images out of local files, names images and sends them to a
// registry.
//
// It guarantees:
//
// - An image name without a registry means the cluster's own registry and nothing else.
// - The same program with the same options gives the same image digest, on any machine and
// at any time.
// - A file that could not run in a container is refused before anything is sent, in one
// sentence that says why and what to do.
// - A layer is streamed from the file whenever it is read, so that memory use does not grow
// with the size of the program.
//
// It must not know the cluster: neither its API nor its credentials. An http.RoundTripper
// knows where a registry is and how to talk to it.
package image
