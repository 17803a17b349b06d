// Package buckets knows buckets and access keys from the state: which bucket has a name and what limits it, who bears an
// access key and what that permits. It also empties and closes buckets. Front ends of the object store ask it; it must not
// know their protocols, nor where chunks are.
package buckets
