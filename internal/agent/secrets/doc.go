// Package secrets keeps the secrets of a node's replicas, and gives each replica its own: in files, and in a file with
// variables that the driver reads.
//
// Everything is in one folder on a file system in memory (Mount), so that no value ever reaches a disk of the node, and
// the values survive a restart of the agent. A reboot removes them: then a server must send them again.
//
//	.values/UID.VERSION   one version of a secret, with the replicas that get it
//	.tmp/                 what is being written
//	REPLICA/state         which versions the replica has, and as which user its program runs
//	REPLICA/env           its variables, for the driver
//	REPLICA/0, 1 ...      one folder for each folder in which it has files, which is mounted there read-only
//
// What the package guarantees:
//   - A replica gets only what the server says is for that replica.
//   - A file of a running replica is replaced in one step: its readers see the old content or the new one.
//   - A version that has expired is removed, files included. Programs keep running.
//   - Files that are damaged or not of this package are refused, whatever is in them.
//   - No error, log line or event has a value.
//
// The package must not know sessions, drivers, or what a replica does with its secrets.
package secrets
