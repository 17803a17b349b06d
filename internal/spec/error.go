package spec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxViolations is where checking stops: a hopeless message gets a readable
// answer, and costs no more than one with a few mistakes.
const maxViolations = 50

// Violation is one mistake in an object, in words for its author.
type Violation struct {
	// Field is the path as the author writes it: spec.ports[0].port. It is empty for the
	// whole object.
	Field string
	// Message continues the field's name: "must be between 1 and 65535".
	Message string
	// Line and Column begin at 1 and are 0 when there is no file.
	Line, Column int
}

// Error lists everything that is wrong with an input.
type Error struct {
	// File is the name of the file, empty when there is none.
	File       string
	Violations []Violation
}

// Error gives one line for each violation.
func (e *Error) Error() string {
	lines := make([]string, 0, min(len(e.Violations), maxViolations)+1)
	for _, v := range e.Violations[:min(len(e.Violations), maxViolations)] {
		lines = append(lines, e.line(v))
	}
	if len(e.Violations) >= maxViolations {
		lines = append(lines, fmt.Sprintf("there may be more: checking stops after %d", maxViolations))
	}
	return strings.Join(lines, "\n")
}

func (e *Error) line(v Violation) string {
	var parts []string
	if e.File != "" {
		at := e.File
		if v.Line > 0 {
			at += ":" + strconv.Itoa(v.Line) + ":" + strconv.Itoa(v.Column)
		}
		parts = append(parts, at)
	}
	if v.Field != "" {
		parts = append(parts, v.Field)
	}
	return strings.Join(append(parts, v.Message), ": ")
}

// violations collects up to maxViolations.
type violations []Violation

func (v *violations) add(field, format string, args ...any) {
	if v.full() {
		return
	}
	*v = append(*v, Violation{Field: field, Message: fmt.Sprintf(format, args...)})
}

func (v violations) full() bool { return len(v) >= maxViolations }

func (v violations) has(field string) bool {
	return slices.ContainsFunc(v, func(one Violation) bool { return one.Field == field })
}

func (v violations) err() error {
	if len(v) == 0 {
		return nil
	}
	return &Error{Violations: v}
}

// Hint is a command for people to run, with the namespace that the message is about.
func Hint(namespace, command string) string {
	if namespace == "" || namespace == DefaultNamespace {
		return command
	}
	return command + " -n " + namespace
}

// Paths name fields as authors write them: JSON names, list indexes in
// brackets, map keys quoted in brackets.

func fieldPath(parent string, field protoreflect.FieldDescriptor) string {
	return namePath(parent, field.JSONName())
}

func namePath(parent, name string) string {
	if parent == "" {
		return name
	}
	return parent + "." + name
}

func indexPath(parent string, i int) string {
	return parent + "[" + strconv.Itoa(i) + "]"
}

func keyPath(parent, key string) string {
	return parent + "[" + strconv.Quote(key) + "]"
}

// parentPath removes the last step of a path; the path of the root is empty. A quoted key
// may hold dots and brackets, so the path is read from its start.
func parentPath(path string) string {
	parent, quoted := 0, false
	for i := 1; i < len(path); i++ {
		switch c := path[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == '.' || c == '['):
			parent = i
		}
	}
	return path[:parent]
}
