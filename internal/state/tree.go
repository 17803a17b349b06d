package state

import (
	"slices"
	"strings"
)

// tree is an index: objects in the order of their keys. It is a persistent B-tree, so snapshots share all nodes that
// do not differ. A writer copies the nodes on the path to its change, except those that it owns because it created
// them itself. A tree that is part of a snapshot never changes. The zero value is empty.
type tree struct {
	root *node
}

const (
	// fanout is the maximum number of entries of a node. A single change copies that many on each level.
	fanout = 32
	// mergeBelow is the size below which a node is merged with a neighbour if both fit into one node.
	mergeBelow = fanout / 4
)

// owner identifies the writer that created a node. It holds buffers for keys. It must not be an empty struct, because
// pointers to distinct empty structs may be equal.
type owner struct{ oldKey, newKey []byte }

// node is a leaf with one object for each key, or an inner node with one child for each key. The key of a child is at
// most the smallest key below it, and larger than all keys below the child before it. The key of the first child is
// ignored: it counts as smaller than everything.
type node struct {
	owner    *owner
	keys     keys
	objects  []Object
	children []*node
	// borrowed means that the keys still belong to the node that this one was copied from. Most changes do not touch
	// the keys, so they are copied late.
	borrowed bool
}

func (n *node) leaf() bool { return n.children == nil }

// size returns the number of entries.
func (n *node) size() int { return len(n.keys.texts) }

// firstUsed returns the position of the first key that is not ignored.
func (n *node) firstUsed() int {
	if n.leaf() {
		return 0
	}
	return 1
}

// childFor returns the position of the child that a key belongs to.
func (n *node) childFor(key string) int {
	i, found := n.keys.find(1, key)
	if found {
		return i
	}
	return i - 1
}

// get returns the object with a key, or nil.
func (t tree) get(key string) Object {
	n := t.root
	if n == nil {
		return nil
	}
	for !n.leaf() {
		n = n.children[n.childFor(key)]
	}
	if i, found := n.keys.findPrefixed(0, key); found {
		return n.objects[i]
	}
	return nil
}

// ascend yields all objects from a key on, in order.
func (t tree) ascend(key string, yield func(string, Object) bool) {
	if t.root != nil {
		t.root.ascend(key, yield)
	}
}

func (n *node) ascend(key string, yield func(string, Object) bool) bool {
	if n.leaf() {
		first, _ := n.keys.find(0, key)
		for i := first; i < len(n.objects); i++ {
			if !yield(n.keys.texts[i], n.objects[i]) {
				return false
			}
		}
		return true
	}
	for _, child := range n.children[n.childFor(key):] {
		if !child.ascend(key, yield) {
			return false
		}
	}
	return true
}

// descend yields all objects with keys smaller than a limit in reverse order, or all objects if the limit is nil.
func (t tree) descend(limit *string, yield func(string, Object) bool) {
	if t.root != nil {
		t.root.descend(limit, yield)
	}
}

func (n *node) descend(limit *string, yield func(string, Object) bool) bool {
	end := n.size()
	if n.leaf() {
		if limit != nil {
			end, _ = n.keys.find(0, *limit)
		}
		for i := end - 1; i >= 0; i-- {
			if !yield(n.keys.texts[i], n.objects[i]) {
				return false
			}
		}
		return true
	}
	if limit != nil {
		end = n.childFor(*limit) + 1
	}
	for _, child := range slices.Backward(n.children[:end]) {
		if !child.descend(limit, yield) {
			return false
		}
	}
	return true
}

// set stores an object under a key that is part of the object and therefore lives as long as it.
func (t *tree) set(by *owner, key string, object Object) { t.put(by, key, object, false) }

// setCopyingKey stores an object under a key that is valid only during the call.
func (t *tree) setCopyingKey(by *owner, key string, object Object) { t.put(by, key, object, true) }

func (t *tree) put(by *owner, key string, object Object, copyKey bool) {
	if t.root == nil {
		t.root = newNode(by, nil, []Object{}, nil)
	}
	t.root = t.root.owned(by)
	if right, separator := t.root.put(by, key, object, copyKey); right != nil {
		t.root = newNode(by, []string{"", separator}, nil, []*node{t.root, right})
	}
}

