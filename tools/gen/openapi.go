package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
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
	uniteEqualPaths(document)
	addConsistency(document)
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

// variable is a part of a path that names a field, which may be one within an object.
var variable = regexp.MustCompile(`\{([^}]*\.)?([^}.]*)\}`)

// uniteEqualPaths names the variables of a path by the last part of their field alone.
// Paths that differ in names of variables only are one, and must not be there twice.
func uniteEqualPaths(document map[string]any) {
	paths, _ := document["paths"].(map[string]any)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		short := variable.ReplaceAllString(path, "{$2}")
		if short == path {
			continue
		}
		calls, _ := paths[path].(map[string]any)
		for _, parameter := range parametersOf(calls) {
			if name, _ := parameter["name"].(string); parameter["in"] == "path" {
				parameter["name"] = name[strings.LastIndex(name, ".")+1:]
			}
		}
		delete(paths, path)
		merge(paths, map[string]any{short: calls})
	}
}

// parametersOf are those of all calls of a path.
func parametersOf(calls map[string]any) (found []map[string]any) {
	for _, call := range calls {
		fields, _ := call.(map[string]any)
		parameters, _ := fields["parameters"].([]any)
		for _, parameter := range parameters {
			if one, ok := parameter.(map[string]any); ok {
				found = append(found, one)
			}
		}
	}
	return found
}

// addConsistency adds the parameter of all calls that read, which no message has.
func addConsistency(document map[string]any) {
	paths, _ := document["paths"].(map[string]any)
	for path, methods := range paths {
		calls, _ := methods.(map[string]any)
		get, ok := calls["get"].(map[string]any)
		if !ok || strings.HasSuffix(path, ":exec") {
			continue
		}
		parameters, _ := get["parameters"].([]any)
		get["parameters"] = append(parameters, map[string]any{
			"name": "consistency", "in": "query", "required": false, "type": "string", "enum": []any{"stale"},
			"description": "With \"stale\", any server answers from its own state, which may be behind, even without a leader.",
		})
	}
}
