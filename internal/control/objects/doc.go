// Package objects are the loops that keep what the object store promises. They run on the server that leads the names of
// objects: they give chunks the copies that they lack, compare what nodes have with what the names say, delete what
// nothing refers to, and end what has expired.
//
// It guarantees that
//   - no copy is deleted that a version, a part or an upload in flight needs, also while two servers believe to lead: a
//     node deletes a copy only if it was last written two epochs ago, and every operation that begins to rely on a copy
//     has it written or stamped in its own epoch or the one before;
//   - the names lose no copy of a chunk because of surplus or draining unless enough others remain in the same entry;
//   - each loop is idempotent, remembers nothing that a new leader would need, and survives any error.
//
// It must not know S3, buckets, connections, or how names and chunks are stored.
package objects
