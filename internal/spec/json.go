package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
)

// maxDepth bounds the nesting of a file. The API needs about six levels.
const maxDepth = 100

// readJSON reads one or more JSON values into a YAML tree, with their positions. In theory
// YAML includes JSON, but its reader refuses some escapes that JSON writers use.
func readJSON(data []byte) ([]*yaml.Node, error) {
	r := &jsonReader{data: data, dec: json.NewDecoder(bytes.NewReader(data)), line: 1}
	r.dec.UseNumber()
	var nodes []*yaml.Node
	for {
		n, err := r.value(0)
		if errors.Is(err, io.EOF) {
			return nodes, nil
		}
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
}

// ExplainJSON says what in a JSON text does not match the message, nil if it finds nothing.
// It is for callers that could not decode the text.
func ExplainJSON(data []byte, message proto.Message) *Error {
	nodes, err := readJSON(data)
	if err != nil {
		return &Error{Violations: violations{{Message: "is not valid JSON: " + err.Error()}}}
	}
	if len(nodes) != 1 {
		return &Error{Violations: violations{{Message: fmt.Sprintf("must be one JSON value, not %d", len(nodes))}}}
	}
	d := &decoder{positions: map[string]position{}, strict: true}
	d.message("", message.ProtoReflect().New(), nodes[0], 0)
	if len(d.found) == 0 {
		return nil
	}
	return &Error{Violations: d.found}
}

type jsonReader struct {
	data []byte
	dec  *json.Decoder
	// How far the reader has counted lines.
	offset, line, lineStart int
}

// next returns the next token and the node for it with its position.
func (r *jsonReader) next() (json.Token, *yaml.Node, error) {
	from := int(r.dec.InputOffset())
	token, err := r.dec.Token()
	if err != nil {
		return nil, nil, err
	}
	for from < len(r.data) && bytes.IndexByte([]byte(" \t\r\n,:"), r.data[from]) >= 0 {
		from++
	}
	for ; r.offset < from; r.offset++ {
		if r.data[r.offset] == '\n' {
			r.line, r.lineStart = r.line+1, r.offset+1
		}
	}
	return token, &yaml.Node{Kind: yaml.ScalarNode, Line: r.line, Column: from - r.lineStart + 1}, nil
}

func (r *jsonReader) value(depth int) (*yaml.Node, error) {
	token, node, err := r.next()
	if err != nil {
		return nil, err
	}
	return node, r.fill(node, token, depth)
}

// fill gives a node the content that begins with a token.
func (r *jsonReader) fill(node *yaml.Node, token json.Token, depth int) error {
	switch t := token.(type) {
	case json.Delim:
		if depth == maxDepth {
			return errTooDeep
		}
		if t == '[' {
			node.Kind, node.Tag = yaml.SequenceNode, "!!seq"
		} else {
			node.Kind, node.Tag = yaml.MappingNode, "!!map"
		}
		return r.content(node, depth+1)
	case string:
		node.Tag, node.Value = "!!str", t
	case json.Number:
		node.Tag, node.Value = "!!float", t.String()
		if digits(strings.TrimPrefix(t.String(), "-"), len(t)) {
			node.Tag = "!!int"
		}
	case bool:
		node.Tag, node.Value = "!!bool", fmt.Sprint(t)
	default:
		node.Tag, node.Value = "!!null", "null"
	}
	return nil
}

// content reads up to the bracket that closes the node.
func (r *jsonReader) content(node *yaml.Node, depth int) error {
	for {
		token, child, err := r.next()
		if err != nil {
			return noEOF(err)
		}
		if token == json.Delim(']') || token == json.Delim('}') {
			return nil
		}
		if err := r.fill(child, token, depth); err != nil {
			return err
		}
		node.Content = append(node.Content, child)
	}
}

// noEOF distinguishes the end in the middle of a value from the end of the file.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
