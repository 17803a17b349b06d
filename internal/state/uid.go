package state

import "github.com/google/uuid"

// NewUID returns a UUIDv7. Uids are ordered by time, so that new objects are neighbours in a table and writes touch few
// of its nodes.
func NewUID() string { return uuid.Must(uuid.NewV7()).String() }
