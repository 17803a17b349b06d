package spec_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// hostile is a message in which nearly everything is wrong.
func hostile(labels int) *v1.EnrollRequest {
	m := &v1.EnrollRequest{Token: "t", Csr: []byte("c"), Name: "machine", Labels: map[string]string{}}
	for i := range labels {
		m.Labels[fmt.Sprintf("-%d", i)] = "-"
	}
	return m
}

func TestValidationStopsAfter50Violations(t *testing.T) {
	err := spec.Validate(hostile(10_000))
	broken, ok := errors.AsType[*spec.Error](err)
	if !ok {
		t.Fatalf("a message with 10,000 wrong labels: %v", err)
	}
	if len(broken.Violations) != 50 {
		t.Errorf("%d violations, want the first 50", len(broken.Violations))
	}
	if lines := strings.Split(err.Error(), "\n"); lines[len(lines)-1] != "there may be more: checking stops after 50" {
		t.Errorf("the last line is %q", lines[len(lines)-1])
	}
}

// The cost of an invalid message must not grow with the number of its mistakes.
func TestInvalidMessagesCostNoMoreForMoreMistakes(t *testing.T) {
	allocs := func(labels int) float64 {
		m := hostile(labels)
		return testing.AllocsPerRun(1, func() { _ = spec.Validate(m) })
	}
	few, many := allocs(5_000), allocs(100_000)
	if many > 2*few {
		t.Errorf("%d allocations for 5,000 mistakes, %d for 100,000", int(few), int(many))
	}
}

// Errors repeat the invalid value, but not megabytes of it.
func TestLongKeyIsClippedInTheError(t *testing.T) {
	m := hostile(0)
	m.Labels[strings.Repeat("-", 1<<20)] = ""
	if err := spec.Validate(m); err == nil || len(err.Error()) > 2<<10 {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
}

// A violation after thousands of valid entries is still found.
func TestViolationAfterManyValidEntriesIsFound(t *testing.T) {
	m := &v1.Report{}
	for range 5_000 {
		m.Events = append(m.Events, &v1.EventReport{Severity: "info", Reason: "Seen"})
	}
	if err := spec.Validate(m); err != nil {
		t.Errorf("a valid message is refused: %v", err)
	}
	m.Events[4_999].Severity = "loud"
	err := spec.Validate(m)
	if err == nil || err.Error() != "events[4999].severity: must be info or warning" {
		t.Errorf("a wrong severity at the end: %v", err)
	}
}

// The first entries of lists and maps are checked without the rest, so no rule may require more than one entry, nor
// compare a list with anything else.
func TestNoRuleNeedsAWholeList(t *testing.T) {
	protoregistry.GlobalFiles.RangeFilesByPackage("cloudless.v1", func(file protoreflect.FileDescriptor) bool {
		checkListRules(t, file.Messages())
		return true
	})
}

func checkListRules(t *testing.T, messages protoreflect.MessageDescriptors) {
	t.Helper()
	for i := range messages.Len() {
		message := messages.Get(i)
		if rules, err := protovalidate.ResolveMessageRules(message); err != nil || rules != nil {
			t.Errorf("%s has rules of its own, or they cannot be read: %v", message.FullName(), err)
		}
		for j := range message.Fields().Len() {
			field := message.Fields().Get(j)
			rules, err := protovalidate.ResolveFieldRules(field)
			if err != nil {
				t.Fatal(err)
			}
			if (field.IsList() || field.IsMap()) && needsAll(rules) {
				t.Errorf("%s has a rule that cannot be checked on its first entries: %v", field.FullName(), rules)
			}
		}
		checkListRules(t, message.Messages())
	}
}

func needsAll(rules *validate.FieldRules) bool {
	return len(rules.GetCel()) > 0 || rules.GetRepeated().GetMinItems() > 1 || rules.GetMap().GetMinPairs() > 1
}
