package rollout

// heirs is which of those that are on their way out have a successor.
type heirs struct {
	succeeded map[string]bool // by one that is wanted
	bereft    map[string]bool // by one that is stopped, because it is outdated itself
}

// add takes note of a replica that is wanted.
func (h *heirs) add(r Replica) {
	if r.Succeeds == "" {
		return
	}
	if h.succeeded == nil {
		h.succeeded = map[string]bool{}
	}
	h.succeeded[r.Succeeds] = true
}

// outdated takes note of one that is stopped because it is.
func (h *heirs) outdated(r Replica) {
	if r.Succeeds != "" {
		h.bereave(r.Succeeds)
	}
}

// bereave has one that leaves need a successor.
func (h *heirs) bereave(uid string) {
	if h.bereft == nil {
		h.bereft = map[string]bool{}
	}
	h.bereft[uid] = true
}

// passOn are those of the leaving, at most so many, that get a successor now.
func (h *heirs) passOn(leaving []string, most int) (uids []string) {
	for _, uid := range leaving {
		if len(uids) < most && h.bereft[uid] && !h.succeeded[uid] {
			uids = append(uids, uid)
		}
	}
	return uids
}

// lacking counts those of the leaving that had no successor until now.
func (h *heirs) lacking(leaving []string) (n int) {
	for _, uid := range leaving {
		if !h.succeeded[uid] {
			n++
		}
	}
	return n
}
