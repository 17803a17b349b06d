package app

// undo collects what must be taken back when a start fails in the middle, and
// what must be closed at the end, in reverse order.
type undo []func()

func (u *undo) add(f func()) { *u = append(*u, f) }

func (u *undo) run() {
	for i := len(*u) - 1; i >= 0; i-- {
		(*u)[i]()
	}
	*u = nil
}
