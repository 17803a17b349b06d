package state

import (
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// BenchmarkTree measures get, replace and add in a tree with a million objects whose keys are scattered in memory.
func BenchmarkTree(b *testing.B) {
	const many = 1_000_000
	random := rand.New(rand.NewPCG(1, 2))
	var objects tree
	by := &owner{}
	keys := make([]string, many)
	for i := range keys {
		keys[i] = fmt.Sprintf("0199%08x-7%03x-8000-%012x/%08x", i/2000, i%2000, i, random.Uint32())
	}
	random.Shuffle(many, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	object := &v1.Event{}
	for _, key := range keys {
		objects.setCopyingKey(by, key, object)
	}
	b.Run("get", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			if objects.get(keys[i*7919%many]) == nil {
				b.Fatal("a key is missing")
			}
		}
	})
	b.Run("replace", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			if i%200 == 0 {
				by = &owner{}
			}
			objects.setCopyingKey(by, keys[i*7919%many], object)
		}
	})
	b.Run("add", func(b *testing.B) {
		var fresh tree
		for i := 0; b.Loop(); i++ {
			if i%200 == 0 {
				by = &owner{}
			}
			fresh.setCopyingKey(by, keys[i*7919%many], object)
		}
	})
}
