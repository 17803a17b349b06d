package streams

import (
	"cmp"
	"fmt"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/logfile"
	"github.com/cloudless/cloudless/internal/spec"
)

// Positions that only servers give: of a replica that was to be read and of which nothing has come yet, and of one that
// was left out. All others are those of package logfile.
const (
	positionStart   = "start"
	positionLeftOut = "none"
)

// checkPositions refuses positions that no log gave.
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

// chooseReplicas divides the replicas that have a log into those that the request is about and the others: those that
// have ended, unless all have or they are asked for. A reader that resumes said which it was not to have; what has ended
// since then is new to it.
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

// openLogs is what to ask the replica's node for. Replicas that the request cannot know are read whole: those that came
// while the log was followed, and those that a reader who resumes has not seen.
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

// logPlace is how far a replica's log was read from its node.
type logPlace struct {
	open  *v1.OpenLogs
	blind bool // lines came without a position: the agent is of an older version
}

// note remembers where reading resumes behind the entry.
func (p *logPlace) note(e *v1.LogEntry) {
	switch {
	case e.GetPosition() != "":
		p.open.After = e.GetPosition()
	case e.GetError() == "":
		p.blind = true
	}
}

// resume has the next reading go on behind the last entry, and reports false if that cannot be known. It then goes on
// with what is new.
func (p *logPlace) resume() bool {
	if !p.blind {
		return true
	}
	none := int32(0)
	p.open.Tail, p.open.Since, p.blind = &none, nil, false
	return false
}
