package cli

import (
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/cloudless/cloudless/internal/cli/command"
)

// environment is that of the files, one after the other, and then of the flags: the later wins.
func environment(files, pairs []string) (map[string]string, error) {
	all := map[string]string{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--env-file: %w", err)
		}
		values, err := parseEnvFile(path, string(text), os.LookupEnv)
		if err != nil {
			return nil, fmt.Errorf("--env-file: %w", err)
		}
		maps.Copy(all, values)
	}
	values, err := command.ParsePairs("environment variable", pairs, os.LookupEnv)
	if err != nil {
		return nil, err
	}
	maps.Copy(all, values)
	if len(all) == 0 {
		return nil, nil
	}
	return all, nil
}

// parseEnvFile reads KEY=VALUE lines, or KEY to take the value over from here. Empty lines and those that begin with #
// say nothing. A value is taken as it stands, with quotes and spaces.
func parseEnvFile(name, text string, lookup func(string) (string, bool)) (map[string]string, error) {
	values := map[string]string{}
	number := 0
	for line := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		number++
		line = strings.TrimLeft(strings.TrimRight(line, "\r\n"), " \t")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, found := strings.Cut(line, "=")
		key = strings.TrimSpace(key)
		if !found {
			value, found = lookup(key)
		}
		switch {
		case key == "" || strings.ContainsAny(key, " \t"):
			return nil, fmt.Errorf("%s, line %d: %.64q is no variable: write KEY=VALUE", name, number, line)
		case !found:
			return nil, fmt.Errorf("%s, line %d: %.64s has no value, and the environment has none for it: write %.64s=VALUE", name, number, key, key)
		case strings.Contains(value, "\r"):
			return nil, fmt.Errorf("%s, line %d: the value of %.64s has a line break in it", name, number, key)
		}
		values[key] = value
	}
	return values, nil
}