// put returns the right half and its smallest key if the node had to be split. The node must be owned.
func (n *node) put(by *owner, key string, object Object, copyKey bool) (right *node, separator string) {
	if n.leaf() {
		i, found := n.keys.find(0, key)
		if found {
			if !copyKey {
				n.ownKeys()
				n.keys.texts[i] = key // the old key would keep the old object in memory
			}
			n.objects[i] = object
			return nil, ""
		}
		if copyKey {
			key = strings.Clone(key)
		}
		n.ownKeys()
		n.keys.insert(0, i, key)
		n.objects = slices.Insert(n.objects, i, object)
		return n.split(by, i)
	}
	i := n.childFor(key)
	n.children[i] = n.children[i].owned(by)
	if right, separator = n.children[i].put(by, key, object, copyKey); right == nil {
		return nil, ""
	}
	n.ownKeys()
	n.keys.insert(1, i+1, separator)
	n.children = slices.Insert(n.children, i+1, right)
	return n.split(by, i+1)
}

// split halves a node that has become too large. A node that grew at its end stays full: most keys begin with the time,
// so that later keys go to the right half.
func (n *node) split(by *owner, grew int) (right *node, separator string) {
	if n.size() <= fanout {
		return nil, ""
	}
	half := n.size() / 2
	if grew == n.size()-1 {
		half = grew
	}
	if n.leaf() {
		right = newNode(by, n.keys.texts[half:], n.objects[half:], nil)
		n.objects = slices.Delete(n.objects, half, len(n.objects))
	} else {
		right = newNode(by, n.keys.texts[half:], nil, n.children[half:])
		n.children = slices.Delete(n.children, half, len(n.children))
	}
	n.keys.truncate(n.firstUsed(), half)
	return right, right.keys.texts[0]
}

// delete removes the object with a key, if there is one.
func (t *tree) delete(by *owner, key string) {
	if t.get(key) == nil {
		return
	}
	t.root = t.root.owned(by)
	t.root.delete(by, key)
	for !t.root.leaf() && len(t.root.children) == 1 {
		t.root = t.root.children[0]
	}
	if t.root.size() == 0 {
		t.root = nil
	}
}

// delete removes a key that exists. The node must be owned.
func (n *node) delete(by *owner, key string) {
	if n.leaf() {
		i, _ := n.keys.find(0, key)
		n.ownKeys()
		n.keys.remove(i)
		n.objects = slices.Delete(n.objects, i, i+1)
		return
	}
	i := n.childFor(key)
	n.children[i] = n.children[i].owned(by)
	n.children[i].delete(by, key)
	switch {
	case n.children[i].size() == 0:
		n.ownKeys()
		n.keys.remove(i)
		n.children = slices.Delete(n.children, i, i+1)
	case n.children[i].size() < mergeBelow:
		n.merge(by, max(i, 1))
	}
}

// merge merges a child into the one before it if both fit into one node.
func (n *node) merge(by *owner, i int) {
	if i == len(n.children) || n.children[i-1].size()+n.children[i].size() > fanout {
		return
	}
	left, right := n.children[i-1].owned(by), n.children[i]
	n.children[i-1] = left
	n.ownKeys()
	left.ownKeys()
	end := left.size()
	left.keys.texts = append(left.keys.texts, right.keys.texts...)
	if right.leaf() {
		left.objects = append(left.objects, right.objects...)
	} else {
		left.children = append(left.children, right.children...)
		left.keys.texts[end] = n.keys.texts[i] // it was the first key of its node, which is ignored there
	}
	left.keys.rebuild(left.firstUsed())
	n.keys.remove(i)
	n.children = slices.Delete(n.children, i, i+1)
}

// owned returns the node itself if the writer owns it, otherwise a copy that borrows its keys.
func (n *node) owned(by *owner) *node {
	if n.owner == by {
		return n
	}
	c := newNode(by, nil, n.objects, n.children)
	c.keys, c.borrowed = n.keys, true
	return c
}

// ownKeys copies borrowed keys. It must be called before the keys change.
func (n *node) ownKeys() {
	if n.borrowed {
		n.keys, n.borrowed = n.keys.clone(), false
	}
}

// newNode copies its arguments.
func newNode(by *owner, texts []string, objects []Object, children []*node) *node {
	n := &node{owner: by}
	if children == nil {
		n.objects = cloneWithRoom(objects)
	} else {
		n.children = cloneWithRoom(children)
	}
	if texts != nil {
		n.keys.texts, n.keys.abbreviations = cloneWithRoom(texts), make([]uint64, 0, fanout+1)
		n.keys.rebuild(n.firstUsed())
	}
	return n
}

// cloneWithRoom returns a copy with room for one entry more than a node may have, because nodes are split afterwards.
func cloneWithRoom[T any](entries []T) []T { return append(make([]T, 0, fanout+1), entries...) }
