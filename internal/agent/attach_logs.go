package agent

import (
	"context"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/logfile"
)

// serveLogs sends a replica's log, also after the replica is gone. Following
// ends when the replica has ended for good.
func (a *Agent) serveLogs(ctx context.Context, at *attachment, open *v1.OpenLogs) error {
	at.listen(nil)
	opts := logOptions(open)
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
	err := logfile.Read(ctx, a.logs.path(uid), opts, func(e logfile.Entry) error {
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

func logOptions(open *v1.OpenLogs) logfile.Options {
	opts := logfile.Options{Follow: open.GetFollow(), Tail: -1}
	if open.Tail != nil {
		opts.Tail = int(open.GetTail())
	}
	if since := open.GetSince(); since != nil {
		opts.Since = since.AsTime()
	}
	if until := open.GetUntil(); until != nil {
		opts.Until = until.AsTime()
	}
	return opts
}

// gapText is said where a reader was slower than the limits of the log allow.
const gapText = "more was written than is kept before it was read; read faster, or write less"

func logEntry(replica string, e logfile.Entry) *v1.LogEntry {
	if e.Gap {
		return &v1.LogEntry{Time: timestamppb.New(e.Time), Replica: replica, Error: gapText}
	}
	entry := &v1.LogEntry{
		Time:    timestamppb.New(e.Time),
		Replica: replica,
		Stream:  string(e.Stream),
		Partial: e.Partial,
	}
	if utf8.ValidString(e.Line) {
		entry.Text = e.Line
	} else {
		entry.Raw = []byte(e.Line)
	}
	return entry
}
