package state

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"unsafe"
)

// rows are the objects of one table, in all its indexes.
type rows struct {
	byUID  tree
	byName tree   // of named objects
	others []tree // in the order of otherIndexes
}

// index is one of a table's own ones, beside uid and name.
type index struct {
	name string
	key  keyFunc
}

// otherIndexes are the indexes of each of the tables, by their names.
var otherIndexes = func() [][]index {
	all := make([][]index, len(tables))
	for i, t := range tables {
		for _, name := range slices.Sorted(maps.Keys(indexes[t.kind])) {
			own := indexes[t.kind][name]
			all[i] = append(all[i], index{name: name, key: func(key []byte, o Object) []byte {
				return appendID(own(key, o), o.GetMetadata().GetUid()) // makes keys different that are the same for the index
			}})
		}
	}
	return all
}()

// noRows are empty tables.
func noRows() []rows {
	all := make([]rows, len(tables))
	for i := range all {
		all[i].others = make([]tree, len(otherIndexes[i]))
	}
	return all
}

// tree returns an index by its name.
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

// replace puts an object in the place of another one; nil means nothing.
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

// replace does the same in one index. Keys are made in buffers of the owner.
func (t *tree) replace(by *owner, from, to Object, key keyFunc) {
	by.there, by.wanted = by.there[:0], by.wanted[:0]
	if from != nil {
		by.there = key(by.there, from)
	}
	if to != nil {
		by.wanted = key(by.wanted, to)
	}
	if from != nil && (to == nil || !bytes.Equal(by.there, by.wanted)) {
		t.delete(by, view(by.there))
	}
	if to != nil {
		t.setMade(by, view(by.wanted), to)
	}
}

// view is a buffer as a string, for as long as the buffer does not change.
func view(buffer []byte) string { return unsafe.String(unsafe.SliceData(buffer), len(buffer)) }

// prefixed goes through the objects whose keys begin with a prefix.
func (t tree) prefixed(prefix string, yield func(Object) bool) {
	t.from(prefix, func(key string, o Object) bool { return strings.HasPrefix(key, prefix) && yield(o) })
}
