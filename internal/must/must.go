// Package must ends a test whose preparation fails. Only tests use it, and it knows nothing of this repository.
package must

import (
	"os"
	"strings"
	"testing"
)

// Succeed ends the test if there is an error.
func Succeed(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// List returns the names in a folder, sorted and separated by spaces.
func List(t testing.TB, folder string) string {
	t.Helper()
	all, err := os.ReadDir(folder)
	Succeed(t, err)
	var names []string
	for _, e := range all {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// Get returns a value, and ends the test if there is an error: must.Get(os.ReadFile(path))(t).
func Get[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Succeed(t, err)
		return value
	}
}
