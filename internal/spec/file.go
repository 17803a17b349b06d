package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// MaxFileSize is the largest size of a file, with all its documents.
const MaxFileSize = 4 << 20

// maxDocuments is how many objects a file may hold.
const maxDocuments = 1000

// errTooDeep refuses a file that nests deeper than any object.
var errTooDeep = fmt.Errorf("nests deeper than %d levels", maxDepth)

// Document is one object of a file, valid but not normalized.
type Document struct {
	Kind    string
	Message proto.Message
	// Line is where the object begins.
	Line int
}

// newObject returns an empty object of a kind that files may hold, else nil.
func newObject(kind string) proto.Message {
	if kind == KindConfiguration {
		return &v1.Configuration{}
	}
	for o := range manifestObjects() {
		if string(o.ProtoReflect().Descriptor().Name()) == kind {
			return o
		}
	}
	return nil
}

// fileKinds are the kinds of objects that can be applied, the usual one first.
var fileKinds = func() []string {
	kinds := []string{KindWorkload}
	for o := range manifestObjects() {
		if kind := string(o.ProtoReflect().Descriptor().Name()); kind != KindWorkload {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}()

// Decode reads a file of YAML or JSON documents. The name is only for errors. All mistakes
// in all documents come as one *Error with lines and columns.
func Decode(name string, data []byte) ([]Document, error) {
	if len(data) > MaxFileSize {
		return nil, fileError(name, 0, "has %d bytes and may have %d; split it into several files", len(data), MaxFileSize)
	}
	nodes, err := readNodes(name, data)
	if err != nil {
		return nil, err
	}
	var docs []Document
	broken := &Error{File: name}
	for _, node := range nodes {
		doc, found, err := decodeObject(node, fileKinds...)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		broken.Violations = append(broken.Violations, found...)
		if len(broken.Violations) >= maxViolations {
			break
		}
		docs = append(docs, doc)
	}
	if len(broken.Violations) > 0 {
		return nil, broken
	}
	return docs, nil
}

// DecodeConfiguration reads a file that holds one Configuration, in the same way.
func DecodeConfiguration(name string, data []byte) (*v1.Configuration, error) {
	if len(data) > MaxFileSize {
		return nil, fileError(name, 0, "has %d bytes and may have %d", len(data), MaxFileSize)
	}
	nodes, err := readNodes(name, data)
	if err != nil {
		return nil, err
	}
	if len(nodes) != 1 {
		return nil, fileError(name, 0, "must hold one object of kind %s, and has %d; write one with: cloudless cluster config get -o yaml", KindConfiguration, len(nodes))
	}
	doc, found, err := decodeObject(nodes[0], KindConfiguration)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(found) > 0 {
		return nil, &Error{File: name, Violations: found}
	}
	return doc.Message.(*v1.Configuration), nil
}

func fileError(name string, line int, format string, args ...any) error {
	v := Violation{Message: fmt.Sprintf(format, args...), Line: line}
	if line > 0 {
		v.Column = 1
	}
	return &Error{File: name, Violations: []Violation{v}}
}

// readNodes returns the root of every document that is not empty.
func readNodes(name string, data []byte) ([]*yaml.Node, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if start := bytes.TrimLeft(data, " \t\r\n"); len(start) > 0 && start[0] == '{' {
		// A YAML flow mapping also begins like this, so what is not JSON is tried as YAML.
		if nodes, err := readJSON(data); err == nil {
			return nodes, tooMany(name, nodes)
		}
	}
	var nodes []*yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return nodes, nil
		}
		if err != nil {
			return nil, syntaxError(name, err)
		}
		if doc.Kind == yaml.DocumentNode && len(doc.Content) == 1 && !isNull(doc.Content[0]) {
			nodes = append(nodes, doc.Content[0])
		}
		if err := tooMany(name, nodes); err != nil {
			return nil, err
		}
	}
}

func tooMany(name string, nodes []*yaml.Node) error {
	if len(nodes) <= maxDocuments {
		return nil
	}
	return fileError(name, nodes[maxDocuments].Line, "has more than %d documents; split it into several files", maxDocuments)
}

var yamlLine = regexp.MustCompile(`^line (\d+): `)

// syntaxError moves the YAML reader's line number to where ours is.
func syntaxError(name string, err error) error {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 0
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	return fileError(name, line, "is not YAML: %s", text)
}

// decodeObject reads one document and checks it. Its error is for failures that are not the
// author's mistake.
func decodeObject(node *yaml.Node, kinds ...string) (Document, violations, error) {
	d := &decoder{kinds: kinds, positions: map[string]position{"": {node.Line, node.Column}}}
	msg := d.object(node)
	if len(d.found) == 0 {
		found, err := violationsOf(msg)
		if err != nil {
			return Document{}, nil, err
		}
		d.found = found
	}
	for i := range d.found {
		d.locate(&d.found[i])
	}
	slices.SortStableFunc(d.found, func(a, b Violation) int { return a.Line - b.Line })
	doc := Document{Message: msg, Line: node.Line}
	if kinded, ok := msg.(interface{ GetKind() string }); ok {
		doc.Kind = kinded.GetKind()
	}
	return doc, d.found, nil
}

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

// manifestObject is the oneof that holds the object of a manifest.
var manifestObject = (&v1.Manifest{}).ProtoReflect().Descriptor().Oneofs().ByName("object")

// manifestObjects yields an empty object of each kind that a manifest can hold.
func manifestObjects() iter.Seq[proto.Message] {
	return func(yield func(proto.Message) bool) {
		fields := manifestObject.Fields()
		for i := range fields.Len() {
			if !yield((&v1.Manifest{}).ProtoReflect().NewField(fields.Get(i)).Message().Interface()) {
				return
			}
		}
	}
}

// ManifestOf puts an object into a manifest. It returns nil for kinds that files cannot hold.
func ManifestOf(o proto.Message) *v1.Manifest {
	fields := manifestObject.Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); f.Message() == o.ProtoReflect().Descriptor() {
			m := &v1.Manifest{}
			m.ProtoReflect().Set(f, protoreflect.ValueOfMessage(o.ProtoReflect()))
			return m
		}
	}
	return nil
}

// ObjectIn returns the object of a manifest and the name of its field, or nil if the manifest is empty.
func ObjectIn(m *v1.Manifest) (o proto.Message, field string) {
	f := m.ProtoReflect().WhichOneof(manifestObject)
	if f == nil {
		return nil, ""
	}
	return m.ProtoReflect().Get(f).Message().Interface(), f.JSONName()
}

// WorkloadsIn returns the workloads among some manifests.
func WorkloadsIn(all []*v1.Manifest) (workloads []*v1.Workload) {
	for _, m := range all {
		if w := m.GetWorkload(); w != nil {
			workloads = append(workloads, w)
		}
	}
	return workloads
}
