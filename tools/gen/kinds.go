package main

import (
	"bytes"
	"fmt"
	"go/format"
	"os"
	"strings"
	"text/template"

	"google.golang.org/protobuf/reflect/protoreflect"

	_ "embed"
)

const (
	stateFile    = "cloudless/state/v1/state.proto"
	statePackage = "cloudless.state.v1"
)

//go:embed kinds.go.tmpl
var kindsSource string

var kindsTemplate = template.Must(template.New("kinds").Parse(kindsSource))

// kind is a kind of stored object: a field of Object.kind in state.proto, with its options from options.proto.
type kind struct {
	Field       string // gossip_key
	Go          string // GossipKey
	Plural      string // GossipKeys
	Words       string // gossip key
	PluralWords string // gossip keys
	Type        string // *statev1.GossipKey

	Named, Namespaced, Single, OwnGetters bool
}

// writeKinds writes the Go code that stores the kinds of state.proto.
func writeKinds(files []protoreflect.FileDescriptor, path string) error {
	source, err := kindsCode(files)
	if err != nil {
		return err
	}
	return os.WriteFile(path, source, 0o644)
}

func kindsCode(files []protoreflect.FileDescriptor) ([]byte, error) {
	kinds, err := storedKinds(files)
	if err != nil {
		return nil, err
	}
	var source bytes.Buffer
	if err := kindsTemplate.Execute(&source, kinds); err != nil {
		return nil, err
	}
	return format.Source(source.Bytes())
}

// storedKinds returns the kinds in the order of their declaration.
func storedKinds(files []protoreflect.FileDescriptor) ([]kind, error) {
	for _, file := range files {
		if file.Path() != stateFile {
			continue
		}
		fields := file.Messages().ByName("Object").Oneofs().ByName("kind").Fields()
		kinds := make([]kind, fields.Len())
		for i := range kinds {
			var err error
			if kinds[i], err = storedKind(fields.Get(i)); err != nil {
				return nil, fmt.Errorf("%s: %w", stateFile, err)
			}
		}
		return kinds, nil
	}
	return nil, fmt.Errorf("%s is missing", stateFile)
}

func storedKind(field protoreflect.FieldDescriptor) (kind, error) {
	name := string(field.Name())
	if field.Message() == nil || field.Message().Fields().ByName("metadata") == nil {
		return kind{}, fmt.Errorf("%s is not a message with metadata: only such objects can be stored", name)
	}
	words, options := strings.ReplaceAll(name, "_", " "), boolOptions(field)
	k := kind{
		Field:       name,
		Go:          camelCase(name),
		Plural:      plural(camelCase(name)),
		Words:       words,
		PluralWords: plural(words),
		Type:        goType(field.Message()),
		Named:       options["named"],
		Namespaced:  options["namespaced"],
		Single:      options["single"],
		OwnGetters:  options["own_getters"],
	}
	if k.Namespaced && !k.Named {
		return kind{}, fmt.Errorf("%s is namespaced but not named: add (named) = true", name)
	}
	return k, nil
}

// boolOptions returns the options from options.proto that are set for a field.
func boolOptions(field protoreflect.FieldDescriptor) map[string]bool {
	set := map[string]bool{}
	field.Options().ProtoReflect().Range(func(option protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if option.IsExtension() && option.FullName().Parent() == statePackage {
			set[string(option.Name())] = value.Bool()
		}
		return true
	})
	return set
}

func goType(message protoreflect.MessageDescriptor) string {
	if message.ParentFile().Package() == statePackage {
		return "*statev1." + string(message.Name())
	}
	return "*v1." + string(message.Name())
}

func camelCase(name string) string {
	var words strings.Builder
	for word := range strings.SplitSeq(name, "_") {
		words.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return words.String()
}

// plural returns the English plural of a noun.
func plural(noun string) string {
	last := len(noun) - 1
	switch {
	case noun[last] == 'y' && !strings.ContainsRune("aeiou", rune(noun[last-1])):
		return noun[:last] + "ies"
	case noun[last] == 's' || noun[last] == 'x' || strings.HasSuffix(noun, "ch"):
		return noun + "es"
	}
	return noun + "s"
}
