package spec

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// suggestion names the field that was probably meant, or all existing ones.
func suggestion(name string, fields protoreflect.FieldDescriptors) string {
	names := make([]string, fields.Len())
	for i := range names {
		names[i] = fields.Get(i).JSONName()
	}
	if near := nearest(name, names); near != "" {
		return "did you mean " + near + "?"
	}
	slices.Sort(names)
	return "there are " + strings.Join(names, ", ")
}

// nearest is the name that was probably meant, empty if none is close.
func nearest(name string, names []string) string {
	best := slices.MinFunc(names, func(a, b string) int { return distance(name, a) - distance(name, b) })
	if distance(name, best) > max(1, len(best)/3) {
		return ""
	}
	return best
}

// distance counts the letters to insert, delete or change to get from a to b, ignoring
// case.
func distance(a, b string) int {
	const longest = 64 // no field's name is as long
	a, b = strings.ToLower(a), strings.ToLower(b)
	if len(a) > longest {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
