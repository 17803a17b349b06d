package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
)

// completeOpenAPI adds to a generated document what .proto files cannot say, and
// takes the services away that have no HTTP form.
func completeOpenAPI(path, additions string) error {
	document, err := readJSON(path)
	if err != nil {
		return err
	}
	more, err := readJSON(additions)
	if err != nil {
		return err
	}
	merge(document, more)
	tags, _ := document["tags"].([]any)
	document["tags"] = slices.DeleteFunc(tags, func(tag any) bool {
		fields, _ := tag.(map[string]any)
		return !hasCalls(document, fields["name"])
	})
	data, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

func readJSON(path string) (map[string]any, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var document map[string]any
	if err := json.Unmarshal(data, &document); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return document, nil
}

// merge lets more decide, field by field.
func merge(into, more map[string]any) {
	for key, value := range more {
		old, both := into[key].(map[string]any)
		fields, ok := value.(map[string]any)
		if both && ok {
			merge(old, fields)
			continue
		}
		into[key] = value
	}
}

// hasCalls reports whether a tag is that of a path.
func hasCalls(document map[string]any, tag any) bool {
	paths, _ := document["paths"].(map[string]any)
	for _, methods := range paths {
		calls, _ := methods.(map[string]any)
		for _, call := range calls {
			fields, _ := call.(map[string]any)
			if tags, _ := fields["tags"].([]any); slices.Contains(tags, tag) {
				return true
			}
		}
	}
	return false
}
