package rollout

// successors tracks which of the leaving replicas have a successor.
type successors struct {
	succeeded map[string]bool // by a wanted replica
	needed    map[string]bool // a new successor, because theirs is outdated and stopped
}

// add notes a wanted replica.
func (h *successors) add(r Replica) {
	if r.Succeeds == "" {
		return
	}
	if h.succeeded == nil {
		h.succeeded = map[string]bool{}
	}
	h.succeeded[r.Succeeds] = true
}

// outdated notes a replica that is stopped because it is outdated.
func (h *successors) outdated(r Replica) {
	if r.Succeeds != "" {
		h.need(r.Succeeds)
	}
}

// need notes that a leaving replica needs a new successor.
func (h *successors) need(uid string) {
	if h.needed == nil {
		h.needed = map[string]bool{}
	}
	h.needed[uid] = true
}

// needing returns the leaving replicas, at most so many, that get a successor now.
func (h *successors) needing(leaving []string, most int) (uids []string) {
	for _, uid := range leaving {
		if len(uids) < most && h.needed[uid] && !h.succeeded[uid] {
			uids = append(uids, uid)
		}
	}
	return uids
}

// lacking counts the leaving replicas without a successor so far.
func (h *successors) lacking(leaving []string) (n int) {
	for _, uid := range leaving {
		if !h.succeeded[uid] {
			n++
		}
	}
	return n
}
