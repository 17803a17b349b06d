package agent

import (
	"context"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/logfile"
)

// serveLogs sends a replica's log, even after the replica is gone. Following ends when the
// replica has ended for good.
func (a *Agent) serveLogs(ctx context.Context, at *attachment, open *v1.OpenLogs) error {
	at.listen(nil)
	opts, err := logOptions(open)
	if err != nil {
		return at.refuse(err)
	}
	uid := open.GetReplicaUid()
	var name string
	switch r := a.replica(uid); {
	case r != nil:
		name, opts.Done = r.name(), r.end()
	case uidPattern.MatchString(uid) && a.logs.exists(uid):
		opts.Follow = false
	default:
		return at.refuse(fmt.Errorf("this node has no log of replica %q: it never ran here, or its log's retention has passed", uid))
	}
	var sendErr error
	err = logfile.Read(ctx, a.logs.path(uid), opts, func(e logfile.Entry) error {
		sendErr = at.send(&v1.AttachUp{Message: &v1.AttachUp_Log{Log: logEntry(name, e)}})
		return sendErr
	})
	if err != nil && sendErr == nil && ctx.Err() == nil {
		return at.refuse(err)
	}
	if err != nil {
		return err
	}
	return at.finish()
}

func logOptions(open *v1.OpenLogs) (logfile.Options, error) {
	opts := logfile.Options{Follow: open.GetFollow(), Begin: open.GetMark(), Tail: -1}
	if open.Tail != nil {
		opts.Tail = int(open.GetTail())
	}
	if since := open.GetSince(); since != nil {
		opts.Since = since.AsTime()
	}
	if until := open.GetUntil(); until != nil {
		opts.Until = until.AsTime()
	}
	if open.GetAfter() == "" {
		return opts, nil
	}
	after, err := logfile.ParsePosition(open.GetAfter())
	opts.After = &after
	return opts, err
}

// gapText appears where lines are missing: the log's limits removed them before they were
// read, or a crash lost them.
const gapText = "lines are missing here: they were removed by the log's limits before they were read, or lost in a crash of the machine"

func logEntry(replica string, e logfile.Entry) *v1.LogEntry {
	entry := &v1.LogEntry{Replica: replica, Position: e.Position.String()}
	if !e.Time.IsZero() {
		entry.Time = timestamppb.New(e.Time)
	}
	switch {
	case e.Begin:
		entry.Mark = true
		return entry
	case e.Gap:
		entry.Error = gapText
		return entry
	}
	entry.Stream, entry.Partial = string(e.Stream), e.Partial
	if utf8.ValidString(e.Line) {
		entry.Text = e.Line
	} else {
		entry.Raw = []byte(e.Line)
	}
	return entry
}
