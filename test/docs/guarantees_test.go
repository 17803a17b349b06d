package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every guarantee names tests and stories that exist.
func TestGuaranteesNameTheirTests(t *testing.T) {
	exists := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir(repository, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		for _, found := range function.FindAllSubmatch(data, -1) {
			exists[string(found[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("(story )?`([^`]+)`")
	rows := 0
	for line := range strings.Lines(read(t, filepath.Join(repository, "docs", "guarantees.md"))) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) != 2 || strings.HasPrefix(line, "| guarantee") || strings.HasPrefix(line, "| ---") {
			continue
		}
		rows++
		tests := named.FindAllStringSubmatch(cells[1], -1)
		if len(tests) == 0 {
			t.Errorf("no test shows: %s", cells[0])
		}
		for _, test := range tests {
			if test[1] == "" && !exists[test[2]] {
				t.Errorf("there is no test %s", test[2])
			}
			if test[1] != "" {
				if _, err := os.Stat(filepath.Join(repository, "test", "e2e", "testdata", test[2]+".txtar")); err != nil {
					t.Error(err)
				}
			}
		}
	}
	if rows < 10 {
		t.Errorf("only %d guarantees were found", rows)
	}
}
