package consensus

import (
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"github.com/cloudless/cloudless/internal/state"
)

// Observer receives durations. It must not block.
type Observer interface {
	// Proposed is called with the outcome of a proposal: accepted, refused or failed.
	Proposed(result string, took time.Duration)
	// Synced is called when entries have been written to disk.
	Synced(took time.Duration)
	// Snapshotted is called when a snapshot has been written.
	Snapshotted(took time.Duration)
}

// noObserver is an Observer that does nothing.
type noObserver struct{}

func (noObserver) Proposed(string, time.Duration) {}
func (noObserver) Synced(time.Duration)           {}
func (noObserver) Snapshotted(time.Duration)      {}

// resultOf distinguishes a refusal by the state from a failure to agree.
func resultOf(err error) string {
	if err == nil {
		return "accepted"
	}
	_, exists := errors.AsType[*state.ExistsError](err)
	_, invalid := errors.AsType[*state.InvalidError](err)
	_, large := errors.AsType[*TooLargeError](err)
	_, full := errors.AsType[*FullError](err)
	if exists || invalid || large || full || state.MovedOn(err) {
		return "refused"
	}
	return "failed"
}

// observedLog measures log writes.
type observedLog struct {
	steppedLog
	observer Observer
}

func (l observedLog) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

func (l observedLog) StoreLogs(logs []*raft.Log) error {
	began := time.Now()
	err := l.steppedLog.StoreLogs(logs)
	l.observer.Synced(time.Since(began))
	return err
}
