package state

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"unsafe"
)

// rows are the objects of one table, once in each of its indexes.
type rows struct {
	byUID  tree
	byName tree   // empty unless the kind is named
	others []tree // in the order of otherIndexes
}

// index is an index of a table beyond uid and name.
type index struct {
	name string
	key  keyFunc
}

// otherIndexes are the indexes of each table beyond uid and name, sorted by name.
var otherIndexes = func() [][]index {
	all := make([][]index, len(tables))
	for i, t := range tables {
		for _, name := range slices.Sorted(maps.Keys(indexes[t.kind])) {
			own := indexes[t.kind][name]
			all[i] = append(all[i], index{name: name, key: func(key []byte, o Object) []byte {
				return appendID(own(key, o), o.GetMetadata().GetUid()) // makes every key unique
			}})
		}
	}
	return all
}()

// emptyRows returns empty tables.
func emptyRows() []rows {
	all := make([]rows, len(tables))
	for i := range all {
		all[i].others = make([]tree, len(otherIndexes[i]))
	}
	return all
}

// tree returns the index with a name.
func (r *rows) tree(ordinal int, name string) tree {
	switch name {
	case indexUID:
		return r.byUID
	case indexName:
		return r.byName
	}
	for i, other := range otherIndexes[ordinal] {
		if other.name == name {
			return r.others[i]
		}
	}
	return tree{}
}

// replace replaces one object by another. Either of them may be nil: then it creates or deletes.
func (r *rows) replace(by *owner, ordinal int, from, to Object) {
	if to == nil {
		r.byUID.delete(by, from.GetMetadata().GetUid())
	} else {
		r.byUID.set(by, to.GetMetadata().GetUid(), to)
	}
	if tables[ordinal].named {
		r.byName.replace(by, from, to, appendNameKey)
	}
	for i, other := range otherIndexes[ordinal] {
		r.others[i].replace(by, from, to, other.key)
	}
}

// replace does the same in one index. It builds keys in the buffers of the owner.
func (t *tree) replace(by *owner, from, to Object, key keyFunc) {
	by.oldKey, by.newKey = by.oldKey[:0], by.newKey[:0]
	if from != nil {
		by.oldKey = key(by.oldKey, from)
	}
	if to != nil {
		by.newKey = key(by.newKey, to)
	}
	if from != nil && (to == nil || !bytes.Equal(by.oldKey, by.newKey)) {
		t.delete(by, view(by.oldKey))
	}
	if to != nil {
		t.setCopyingKey(by, view(by.newKey), to)
	}
}

// view returns a buffer as a string without copying. The string is valid until the buffer changes.
func view(buffer []byte) string { return unsafe.String(unsafe.SliceData(buffer), len(buffer)) }

// withPrefix yields the objects whose keys have a prefix.
func (t tree) withPrefix(prefix string, yield func(Object) bool) {
	t.ascend(prefix, func(key string, o Object) bool { return strings.HasPrefix(key, prefix) && yield(o) })
}
