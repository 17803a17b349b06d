package scheduler

// journal is what a plan has done to the view, to be taken back: a plan is made
// on the view itself, because copying it would cost more than planning.
type journal []deed

// deed is a replica that was placed, one that was evicted, or one that leaves.
type deed struct {
	node  int32
	shape *shape
	// evicted is the replica's number, -1 for one that was placed.
	evicted int32
	// doomed is whether it only leaves; was is how it stood before.
	doomed bool
	was    Standing
}

// put places one replica of a shape on a node.
func (v *View) put(i int32, s *shape) {
	v.occupy(i, s)
	v.journal = append(v.journal, deed{node: i, shape: s, evicted: -1})
}

// evict makes the room of a replica free.
func (v *View) evict(at int32) {
	r := *v.work.at(at)
	v.stand(at)
	v.vacate(r.node, r.shape)
	v.journal = append(v.journal, deed{node: r.node, shape: r.shape, evicted: at})
}

// rollback takes everything back, the last deed first.
func (v *View) rollback() {
	for j := len(v.journal) - 1; j >= 0; j-- {
		d := v.journal[j]
		switch {
		case d.evicted < 0:
			v.vacate(d.node, d.shape)
			continue
		case d.doomed:
			v.attend(d.evicted, -1)
			v.work.at(d.evicted).standing = d.was
			v.attend(d.evicted, 1)
			continue
		}
		v.sit(d.evicted)
		v.occupy(d.node, d.shape)
	}
	clear(v.journal)
	v.journal = v.journal[:0]
}
