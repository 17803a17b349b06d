package object

import "hash"

// digest computes a digest of buffers one after the other, while the caller does other things. MD5 is slower than the
// digest of chunks, and it cannot be computed in parallel.
type digest struct {
	hash hash.Hash
	// buffers is nil while no goroutine runs.
	buffers chan *buffer
	done    chan struct{}
}

// add takes over the caller's hold of a buffer. Others follow.
func (d *digest) add(buf *buffer) {
	if d.buffers == nil {
		d.buffers, d.done = make(chan *buffer), make(chan struct{})
		go d.run(d.buffers)
	}
	d.buffers <- buf
}

// last is add for the last buffer. Afterwards the digest is complete.
func (d *digest) last(buf *buffer) {
	if d.buffers != nil {
		d.buffers <- buf
		d.end()
		return
	}
	d.hash.Write(buf.data)
	buf.drop()
}

// end waits for the buffers that were added.
func (d *digest) end() {
	if d.buffers == nil {
		return
	}
	close(d.buffers)
	<-d.done
	d.buffers = nil
}

func (d *digest) run(buffers <-chan *buffer) {
	defer close(d.done)
	for buf := range buffers {
		d.hash.Write(buf.data)
		buf.drop()
	}
}
