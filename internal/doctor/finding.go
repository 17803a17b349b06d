package doctor

import (
	"cmp"
	"slices"
)

// Level is how bad a finding is.
type Level string

// The levels. A failure keeps something from working; a warning does not yet. Unknown is what nothing on the machine tells.
const (
	OK      Level = "ok"
	Unknown Level = "unknown"
	Warn    Level = "warn"
	Fail    Level = "fail"
)

// Finding is the result of one check.
type Finding struct {
	Check string `json:"check" yaml:"check"`
	Level Level  `json:"level" yaml:"level"`
	// Text is one sentence without a full stop.
	Text string `json:"text" yaml:"text"`
	// Mend is the command that fixes the problem, or a few words if there is none.
	Mend string `json:"mend,omitempty" yaml:"mend,omitempty"`
}

// Worst is the worst level among the findings.
func Worst(all []Finding) Level {
	rank := []Level{OK, Unknown, Warn, Fail}
	worst := OK
	for _, f := range all {
		if cmp.Compare(slices.Index(rank, f.Level), slices.Index(rank, worst)) > 0 {
			worst = f.Level
		}
	}
	return worst
}

func ok(text string) []Finding         { return []Finding{{Level: OK, Text: text}} }
func warn(text, mend string) []Finding { return []Finding{{Level: Warn, Text: text, Mend: mend}} }
func fail(text, mend string) []Finding { return []Finding{{Level: Fail, Text: text, Mend: mend}} }
