package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// EncodeJSON writes a message in the API's JSON, indented, and always in the same way.
func EncodeJSON(msg proto.Message) ([]byte, error) {
	raw, err := protojson.Marshal(msg)
	if err != nil {
		return nil, encodeError(msg, "JSON", err)
	}
	// protojson varies its spaces on purpose.
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return nil, encodeError(msg, "JSON", err)
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// EncodeYAML writes a message as YAML in the shape of the API's JSON. Decode
// reads it back if it is an object that a file may hold.
func EncodeYAML(msg proto.Message) ([]byte, error) {
	raw, err := protojson.Marshal(msg)
	if err != nil {
		return nil, encodeError(msg, "YAML", err)
	}
	nodes, err := readJSON(raw)
	if err != nil {
		return nil, encodeError(msg, "YAML", err)
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	for _, node := range nodes {
		quoteTabs(node)
		if err := enc.Encode(node); err != nil {
			return nil, encodeError(msg, "YAML", err)
		}
	}
	if err := enc.Close(); err != nil {
		return nil, encodeError(msg, "YAML", err)
	}
	return b.Bytes(), nil
}

// quoteTabs quotes texts with a line that begins with a tab. A block literal of them would
// be unreadable, because the tab would count as wrong indentation.
func quoteTabs(node *yaml.Node) {
	if strings.Contains("\n"+node.Value, "\n\t") {
		node.Style = yaml.DoubleQuotedStyle
	}
	for _, child := range node.Content {
		quoteTabs(child)
	}
}

func encodeError(msg proto.Message, format string, err error) error {
	return fmt.Errorf("write %s as %s: %w", msg.ProtoReflect().Descriptor().Name(), format, err)
}
