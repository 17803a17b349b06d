package nft

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// described is what a table with some parts must have: the first part by name decides about an element.
func described(parts map[string]Part) map[elementKey]Element {
	all := map[elementKey]Element{}
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(parts))) {
		for _, e := range parts[name].Elements {
			all[elementKey{e.Set, e.Key}] = e
		}
	}
	return all
}

// Whatever parts come, change and go, in any order: the changes that are sent to the kernel lead to the elements that
// the remaining parts describe.
func TestElementsFollowTheRemainingParts(t *testing.T) {
	element := rapid.Custom(func(t *rapid.T) Element {
		return Element{
			Set: rapid.SampledFrom([]string{"services", "exported"}).Draw(t, "set"),
			Key: rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "key"), Goto: rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "chain"),
		}
	})
	part := rapid.Custom(func(t *rapid.T) *Part {
		if rapid.Bool().Draw(t, "removed") {
			return nil
		}
		return &Part{Elements: rapid.SliceOfN(element, 0, 4).Draw(t, "elements")}
	})
	rapid.Check(t, func(t *rapid.T) {
		table, kernel, model := New("test", nil), map[elementKey]Element{}, map[string]Part{}
		for _, parts := range rapid.SliceOfN(rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c", "d"}), part, 1, 4), 1, 12).Draw(t, "updates") {
			change := table.merge(parts)
			for name, p := range parts {
				delete(model, name)
				if p != nil {
					model[name] = *p
				}
			}
			for _, e := range change.remove {
				key := elementKey{e.Set, e.Key}
				if kernel[key] != e {
					t.Fatalf("%v is removed, and the kernel has %v", e, kernel[key])
				}
				delete(kernel, key)
			}
			for _, e := range change.add {
				key := elementKey{e.Set, e.Key}
				if old, there := kernel[key]; there {
					t.Fatalf("%v is added, and the kernel has %v", e, old)
				}
				kernel[key] = e
			}
			if want := described(model); !maps.Equal(kernel, want) {
				t.Fatalf("the kernel has %v, and the parts describe %v", kernel, want)
			}
		}
	})
}
