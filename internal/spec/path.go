package spec

import (
	"strconv"

	"google.golang.org/protobuf/reflect/protoreflect"
)

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
