package state

import (
	"slices"
	"strings"
)

// tree is an index: objects in the order of their keys. It is a B-tree whose nodes are shared by all states that
// have them in common. Whoever changes a tree copies the nodes on the way to the change, unless it owns them because
// it made them itself: a tree that was handed out is never changed. The zero value is empty.
type tree struct {
	root *node
}

const (
	// fanout is the most entries of a node: as many as are copied for a lone change on each level.
	fanout = 32
	// sparse is below how many entries a node looks for a neighbour to be joined with.
	sparse = fanout / 4
)

// owner tells the nodes of one change of the state from all others. It has buffers for keys, and is not empty:
// pointers to what is empty are all the same.
type owner struct{ there, wanted []byte }

// node is a leaf, with an object for each key, or has a child for each. The key of a child is not larger than any key
// below it, and larger than all before it; the first one counts as smaller than everything, whatever it is.
type node struct {
	owner    *owner
	keys     keys
	objects  []Object
	children []*node
	// borrowed is whether the keys are those of the node that it is a copy of: most changes leave them as they are.
	borrowed bool
}

func (n *node) leaf() bool { return n.children == nil }

// size is how many entries the node has.
func (n *node) size() int { return len(n.keys.texts) }

// first is the first key that counts.
func (n *node) first() int {
	if n.leaf() {
		return 0
	}
	return 1
}

// at is the position of the child that a key belongs to.
func (n *node) at(key string) int {
	i, found := n.keys.find(1, key)
	if found {
		return i
	}
	return i - 1
}

// get returns nil if there is nothing with that key.
func (t tree) get(key string) Object {
	n := t.root
	if n == nil {
		return nil
	}
	for !n.leaf() {
		n = n.children[n.at(key)]
	}
	if i, found := n.keys.among(0, key); found {
		return n.objects[i]
	}
	return nil
}

// from goes through all objects from a key on, in their order.
func (t tree) from(key string, yield func(string, Object) bool) {
	if t.root != nil {
		t.root.from(key, yield)
	}
}

func (n *node) from(key string, yield func(string, Object) bool) bool {
	if n.leaf() {
		first, _ := n.keys.find(0, key)
		for i := first; i < len(n.objects); i++ {
			if !yield(n.keys.texts[i], n.objects[i]) {
				return false
			}
		}
		return true
	}
	for _, child := range n.children[n.at(key):] {
		if !child.from(key, yield) {
			return false
		}
	}
	return true
}

// before goes through all objects with smaller keys backwards, or through all if last is nil.
func (t tree) before(last *string, yield func(string, Object) bool) {
	if t.root != nil {
		t.root.before(last, yield)
	}
}

func (n *node) before(last *string, yield func(string, Object) bool) bool {
	end := n.size()
	if n.leaf() {
		if last != nil {
			end, _ = n.keys.find(0, *last)
		}
		for i := end - 1; i >= 0; i-- {
			if !yield(n.keys.texts[i], n.objects[i]) {
				return false
			}
		}
		return true
	}
	if last != nil {
		end = n.at(*last) + 1
	}
	for _, child := range slices.Backward(n.children[:end]) {
		if !child.before(last, yield) {
			return false
		}
	}
	return true
}

// set puts an object at a key, in the place of the one that is there. The key is a part of the object.
func (t *tree) set(by *owner, key string, object Object) { t.put(by, key, object, false) }

// setMade does so with a key that is valid during the call only.
func (t *tree) setMade(by *owner, key string, object Object) { t.put(by, key, object, true) }

func (t *tree) put(by *owner, key string, object Object, made bool) {
	if t.root == nil {
		t.root = newNode(by, nil, []Object{}, nil)
	}
	t.root = t.root.owned(by)
	if right, least := t.root.put(by, key, object, made); right != nil {
		t.root = newNode(by, []string{"", least}, nil, []*node{t.root, right})
	}
}

// put returns the right half of a node that had to be divided, and its least key. The node is owned.
func (n *node) put(by *owner, key string, object Object, made bool) (right *node, least string) {
	if n.leaf() {
		i, found := n.keys.find(0, key)
		if found {
			if !made {
				n.ownKeys()
				n.keys.texts[i] = key // the old one would keep the old object's memory
			}
			n.objects[i] = object
			return nil, ""
		}
		if made {
			key = strings.Clone(key)
		}
		n.ownKeys()
		n.keys.insert(0, i, key)
		n.objects = slices.Insert(n.objects, i, object)
		return n.divide(by, i)
	}
	i := n.at(key)
	n.children[i] = n.children[i].owned(by)
	if right, least = n.children[i].put(by, key, object, made); right == nil {
		return nil, ""
	}
	n.ownKeys()
	n.keys.insert(1, i+1, least)
	n.children = slices.Insert(n.children, i+1, right)
	return n.divide(by, i+1)
}

// divide halves a node that has become too large. One that grew at its end is left full: most keys begin with the
// time, and come in their order.
func (n *node) divide(by *owner, grew int) (right *node, least string) {
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
	n.keys.cut(n.first(), half)
	return right, right.keys.texts[0]
}

// delete removes what is at a key.
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

// delete removes a key that is there. The node is owned.
func (n *node) delete(by *owner, key string) {
	if n.leaf() {
		i, _ := n.keys.find(0, key)
		n.ownKeys()
		n.keys.remove(i)
		n.objects = slices.Delete(n.objects, i, i+1)
		return
	}
	i := n.at(key)
	n.children[i] = n.children[i].owned(by)
	n.children[i].delete(by, key)
	switch {
	case n.children[i].size() == 0:
		n.ownKeys()
		n.keys.remove(i)
		n.children = slices.Delete(n.children, i, i+1)
	case n.children[i].size() < sparse:
		n.join(by, max(i, 1))
	}
}

// join puts a child behind the one before it if both fit into one node.
func (n *node) join(by *owner, i int) {
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
		left.keys.texts[end] = n.keys.texts[i] // the first one did not count where it was
	}
	left.keys.mark(left.first())
	n.keys.remove(i)
	n.children = slices.Delete(n.children, i, i+1)
}

// owned returns the node itself or, for others than its owner, a copy with the same keys.
func (n *node) owned(by *owner) *node {
	if n.owner == by {
		return n
	}
	c := newNode(by, nil, n.objects, n.children)
	c.keys, c.borrowed = n.keys, true
	return c
}

// ownKeys makes the keys of an owned node its own, before they change.
func (n *node) ownKeys() {
	if n.borrowed {
		n.keys, n.borrowed = n.keys.copied(), false
	}
}

// newNode copies what it is given.
func newNode(by *owner, texts []string, objects []Object, children []*node) *node {
	n := &node{owner: by}
	if children == nil {
		n.objects = roomy(objects)
	} else {
		n.children = roomy(children)
	}
	if texts != nil {
		n.keys.texts, n.keys.marks = roomy(texts), make([]uint64, 0, fanout+1)
		n.keys.mark(n.first())
	}
	return n
}

// roomy is a copy with room for one entry too many.
func roomy[T any](entries []T) []T { return append(make([]T, 0, fanout+1), entries...) }
