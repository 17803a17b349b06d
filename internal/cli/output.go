package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/cloudless/cloudless/internal/spec"
)

// format is what -o says.
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

// forPeople reports whether the output is a table.
func (c *cli) forPeople() bool { return format(c.output) == formatTable }

// printObject writes one object as the API shows it.
func (c *cli) printObject(object proto.Message) error {
	encode := spec.EncodeJSON
	if format(c.output) == formatYAML {
		encode = spec.EncodeYAML
	}
	data, err := encode(object)
	if err != nil {
		return err
	}
	_, err = c.Stdout.Write(data)
	return err
}

// printItem writes one object of a list that has no end: a line of JSON, or a YAML document.
func (c *cli) printItem(object proto.Message) error {
	var out bytes.Buffer
	if format(c.output) == formatYAML {
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
	_, err := c.Stdout.Write(out.Bytes())
	return err
}

// printList writes the objects as {"items": […]}.
func printList[T proto.Message](c *cli, objects []T) error {
	build := listJSON[T]
	if format(c.output) == formatYAML {
		build = listYAML[T]
	}
	data, err := build(objects)
	if err != nil {
		return err
	}
	_, err = c.Stdout.Write(data)
	return err
}

func listJSON[T proto.Message](objects []T) ([]byte, error) {
	items, err := rawMessages(objects)
	if err != nil {
		return nil, err
	}
	return indentedJSON(struct {
		Items []json.RawMessage `json:"items"`
	}{items})
}

func indentedJSON(value any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(value)
	return out.Bytes(), err
}

func listYAML[T proto.Message](objects []T) ([]byte, error) { return keyedYAML("items", objects) }

// keyedYAML is a list under a key.
func keyedYAML[T proto.Message](key string, objects []T) ([]byte, error) {
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
		indent(&out, "- ", data)
	}
	return out.Bytes(), nil
}

// indent writes lines behind two blanks, the first one behind lead.
func indent(out *bytes.Buffer, lead string, data []byte) {
	for line := range bytes.Lines(data) {
		if len(bytes.TrimSpace(line)) > 0 {
			out.WriteString(lead)
		}
		out.Write(line)
		lead = "  "
	}
}

// nothingHere tells whoever looks at an empty table that it is meant to be empty.
func (c *cli) nothingHere(count int, what string, everywhere bool) {
	if count > 0 || !c.forPeople() {
		return
	}
	if everywhere {
		c.note("no %s", what)
		return
	}
	c.note("no %s in namespace %s", what, c.namespace)
}

// age is how long ago something was, in its largest unit.
func age(since *timestamppb.Timestamp, now time.Time) string {
	if since == nil {
		return ""
	}
	return short(now.Sub(since.AsTime()))
}

// short is a length of time in one unit.
func short(d time.Duration) string {
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
