package object

// Buffered returns how many bytes of memory requests have now.
func (s *Store) Buffered() int64 { return s.memory.used.Load() }

// Stream returns a part of what a key makes of zeros.
func (k *Key) Stream(nonce []byte, offset uint32, length int) []byte {
	data := make([]byte, length)
	k.apply(nonce, offset, data)
	return data
}
