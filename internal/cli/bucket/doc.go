// Package bucket is the commands for buckets and for the access keys of S3 clients.
package bucket
