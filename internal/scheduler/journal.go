package scheduler

// journal records what a plan has done to the view, so that it can be undone. A plan works
// on the view itself, because copying it would cost more than planning.
type journal []journalEntry

// journalEntry is a replica that was placed, evicted, or marked as leaving.
type journalEntry struct {
	node  int32
	shape *shape
	// evicted is the replica's number, -1 for one that was placed.
	evicted int32
	// leaving is whether it is only marked as leaving; was is its former standing.
	leaving bool
	was     Standing
}

// put places one replica of a shape on a node.
func (v *View) put(i int32, s *shape) {
	v.occupy(i, s)
	v.journal = append(v.journal, journalEntry{node: i, shape: s, evicted: -1})
}

// evict frees the room of a replica.
func (v *View) evict(at int32) {
	r := *v.work.at(at)
	v.removeFromNode(at)
	v.vacate(r.node, r.shape)
	v.journal = append(v.journal, journalEntry{node: r.node, shape: r.shape, evicted: at})
}

// rollback undoes everything, the last entry first.
func (v *View) rollback() {
	for j := len(v.journal) - 1; j >= 0; j-- {
		d := v.journal[j]
		switch {
		case d.evicted < 0:
			v.vacate(d.node, d.shape)
			continue
		case d.leaving:
			v.countStanding(d.evicted, -1)
			v.work.at(d.evicted).standing = d.was
			v.countStanding(d.evicted, 1)
			continue
		}
		v.addToNode(d.evicted)
		v.occupy(d.node, d.shape)
	}
	clear(v.journal)
	v.journal = v.journal[:0]
}
