// Package identity identifies the members of a cluster and authenticates them: SPIFFE ids, the cluster's certificate
// authority, join tokens and API tokens, sealed secrets, the TLS configurations of both ends, and the rotation of
// certificates while connections stay open.
//
// It guarantees that
// - an id, a token and a certificate are accepted in exactly one written form;
// - a certificate says what the cluster decided, never what the requester wrote into its request;
// - every connection speaks TLS 1.3 and both ends are members of the same cluster; a joining machine verifies the
// server by its token alone, before it sends a byte of its own;
// - no secret appears in an error, in a log record or in what fmt prints.
//
// It is cryptography and names only. It must not know of gRPC, HTTP, Raft or the tables of the state, nor which caller
// may do what: the packages that import it store its results and authorize identities.
package identity
