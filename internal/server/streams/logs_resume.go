package streams

import (
	"cmp"
	"fmt"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/logfile"
	"github.com/cloudless/cloudless/internal/spec"
)

// Positions that only servers send. All others come from package logfile.
const (
	positionStart   = "start" // the reader has received nothing of this replica yet
	positionLeftOut = "none"  // the reader gets nothing of this replica
)

// checkPositions refuses malformed positions.
func checkPositions(request *v1.LogsRequest) error {
	for replica, position := range request.GetResume().GetReplicas() {
		if position == positionStart || position == positionLeftOut {
			continue
		}
		if _, err := logfile.ParsePosition(position); err != nil {
			return &spec.Error{Violations: []spec.Violation{{Field: fmt.Sprintf("resume.replicas[%s]", replica), Message: err.Error()}}}
		}
	}
	return nil
}

// chooseReplicas splits the replicas with a log into those to read and the others. Replicas
// that have ended are left out, unless the request includes them or all have ended. A reader
// that resumes names the replicas that were left out; those that have ended since are read.
func chooseReplicas(replicas []*v1.Replica, request *v1.LogsRequest) (chosen, others []*v1.Replica) {
	if resume := request.GetResume(); resume != nil {
		return split(replicas, func(r *v1.Replica) bool {
			return resume.GetReplicas()[r.GetMetadata().GetName()] != positionLeftOut
		})
	}
	if request.GetEnded() || request.GetReplica() != "" || len(replicas) == 0 {
		return replicas, nil
	}
	chosen, others = split(replicas, func(r *v1.Replica) bool { return spec.Live(r.GetStatus().GetPhase()) })
	if len(chosen) > 0 {
		return chosen, others
	}
	newest := slices.MaxFunc(replicas, func(a, b *v1.Replica) int { return cmp.Compare(a.GetMetadata().GetUid(), b.GetMetadata().GetUid()) })
	return split(replicas, func(r *v1.Replica) bool { return r == newest })
}

func split(replicas []*v1.Replica, is func(*v1.Replica) bool) (yes, no []*v1.Replica) {
	for _, r := range replicas {
		if is(r) {
			yes = append(yes, r)
		} else {
			no = append(no, r)
		}
	}
	return yes, no
}

// openLogs is the request for the replica's node. Replicas that the caller does not know are
// read from their beginning: those that were created while the log was followed, and those
// that a reader who resumes has not seen.
func openLogs(request *v1.LogsRequest, r *v1.Replica, isNew bool) *v1.OpenLogs {
	open := &v1.OpenLogs{
		ReplicaUid: r.GetMetadata().GetUid(), Follow: request.GetFollow(), Until: request.GetUntil(),
		Mark: request.GetFollow() || request.GetMarks(),
	}
	position, isKnown := request.GetResume().GetReplicas()[r.GetMetadata().GetName()]
	switch {
	case isKnown && position != positionStart:
		open.After = position
	case isKnown, !isNew && request.GetResume() == nil:
		open.Tail, open.Since = request.Tail, request.GetSince()
	}
	return open
}

// readProgress is how far a replica's log has been read.
type readProgress struct {
	open  *v1.OpenLogs
	blind bool // lines came without a position, from an agent of an older version
}

// note remembers the position after an entry.
func (p *readProgress) note(e *v1.LogEntry) {
	switch {
	case e.GetPosition() != "":
		p.open.After = e.GetPosition()
	case e.GetError() == "":
		p.blind = true
	}
}

// resume prepares the next request: reading continues after the last entry. It returns
// false if that position is unknown. Reading then continues with new entries only.
func (p *readProgress) resume() bool {
	if !p.blind {
		return true
	}
	none := int32(0)
	p.open.Tail, p.open.Since, p.blind = &none, nil, false
	return false
}
