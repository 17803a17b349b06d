package layers

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	maxLines = 600
	maxFiles = 35
)

// A hand-written file that is longer than maxLines says why in its first comment, with the words "This file is long".
const longReason = "This file is long"

func TestFilesAreShort(t *testing.T) {
	for _, p := range packages(t) {
		for _, file := range handWritten(t, p.Dir, "*.go") {
			code, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			lines := bytes.Count(code, []byte("\n"))
			if lines > maxLines && !strings.Contains(firstComment(code), longReason) {
				t.Errorf("%s has %d lines, and %d are allowed: split it, or say why not in its first comment, beginning with %q",
					file, lines, maxLines, longReason)
			}
		}
	}
}

// Tests lie beside the code that they test and are not counted.
func TestPackagesAreSmall(t *testing.T) {
	for _, p := range packages(t) {
		name, files := strings.TrimPrefix(p.ImportPath, module), 0
		for _, file := range handWritten(t, p.Dir, "*.go") {
			if !strings.HasSuffix(file, "_test.go") {
				files++
			}
		}
		if files > maxFiles {
			t.Errorf("package %s has %d files, and %d are allowed: split it", name, files, maxFiles)
		}
	}
}

// generated matches Go's mark of a generated file, which build constraints may precede.
var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// handWritten are the files of a folder that match a pattern and are not generated.
func handWritten(t *testing.T, dir, pattern string) (files []string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		code, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !generated.Match(code) {
			files = append(files, file)
		}
	}
	return files
}

// firstComment is the first block of comment lines of a file.
func firstComment(code []byte) string {
	var comment strings.Builder
	for lines := bufio.NewScanner(bytes.NewReader(code)); lines.Scan(); {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "//"):
			comment.WriteString(line + "\n")
		case comment.Len() > 0:
			return comment.String()
		}
	}
	return comment.String()
}
