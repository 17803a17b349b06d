package state

import "github.com/google/uuid"

// NewUID names a new object for good. It is ordered by time, so that the newest
// objects are found together, and a table changes in few places.
func NewUID() string { return uuid.Must(uuid.NewV7()).String() }
