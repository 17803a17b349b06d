package traffic

import (
	"slices"
	"time"
)

// level says how exactly something is remembered that is not older than age.
type level struct{ width, age time.Duration }

// window remembers values by when they came, more and more coarsely. Times are since the book began. What is older than the
// last level is forgotten. Slots without a value take no room.
type window[T any] struct {
	levels []level
	merge  func(into *T, value T)
	slots  []slot[T] // the oldest first
}

type slot[T any] struct {
	from, width time.Duration
	value       T
}

func (w *window[T]) add(now time.Duration, value T) {
	width := w.levels[0].width
	from := now.Truncate(width)
	if n := len(w.slots); n > 0 && w.slots[n-1].from+w.slots[n-1].width > from {
		w.merge(&w.slots[n-1].value, value)
		return
	}
	w.compact(now)
	slots := slot[T]{from: from, width: width}
	w.merge(&slots.value, value)
	w.slots = append(w.slots, slots)
}

// compact merges slots that are old enough to be remembered more coarsely, and drops what is too old.
func (w *window[T]) compact(now time.Duration) {
	kept := w.slots[:0]
	for _, s := range w.slots {
		width, known := w.widthAt(now - s.from)
		if !known {
			continue
		}
		from := s.from.Truncate(max(width, s.width))
		if n := len(kept); n > 0 && kept[n-1].from+kept[n-1].width > from {
			w.merge(&kept[n-1].value, s.value)
			continue
		}
		s.from, s.width = from, max(width, s.width)
		kept = append(kept, s)
	}
	clear(w.slots[len(kept):])
	w.slots = kept
	if cap(w.slots) > 4*len(w.slots)+8 {
		w.slots = slices.Clone(w.slots)
	}
}

func (w *window[T]) widthAt(age time.Duration) (width time.Duration, known bool) {
	for _, l := range w.levels {
		if age < l.age {
			return l.width, true
		}
	}
	return 0, false
}

// since calls f for what came since a time, and for the rest of the slot in which that time is.
func (w *window[T]) since(from time.Duration, f func(T)) {
	for i := len(w.slots) - 1; i >= 0 && w.slots[i].from+w.slots[i].width > from; i-- {
		f(w.slots[i].value)
	}
}
