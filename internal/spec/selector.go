package spec

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// The same patterns as label_key and label_value in the .proto, whose rules cannot reach
// into a selector. They are compiled when first needed: long repetitions are expensive, and
// few programs select.
var (
	labelKey   = lazyRegexp(`^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	labelValue = lazyRegexp(`^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$`)
)

func lazyRegexp(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

// Selector selects objects by their labels. The zero value selects all.
type Selector struct {
	terms []term
}

type term struct {
	key   string
	op    operator
	value string
}

type operator string

const (
	opEqual    operator = "="
	opNotEqual operator = "!="
	opHas      operator = "has"
	opHasNot   operator = "has not"
)

// ParseSelector reads terms that must all hold, separated by commas: "a=b" (or "a==b"),
// "a!=b" (which a missing label also fulfils), "a" (the label exists) and "!a" (it does
// not). An empty text selects all.
func ParseSelector(s string) (Selector, error) {
	if strings.TrimSpace(s) == "" {
		return Selector{}, nil
	}
	var sel Selector
	for text := range strings.SplitSeq(s, ",") {
		t, err := parseTerm(strings.TrimSpace(text))
		if err != nil {
			return Selector{}, &Error{Violations: []Violation{{
				Field: "labels", Message: fmt.Sprintf("%q is not a label selector such as app=web,tier!=test,disk: %v", s, err),
			}}}
		}
		sel.terms = append(sel.terms, t)
	}
	return sel, nil
}

func parseTerm(s string) (term, error) {
	t := term{key: s, op: opHas}
	if key, value, ok := strings.Cut(s, "!="); ok {
		t = term{key: key, op: opNotEqual, value: value}
	} else if key, value, ok := strings.Cut(s, "="); ok {
		t = term{key: key, op: opEqual, value: strings.TrimPrefix(value, "=")}
	} else if key, ok := strings.CutPrefix(s, "!"); ok {
		t = term{key: key, op: opHasNot}
	}
	t.key, t.value = strings.TrimSpace(t.key), strings.TrimSpace(t.value)
	switch {
	case s == "":
		return term{}, fmt.Errorf("there is nothing between two commas")
	case !labelKey().MatchString(t.key):
		return term{}, fmt.Errorf("%q is not the key of a label", t.key)
	case !labelValue().MatchString(t.value):
		return term{}, fmt.Errorf("%q is not the value of a label", t.value)
	}
	return t, nil
}

// Matches reports whether every term holds for the labels.
func (s Selector) Matches(labels map[string]string) bool {
	return !slices.ContainsFunc(s.terms, func(t term) bool { return !t.matches(labels) })
}

func (t term) matches(labels map[string]string) bool {
	value, has := labels[t.key]
	switch t.op {
	case opEqual:
		return has && value == t.value
	case opNotEqual:
		return !has || value != t.value
	case opHas:
		return has
	default:
		return !has
	}
}

// Empty reports whether the selector selects everything.
func (s Selector) Empty() bool { return len(s.terms) == 0 }

// Names reports whether the selector requires a label, and does not only exclude some.
func (s Selector) Names() bool {
	return slices.ContainsFunc(s.terms, func(t term) bool { return t.op == opEqual || t.op == opHas })
}

// String returns a text that ParseSelector reads as the same selector.
func (s Selector) String() string {
	texts := make([]string, len(s.terms))
	for i, t := range s.terms {
		switch t.op {
		case opHas:
			texts[i] = t.key
		case opHasNot:
			texts[i] = "!" + t.key
		default:
			texts[i] = t.key + string(t.op) + t.value
		}
	}
	return strings.Join(texts, ",")
}
