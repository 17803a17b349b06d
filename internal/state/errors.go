package state

import (
	"errors"
	"fmt"
)

// ErrLagged means that a subscriber has lost changes. It must subscribe again and start from the new snapshot.
var ErrLagged = errors.New("changes were lost because the subscriber was too slow or the state was replaced: subscribe again")

// ConflictError refuses a change that expected another version of an object.
type ConflictError struct {
	Kind      Kind
	Name, UID string
	// Expected is the version that the change named, Actual the stored one.
	Expected, Actual uint64
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s has changed: you named version %d, it is at version %d now; read it again and repeat the change",
		describe(e.Kind, e.Name, e.UID), e.Expected, e.Actual)
}

// ExistsError refuses to create an object that exists, or to use a name that is taken.
type ExistsError struct {
	Kind Kind
	// Name and UID of the existing object.
	Name, UID string
}

func (e *ExistsError) Error() string {
	return fmt.Sprintf("%s exists already (uid %s): choose another name, or update or delete that one",
		describe(e.Kind, e.Name, e.UID), e.UID)
}

// NotFoundError refuses to change an object that does not exist.
type NotFoundError struct {
	Kind      Kind
	Name, UID string
}

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("%s does not exist: it may have been deleted; list what is there, or create it",
		describe(e.Kind, e.Name, e.UID))
}

// MovedOn reports whether a transaction was refused because the state has changed since the snapshot that it was built
// from. Built again from a newer snapshot, it may succeed.
func MovedOn(err error) bool {
	if _, ok := errors.AsType[*ConflictError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*NotFoundError](err); ok {
		return true
	}
	_, ok := errors.AsType[*ExistsError](err)
	return ok
}

// InvalidError refuses a transaction that is malformed or that this release does not understand.
type InvalidError struct {
	// Change is the position of the wrong change, -1 if the transaction itself is wrong.
	Change int
	Reason string
}

func (e *InvalidError) Error() string {
	if e.Change < 0 {
		return "the transaction " + e.Reason
	}
	return fmt.Sprintf("change %d of the transaction %s", e.Change, e.Reason)
}

func describe(kind Kind, name, uid string) string {
	if name == "" {
		return fmt.Sprintf("%s %s", kind, uid)
	}
	return fmt.Sprintf("%s %q", kind, name)
}
