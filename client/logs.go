package client

import (
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"slices"
	"time"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// LongestLogLine is how many bytes of one line of output are joined; a longer one is broken there.
const LongestLogLine = 16 << 20

// LogLine is one whole line of a replica's output.
type LogLine struct {
	Time    time.Time
	Replica string
	// Stream is "stdout" or "stderr".
	Stream string
	// Line is without its line break.
	Line []byte
	// Missing says, instead of a line, why a part of the log is missing.
	Missing string
}

// Logs yields the output of a workload's replicas line by line. It joins the parts of long lines, even if the parts of
// several replicas are interleaved. It ends with the log, or with an error. A followed log resumes at another server if
// its server dies, without losing or repeating a line.
func (c *Client) Logs(ctx context.Context, request *cloudlessv1.LogsRequest) iter.Seq2[LogLine, error] {
	return func(yield func(LogLine, error) bool) {
		joiner := lineJoiner{open: map[logSource]*LogLine{}}
		var failed error
		for entry, err := range c.LogEntries(ctx, request) {
			if failed = err; err != nil {
				break
			}
			if line, whole := joiner.add(entry); whole && !yield(line, nil) {
				return
			}
		}
		for _, line := range joiner.rest() {
			if !yield(line, nil) {
				return
			}
		}
		if failed != nil {
			yield(LogLine{}, failed)
		}
	}
}

// LogEntries is like [Client.Logs] with the entries of the API.
func (c *Client) LogEntries(ctx context.Context, request *cloudlessv1.LogsRequest) iter.Seq2[*cloudlessv1.LogEntry, error] {
	return func(yield func(*cloudlessv1.LogEntry, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		log, err := c.followLogs(ctx, request)
		for err == nil {
			var entry *cloudlessv1.LogEntry
			entry, err = log.next(ctx)
			wanted := err == nil && (!entry.GetMark() || request.GetMarks())
			if wanted && !yield(entry, nil) {
				return
			}
		}
		if !errors.Is(err, io.EOF) {
			yield(nil, err)
		}
	}
}

type logSource struct{ replica, stream string }

// lineJoiner holds unfinished lines.
type lineJoiner struct{ open map[logSource]*LogLine }

// add takes the next entry and returns a line if it completes one.
func (j *lineJoiner) add(entry *cloudlessv1.LogEntry) (LogLine, bool) {
	if entry.GetMark() {
		return LogLine{}, false
	}
	if entry.GetError() != "" {
		return LogLine{Time: entry.GetTime().AsTime(), Replica: entry.GetReplica(), Missing: entry.GetError()}, true
	}
	source := logSource{entry.GetReplica(), entry.GetStream()}
	line, open := j.open[source]
	if !open {
		line = &LogLine{Time: entry.GetTime().AsTime(), Replica: source.replica, Stream: source.stream}
	}
	line.Line = append(append(line.Line, entry.GetText()...), entry.GetRaw()...)
	if entry.GetPartial() && len(line.Line) < LongestLogLine {
		j.open[source] = line
		return LogLine{}, false
	}
	delete(j.open, source)
	return *line, true
}

// rest returns the unfinished lines, in the order in which they began.
func (j *lineJoiner) rest() []LogLine {
	var lines []LogLine
	for _, line := range j.open {
		lines = append(lines, *line)
	}
	slices.SortFunc(lines, func(a, b LogLine) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Replica, b.Replica), cmp.Compare(a.Stream, b.Stream))
	})
	return lines
}
