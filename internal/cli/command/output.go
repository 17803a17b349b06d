package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// format is the value of -o.
type format string

const (
	formatTable format = "table"
	formatJSON  format = "json"
	formatYAML  format = "yaml"
)

func parseFormat(s string) (format, error) {
	switch f := format(s); f {
	case formatTable, formatJSON, formatYAML:
		return f, nil
	}
	return "", &usageError{err: fmt.Errorf("output format %q is not known: use table, json or yaml", s), command: "cloudless"}
}

// ForPeople reports whether the output is a table.
func (e *Env) ForPeople() bool { return format(e.output) == formatTable }

// WantsYAML reports whether the output is YAML.
func (e *Env) WantsYAML() bool { return format(e.output) == formatYAML }

// PreferYAML switches from a table to YAML, for objects without a table.
func (e *Env) PreferYAML() {
	if e.ForPeople() {
		e.output = string(formatYAML)
	}
}

// PrintObject writes one object as the API shows it.
func (e *Env) PrintObject(object proto.Message) error {
	encode := spec.EncodeJSON
	if e.WantsYAML() {
		encode = spec.EncodeYAML
	}
	data, err := encode(object)
	if err != nil {
		return err
	}
	_, err = terminal.Safe(e.Stdout).Write(data)
	return err
}

// PrintItem writes one object of an endless list: a line of JSON, or a YAML document.
func (e *Env) PrintItem(object proto.Message) error {
	var out bytes.Buffer
	if e.WantsYAML() {
		data, err := spec.EncodeYAML(object)
		if err != nil {
			return err
		}
		out.WriteString("---\n")
		out.Write(data)
	} else {
		data, err := spec.EncodeJSON(object)
		if err != nil {
			return err
		}
		if err := json.Compact(&out, data); err != nil {
			return err
		}
		out.WriteByte('\n')
	}
	_, err := terminal.Safe(e.Stdout).Write(out.Bytes())
	return err
}

// PrintList writes the objects as {"items": […]}.
func PrintList[T proto.Message](e *Env, objects []T) error {
	build := listJSON[T]
	if e.WantsYAML() {
		build = listYAML[T]
	}
	data, err := build(objects)
	if err != nil {
		return err
	}
	_, err = terminal.Safe(e.Stdout).Write(data)
	return err
}

func listJSON[T proto.Message](objects []T) ([]byte, error) {
	items, err := RawMessages(objects)
	if err != nil {
		return nil, err
	}
	return IndentedJSON(struct {
		Items []json.RawMessage `json:"items"`
	}{items})
}

func IndentedJSON(value any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(value)
	return out.Bytes(), err
}

func listYAML[T proto.Message](objects []T) ([]byte, error) { return KeyedYAML("items", objects) }

// KeyedYAML is a list under a key.
func KeyedYAML[T proto.Message](key string, objects []T) ([]byte, error) {
	if len(objects) == 0 {
		return []byte(key + ": []\n"), nil
	}
	var out bytes.Buffer
	out.WriteString(key + ":\n")
	for _, object := range objects {
		data, err := spec.EncodeYAML(object)
		if err != nil {
			return nil, err
		}
		Indent(&out, "- ", data)
	}
	return out.Bytes(), nil
}

// Indent writes lines indented by two blanks, the first one after lead.
func Indent(out *bytes.Buffer, lead string, data []byte) {
	for line := range bytes.Lines(data) {
		if len(bytes.TrimSpace(line)) > 0 {
			out.WriteString(lead)
		}
		out.Write(line)
		lead = "  "
	}
}

// NoteEmpty notes below an empty table that there is nothing to show.
func (e *Env) NoteEmpty(count int, what string, everywhere bool) {
	if count > 0 || !e.ForPeople() {
		return
	}
	if everywhere {
		e.Note("no %s", what)
		return
	}
	e.Note("no %s in namespace %s", what, e.Namespace)
}

// Age is the time since something happened, in its largest unit.
func Age(since *timestamppb.Timestamp, now time.Time) string {
	if since == nil {
		return ""
	}
	return ShortDuration(now.Sub(since.AsTime()))
}

// ShortDuration is a duration in one unit.
func ShortDuration(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// PrintValue writes a value that is not an API object.
func (e *Env) PrintValue(value any) error {
	if e.WantsYAML() {
		var out bytes.Buffer // the encoder writes pieces
		encoder := yaml.NewEncoder(&out)
		encoder.SetIndent(2)
		if err := errors.Join(encoder.Encode(value), encoder.Close()); err != nil {
			return err
		}
		_, err := terminal.Safe(e.Stdout).Write(out.Bytes())
		return err
	}
	encoder := json.NewEncoder(terminal.Safe(e.Stdout)) // which writes a value at once
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// PrintRemoved shows a removed object, as an item of a list if there are several.
func (e *Env) PrintRemoved(noun, name string, object proto.Message, several bool) error {
	switch {
	case e.ForPeople():
		return e.Printf("%s %s removed\n", noun, name)
	case several:
		return e.PrintItem(object)
	}
	return e.PrintObject(object)
}

func RawMessages[T proto.Message](objects []T) ([]json.RawMessage, error) {
	items := make([]json.RawMessage, 0, len(objects))
	for _, object := range objects {
		data, err := spec.EncodeJSON(object)
		if err != nil {
			return nil, err
		}
		items = append(items, data)
	}
	return items, nil
}

// Section writes a blank line, a heading and a table.
func (e *Env) Section(heading string, t *terminal.Table) error {
	if err := e.Printf("\n%s\n", terminal.StyleFor(e.Stdout).Paint(terminal.Bold, heading)); err != nil {
		return err
	}
	return t.Flush()
}
