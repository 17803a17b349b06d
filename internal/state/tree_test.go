package state

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// A tree behaves like a sorted map, in both directions and from any key on. Earlier versions of it never change.
func TestTreeIsAPersistentSortedMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type past struct {
			tree tree
			want map[string]Object
		}
		var now tree
		var pasts []past
		want := map[string]Object{}
		by := &owner{}
		// Few keys cause many replacements and deletions, many keys cause several levels.
		space := rapid.SampledFrom([]int{20, 500, 5000}).Draw(t, "space")
		inOrder := rapid.Bool().Draw(t, "in order")
		keys := rapid.IntRange(0, space-1)
		spell := rapid.SampledFrom([]func(int) string{spellEqually, spellUnequally}).Draw(t, "spelling")
		for step := range rapid.IntRange(1, 40).Draw(t, "steps") {
			removes := rapid.IntRange(0, 3).Draw(t, "removes") == 0
			made := rapid.Bool().Draw(t, "made")
			first := keys.Draw(t, "first")
			for i := range rapid.IntRange(1, 200).Draw(t, "run") {
				number := first * 7919 * i % space
				if inOrder {
					number = (first + i) % space
				}
				key := spell(number)
				if removes {
					now.delete(by, key)
					delete(want, key)
					continue
				}
				object := &v1.Event{Kind: fmt.Sprint(step, i)}
				now.put(by, key, object, made)
				want[key] = object
			}
			checkNodes(t, now.root, true)
			if rapid.Bool().Draw(t, "hand out") {
				pasts = append(pasts, past{now, maps.Clone(want)})
				by = &owner{}
			}
		}
		compare(t, now, want, spell(keys.Draw(t, "from")))
		for _, p := range pasts {
			compare(t, p.tree, p.want, spell(keys.Draw(t, "from")))
		}
	})
}

// spellEqually returns keys of equal length.
func spellEqually(number int) string { return fmt.Sprintf("%05d", number) }

// spellUnequally returns keys that are often prefixes of others, or share long prefixes.
func spellUnequally(number int) string {
	return strings.Repeat("\x00", number%3) + strings.Repeat("ab", number%50) + fmt.Sprint(number)
}

func compare(t *rapid.T, got tree, want map[string]Object, middle string) {
	t.Helper()
	sorted := slices.Sorted(maps.Keys(want))
	at, _ := slices.BinarySearch(sorted, middle)
	for _, key := range sorted {
		if got.get(key) != want[key] {
			t.Fatalf("%s is %v, want %v", key, got.get(key), want[key])
		}
	}
	if _, there := want[middle]; !there && got.get(middle) != nil {
		t.Fatalf("%s is there", middle)
	}
	var all, upwards, downwards, backwards []string
	got.ascend("", func(key string, o Object) bool { all = append(all, key); return o == want[key] })
	got.ascend(middle, func(key string, _ Object) bool { upwards = append(upwards, key); return true })
	got.descend(&middle, func(key string, _ Object) bool { downwards = append(downwards, key); return true })
	got.descend(nil, func(key string, _ Object) bool { backwards = append(backwards, key); return true })
	slices.Reverse(downwards)
	slices.Reverse(backwards)
	if !slices.Equal(all, sorted) || !slices.Equal(backwards, sorted) {
		t.Fatalf("all are %v and %v, want %v", all, backwards, sorted)
	}
	if !slices.Equal(upwards, sorted[at:]) || !slices.Equal(downwards, sorted[:at]) {
		t.Fatalf("around %s are %v and %v, want %v and %v", middle, downwards, upwards, sorted[:at], sorted[at:])
	}
}

// checkNodes checks that no node is empty or too large, and that all leaves have the same depth.
func checkNodes(t *rapid.T, n *node, root bool) (depth int) {
	switch {
	case n == nil:
		return 0
	case n.size() > fanout, n.size() == 0, !n.leaf() && root && n.size() == 1, n.size() != len(n.keys.abbreviations):
		t.Fatalf("a node has %d entries and %d abbreviations", n.size(), len(n.keys.abbreviations))
	case n.leaf():
		return 1
	}
	for i, child := range n.children {
		below := checkNodes(t, child, false)
		if i > 0 && below != depth {
			t.Fatalf("leaves are %d and %d deep", below, depth)
		}
		depth = below
	}
	return depth + 1
}

func TestIterationStopsWhenYieldReturnsFalse(t *testing.T) {
	var objects tree
	by := &owner{}
	for i := range 1000 {
		objects.set(by, fmt.Sprintf("%04d", i), &v1.Event{})
	}
	seen := 0
	three := func(string, Object) bool { seen++; return seen%3 != 0 }
	objects.ascend("0100", three)
	objects.descend(nil, three)
	if seen != 6 {
		t.Fatalf("%d objects were shown, want 6", seen)
	}
}

// Events are deleted in the order of their creation, which empties nodes from the front on all levels.
func TestDeletingTheOldestKeysEmptiesNodes(t *testing.T) {
	var objects tree
	key := func(i int) string { return fmt.Sprintf("%08d", i) }
	const kept = 3000
	for i := range 4 * kept {
		by := &owner{}
		objects.set(by, key(i), &v1.Event{})
		if i >= kept {
			objects.delete(by, key(i-kept))
		}
		if objects.get(key(i)) == nil || objects.get(key(max(0, i-kept)+1)) == nil && i > 0 || i >= kept && objects.get(key(i-kept)) != nil {
			t.Fatalf("after key %d the tree does not hold exactly the newest keys", i)
		}
	}
}
