package scheduler

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cloudless/cloudless/internal/spec"
)

// Rule is a condition on one label of a node.
type Rule struct {
	Key      string
	Operator string
	Values   []string

	number  int64
	pattern *regexp.Regexp
	version spec.VersionRange
}

// The operators of rules.
const (
	OpIn        = "in"
	OpNotIn     = "notIn"
	OpExists    = "exists"
	OpNotExists = "notExists"
	OpGreater   = "gt"
	OpLess      = "lt"
	OpVersion   = "version"
	OpMatches   = "matches"
)

// NewRule reads a rule. A missing label fulfils only notIn and notExists.
func NewRule(key, operator string, values ...string) (Rule, error) {
	r := Rule{Key: key, Operator: operator, Values: slices.Sorted(slices.Values(values))}
	one := func() (string, error) {
		if len(values) != 1 {
			return "", fmt.Errorf("%s %s needs one value, not %d", key, operator, len(values))
		}
		return values[0], nil
	}
	switch operator {
	case OpIn, OpNotIn:
		if len(values) == 0 {
			return Rule{}, fmt.Errorf("%s %s needs a value", key, operator)
		}
	case OpExists, OpNotExists:
		if len(values) != 0 {
			return Rule{}, fmt.Errorf("%s %s needs no value", key, operator)
		}
	case OpGreater, OpLess:
		text, err := one()
		if err != nil {
			return Rule{}, err
		}
		if r.number, err = strconv.ParseInt(text, 10, 64); err != nil {
			return Rule{}, fmt.Errorf("%s %s: %q is not a whole number", key, operator, text)
		}
	case OpVersion:
		text, err := one()
		if err != nil {
			return Rule{}, err
		}
		if r.version, err = spec.ParseVersionRange(text); err != nil {
			return Rule{}, fmt.Errorf("%s version: %w", key, err)
		}
	case OpMatches:
		text, err := one()
		if err != nil {
			return Rule{}, err
		}
		if r.pattern, err = regexp.Compile(text); err != nil {
			return Rule{}, fmt.Errorf("%s matches: %q is not a regular expression", key, text)
		}
		r.pattern.Longest()
	default:
		return Rule{}, fmt.Errorf("%q is no operator of a rule", operator)
	}
	return r, nil
}

// holds reports whether labels fulfil the rule.
func (r *Rule) holds(labels map[string]string) bool {
	value, has := labels[r.Key]
	return r.accepts(value, has)
}

// accepts reports whether a label with the value, or a missing one, fulfils the rule.
func (r *Rule) accepts(value string, has bool) bool {
	switch r.Operator {
	case OpIn:
		return has && slices.Contains(r.Values, value)
	case OpNotIn:
		return !has || !slices.Contains(r.Values, value)
	case OpExists:
		return has
	case OpNotExists:
		return !has
	case OpGreater, OpLess:
		n, err := strconv.ParseInt(value, 10, 64)
		return has && err == nil && (r.Operator == OpGreater && n > r.number || r.Operator == OpLess && n < r.number)
	case OpVersion:
		return has && r.version.Contains(value)
	default:
		return has && r.matchesWhole(value)
	}
}

// matchesWhole reports whether the whole value matches. The pattern is not wrapped in ^ and
// $: one with \Q would quote them.
func (r *Rule) matchesWhole(value string) bool {
	found := r.pattern.FindStringIndex(value) // the longest of the leftmost matches
	return found != nil && found[0] == 0 && found[1] == len(value)
}

// explain says why a label with the value, or a missing one, does not fulfil the rule.
func (r *Rule) explain(value string, has bool) string {
	switch {
	case !has && r.Operator == OpIn && len(r.Values) == 1:
		return fmt.Sprintf("label %s=%s is missing", r.Key, r.Values[0])
	case !has:
		return fmt.Sprintf("label %s is missing", r.Key)
	}
	return fmt.Sprintf("label %s is %s, not %s", r.Key, value, r.accepted())
}

// accepted describes what the rule would accept.
func (r *Rule) accepted() string {
	switch r.Operator {
	case OpNotIn:
		return "something else"
	case OpNotExists:
		return "left out"
	case OpGreater:
		return "more than " + r.Values[0]
	case OpLess:
		return "less than " + r.Values[0]
	case OpVersion:
		return "a version " + r.Values[0]
	case OpMatches:
		return "what matches " + r.Values[0]
	default:
		return strings.Join(r.Values, " or ")
	}
}

// The effects of taints.
const (
	NoSchedule       = "NoSchedule"
	PreferNoSchedule = "PreferNoSchedule"
	NoExecute        = "NoExecute"
)

// Taint keeps away replicas that do not tolerate it.
type Taint struct {
	Key, Value, Effect string
}

func (t Taint) String() string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

// Toleration tolerates taints. An empty key tolerates all, an empty value all of the key,
// an empty effect all effects.
type Toleration struct {
	Key, Value, Effect string
	// Seconds is how long an existing replica tolerates NoExecute; 0 means forever. A new
	// placement needs a toleration without a limit.
	Seconds int64
}

func (t Toleration) bears(taint Taint) bool {
	return (t.Key == "" || t.Key == taint.Key) && (t.Value == "" || t.Value == taint.Value) && (t.Effect == "" || t.Effect == taint.Effect)
}

// Tolerates says how long tolerations tolerate a taint: forever, for some seconds, or not at
// all.
func Tolerates(tolerations []Toleration, taint Taint) (seconds int64, forever bool) {
	for _, t := range tolerations {
		if !t.bears(taint) {
			continue
		}
		if t.Seconds == 0 || taint.Effect != NoExecute {
			return 0, true
		}
		seconds = max(seconds, t.Seconds)
	}
	return seconds, false
}
